"""Copies, files, the meta device and the start of the weights."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch

import isonorm
from isonorm import EquiLinear


@pytest.mark.parametrize(
    "duplicate",
    [
        pytest.param(copy.deepcopy, id="deepcopy"),
        pytest.param(lambda layer: pickle.loads(pickle.dumps(layer)), id="pickle"),
    ],
)
def test_copies_are_equal_and_independent(trained, case, duplicate):
    other, x = duplicate(trained), case.draw()
    assert repr(other) == repr(trained)
    torch.testing.assert_close(other(x), trained(x))
    other(x)
    assert other.num_batches_tracked == trained.num_batches_tracked + 1


def test_state_dict_round_trip(trained, case):
    file = io.BytesIO()
    torch.save(trained.state_dict(), file)
    file.seek(0)
    fresh, x = case.build(), case.draw()
    fresh.load_state_dict(torch.load(file, weights_only=True))
    names = ["weight", "gamma", "beta", "running_v", "num_batches_tracked"]
    assert list(fresh.state_dict()) == names
    assert torch.equal(fresh.eval()(x), trained.eval()(x))


def test_made_on_meta_and_reset(case):
    layer = case.build(device="meta")
    assert all(t.is_meta for t in (*layer.parameters(), *layer.buffers()))
    layer.to_empty(device="cpu").reset_parameters()
    rows = layer.weight.flatten(1)
    assert ((rows > 0).any(1) & (rows < 0).any(1)).all()
    assert torch.equal(layer.gamma, torch.ones(6)) and torch.equal(layer.beta, torch.zeros(6))
    assert torch.equal(layer.running_v, torch.ones(4)) and layer.num_batches_tracked == 0


def test_every_output_starts_with_both_signs():
    rows = EquiLinear(2, 400).weight
    assert ((rows > 0).any(1) & (rows < 0).any(1)).all()


def test_repr_repeats_the_arguments():
    layer = isonorm.EquiConv2d(
        3, 4, 3, padding=1, statistics_fraction=0.25, single_pass=False, process_group="world"
    )
    shown = repr(layer)
    for part in ("3, 4", "padding=(1, 1)", "statistics_fraction=0.25", "single_pass=False"):
        assert part in shown
    assert "process_group='world'" in shown and "bias" not in shown


@pytest.mark.parametrize("missing", ["num_batches_tracked", "beta", "gamma"])
def test_what_was_taken_away_is_left_out_of_a_reset(missing):
    layer = isonorm.EquiConv2d(3, 4, 3)
    layer(torch.randn(2, 3, 8, 8))
    setattr(layer, missing, None)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.fill_(3)
    layer.reset_parameters()
    fresh = isonorm.EquiConv2d(3, 4, 3).state_dict()
    for name, value in layer.state_dict().items():
        if name != "weight":
            assert torch.equal(value, fresh[name]), name
    assert getattr(layer, missing) is None
