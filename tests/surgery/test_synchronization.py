"""``convert_sync``; what synchronized layers compute is in tests/distributed/."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import isonorm


def test_all_norms_over_the_batch_are_synchronized(images):
    p1 = isonorm.Normalize(3, operation=isonorm.operation.standardize(p=1))
    model = nn.Sequential(
        nn.BatchNorm2d(3), isonorm.IterNorm(3), isonorm.LayerNorm(3), p1, nn.SyncBatchNorm(3),
        nn.GroupNorm(1, 3),
    )  # fmt: skip
    model(images)
    expected = model.eval()(images)
    report = isonorm.convert_sync(model)
    assert [change.name for change in report.changed] == ["0", "1"]
    assert type(model[0]) is nn.SyncBatchNorm and model[1].process_group == "world"
    reasons = [row.reason for row in report.left]
    assert "stays within an example" in reasons[0] and "cannot be synchronized" in reasons[1]
    assert "already" in reasons[2] and "no statistics of the batch" in reasons[3]
    assert model[2].process_group == model[3].process_group == ""
    torch.testing.assert_close(model(images), expected)


def test_layers_in_equilibrium_are_synchronized():
    model = nn.Sequential(isonorm.EquiConv2d(3, 8, 3), nn.ReLU(), isonorm.IterNorm(8))
    report = isonorm.convert_sync(model)
    assert {change.name for change in report.changed} == {"0", "2"} and not report.left
    assert model[0].process_group == model[2].process_group == "world"


def test_a_group_that_is_none():
    model = nn.Sequential(isonorm.IterNorm(3))
    with pytest.raises(ValueError, match="process_group must be"):
        isonorm.convert_sync(model, 3)
    assert model[0].process_group == ""


def test_with_a_group_of_one(tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0,
                                         world_size=1)  # fmt: skip
    try:
        group = torch.distributed.new_group([0])
        model = nn.Sequential(nn.BatchNorm1d(3), isonorm.IterNorm(3))
        isonorm.convert_sync(model, group)
        assert model[0].process_group is group
        assert model[1].process_group == group.group_name
        assert model.eval()(torch.randn(4, 3)).isfinite().all()
        isonorm.convert(model, "dbn")
        assert model[0].process_group == group.group_name
    finally:
        torch.distributed.destroy_process_group()
