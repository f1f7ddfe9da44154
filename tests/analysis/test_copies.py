"""What a copy to try keeps of a layer, and what it leaves behind."""

from __future__ import annotations

import torch
from torch import nn

from isonorm.analysis._state import copy_to_try


class SyncBatchNormAct(nn.SyncBatchNorm):
    """As timm has one: torch's forward, then an activation."""

    def forward(self, input):
        return torch.relu(super().forward(input))


def test_a_synchronized_norm_of_any_class_is_alone_in_a_copy(monkeypatch):
    def ask(*_, **__):
        raise AssertionError("a copy asked for other ranks")

    model = nn.Sequential(nn.SyncBatchNorm(4), SyncBatchNormAct(4)).train()
    copied = copy_to_try(model, train=True)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", ask)
    x = torch.randn(8, 4)
    expected = nn.Sequential(nn.BatchNorm1d(4), nn.BatchNorm1d(4), nn.ReLU()).train()
    torch.testing.assert_close(copied(x), expected(x))
    assert [type(module) for module in model] == [nn.SyncBatchNorm, SyncBatchNormAct]
