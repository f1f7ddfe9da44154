"""Frozen norms stay in eval and do not learn."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn

import isonorm
from tests.surgery.blocks import BatchNormAct2d


@pytest.fixture(params=[nn.BatchNorm2d, isonorm.IterNorm], ids=["torch", "isonorm"])
def model(request, network):
    return network(request.param).train()


def assert_frozen(model, images):
    before = copy.deepcopy(model.state_dict())
    y = model.train()(images)
    y.backward(torch.randn_like(y))
    assert not model[1].training and model[0].training
    assert model[1].weight.grad is None and model[0].weight.grad is not None
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())


def test_frozen_norms_do_not_change(model, images):
    assert isonorm.freeze(model) is model
    assert_frozen(model, images)


@pytest.mark.parametrize(
    "duplicate", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))], ids=["copy", "pickle"]
)
def test_copies_are_frozen_and_apart(model, images, duplicate):
    other = duplicate(isonorm.freeze(model))
    assert_frozen(other, images)
    isonorm.unfreeze(other)
    assert other[1].training and not model[1].training


def test_unfreezing_restores_what_was(model, images):
    model[4].bias.requires_grad_(False)
    isonorm.freeze(model)
    isonorm.freeze(model)  # twice is once
    model.eval().train()
    isonorm.unfreeze(model)
    assert model[1].training and "train" not in vars(model[1])
    assert model[1].weight.requires_grad and not model[4].bias.requires_grad
    before = model[1].running_mean.clone()
    model(images)
    assert not torch.equal(before, model[1].running_mean)


def test_unfreezing_leaves_the_mode_that_was_asked_for(model):
    isonorm.freeze(model).eval()
    assert not isonorm.unfreeze(model)[1].training


def test_drops_inside_a_frozen_norm_still_follow():
    model = isonorm.freeze(nn.Sequential(BatchNormAct2d(3, nn.ReLU(), nn.Dropout())))
    assert model.train()[0].drop.training and not model[0].training
    assert not model.eval()[0].drop.training


def test_norms_without_statistics_go_on():
    model = isonorm.freeze(nn.Sequential(isonorm.LayerNorm(4), nn.LayerNorm(4)))
    assert all(m.training and m.weight.requires_grad for m in model)


def test_a_frozen_norm_is_converted_frozen(model, images):
    isonorm.freeze(model)
    isonorm.convert(model, isonorm.DBN)
    assert type(model[1]) is isonorm.DBN
    assert_frozen(model, images)
    isonorm.unfreeze(model)
    assert model[1].training and model[1].weight.requires_grad


@pytest.mark.parametrize("change", [isonorm.freeze, isonorm.unfreeze])
def test_only_modules_are_frozen(change):
    with pytest.raises(TypeError, match=r"expected a torch\.nn\.Module; got int"):
        change(3)


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.InstanceNorm2d(3, affine=True, track_running_stats=True),
        lambda: isonorm.EquiConv2d(3, 3, 3),
    ],
    ids=["InstanceNorm", "EquiConv"],
)
def test_whatever_averages_over_batches_is_frozen(make):
    model = nn.Sequential(nn.Conv2d(3, 3, 1), make())
    isonorm.freeze(model).train()
    before = {name: buffer.clone() for name, buffer in model[1].named_buffers()}
    model(torch.randn(4, 3, 5, 5)).square().mean().backward()
    assert all(torch.equal(buffer, before[name]) for name, buffer in model[1].named_buffers())
    learned = {name for name, p in model[1].named_parameters() if p.grad is not None}
    assert learned <= {"weight", "bias"} and not model[1].training
    if isinstance(model[1], nn.InstanceNorm2d):
        assert not learned
    else:  # of the kernel only its normalization is frozen
        assert "weight" in learned and not model[1].gamma.requires_grad
