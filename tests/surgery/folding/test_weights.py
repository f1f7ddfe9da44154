"""Layers that normalize their weights become plain ones, which take in what stands next to them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import isonorm

pytest.importorskip("isonorm.weights")


def test_equiconv_becomes_a_convolution(same):
    model = nn.Sequential(
        isonorm.EquiConv2d(3, 8, 3, padding=1),
        nn.ReLU(),
        isonorm.EquiConv2d(8, 8, 3),
        nn.BatchNorm2d(8),
        nn.Flatten(),
        isonorm.EquiLinear(8 * 9, 4),
    ).double()
    for _ in range(3):
        model(torch.randn(4, 3, 5, 5).double())
    folded = same(model, torch.randn(4, 3, 5, 5))
    assert [type(folded[i]) for i in (0, 2, 5)] == [nn.Conv2d, nn.Conv2d, nn.Linear]
    assert folded.fold_report.which("merged") == ["0", "2", "3", "5"]


class Doubled(isonorm.EquiConv2d):
    def forward(self, x):
        return 2 * super().forward(x)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: Doubled(3, 4, 3), "forward of its own"),
        (lambda: isonorm.EquiConv2d(3, 4, 3, track_running_stats=False), "no fixed map"),
    ],
    ids=["subclass", "untracked"],
)
def test_what_is_no_plain_layer_in_eval_is_left(make, why, same):
    folded = same(nn.Sequential(make(), nn.ReLU()), torch.randn(4, 3, 5, 5))
    (fate,) = folded.fold_report
    assert fate.became == "left" and why in fate.note
