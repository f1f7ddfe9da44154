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
