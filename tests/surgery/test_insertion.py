"""A norm in front of a module that had none."""

from __future__ import annotations

import copy
from functools import partial

import pytest
import torch
from torch import nn

import isonorm


def classifier() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32, 5))


@pytest.fixture
def x():
    return torch.randn(16, 3, 4, 4)


def test_decorrelated_features_before_the_classifier(x):
    model = classifier()
    features = model[:3](x)
    linear = model[3]
    inserted = isonorm.insert(model, "3", "dbn")
    assert model[3] is inserted and inserted.module is linear
    assert isinstance(inserted.norm, isonorm.DBN) and inserted.norm.num_features == 32
    expected = linear(isonorm.DBN(32)(features))
    torch.testing.assert_close(model(x), expected)


def test_features_flattened_from_fewer_channels(x):
    model = classifier()
    maps = model[:2](x)
    linear = model[3]
    isonorm.insert(model, "3", isonorm.IterNorm(8))
    expected = linear(isonorm.IterNorm(8)(maps).flatten(1))
    torch.testing.assert_close(model(x), expected)


def test_before_a_convolution(x):
    model = classifier().double().eval()
    isonorm.insert(model, "0", partial(isonorm.IterNorm, num_iters=3))
    assert model[0].norm.num_iters == 3 and not model[0].norm.training
    assert model[0].norm.weight.dtype == model[0].norm.running_mean.dtype == torch.float64
    assert model(x.double()).shape == (16, 5)


def test_a_shared_module_is_preceded_in_every_place(x):
    linear = nn.Linear(4, 4)
    model = nn.Sequential(linear, nn.ReLU(), linear)
    isonorm.insert(model, "2", "iternorm")
    assert model[0] is model[2] and model[0].module is linear


def test_states_and_copies(x):
    model = classifier()
    saved = model.state_dict()
    isonorm.insert(model, "3", "iternorm")
    model(x)
    other = copy.deepcopy(model)
    torch.testing.assert_close(other.eval()(x), model.eval()(x))
    assert not other.load_state_dict(saved, strict=False).unexpected_keys
    fresh = classifier()
    isonorm.insert(fresh, "3", "iternorm")
    fresh.load_state_dict(model.state_dict())
    torch.testing.assert_close(fresh.eval()(x), model(x))

    nn.init.zeros_(model[3].module.weight)
    missing = model.load_state_dict(saved, strict=False)  # from before the norm was there
    assert torch.equal(model[3].module.weight, saved["3.weight"])
    assert not missing.unexpected_keys
    assert all(key.startswith("3.norm.") for key in missing.missing_keys)


def test_undoing(x):
    model = classifier()
    expected = model(x)
    inserted = isonorm.insert(model, "3", "iternorm")
    model[3] = inserted.module
    torch.testing.assert_close(model(x), expected)


@pytest.mark.parametrize(
    ("name", "norm", "words"),
    [
        ("fc", "dbn", "no module called 'fc'; near it are"),
        ("", "dbn", "no module called ''"),
        ("1", "dbn", "ReLU '1' takes is not known"),
        ("3", isonorm.IterNorm(5), "takes 32 channels, but the norm is made for 5.*divisor"),
        ("0", isonorm.IterNorm(5), "takes 3 channels, but the norm is made for 5"),
        ("3", "dbm", "did you mean 'dbn'"),
    ],
)
def test_what_does_not_fit(name, norm, words):
    model = classifier()
    with pytest.raises(ValueError, match=words):
        isonorm.insert(model, name, norm)
    assert type(model[3]) is nn.Linear


def test_exported(x):
    model = classifier()
    isonorm.insert(model, "3", isonorm.IterNorm(8))
    expected = model.eval()(x)
    torch.testing.assert_close(torch.export.export(model, (x,)).module()(x), expected)


def test_a_norm_goes_where_the_surroundings_are_of_a_module_without_tensors():
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()).double()
    assert isonorm.insert(model, "1", isonorm.IterNorm(8)).norm.weight.dtype == torch.float64


def test_a_state_from_before_loads_whatever_the_modules_children_are_called():
    """The module has a norm of its own, which is not the one in front of it."""
    block = nn.Sequential()
    block.add_module("norm", nn.BatchNorm2d(3))
    model = nn.Sequential(block)
    nn.init.normal_(block.norm.weight)
    state = copy.deepcopy(model.state_dict())
    isonorm.insert(model, "0", isonorm.BatchNorm(3))
    nn.init.zeros_(block.norm.weight)
    incompatible = model.load_state_dict(state, strict=False)
    assert torch.equal(block.norm.weight, state["0.norm.weight"])
    assert not incompatible.unexpected_keys
    assert torch.equal(model[0].norm.weight, torch.ones(3))
    nn.init.zeros_(block.norm.weight)
    isonorm.load_checkpoint(model, state, strict=False)
    assert torch.equal(block.norm.weight, state["0.norm.weight"])
    after = copy.deepcopy(model.state_dict())
    model.load_state_dict(after)  # what is saved now is left where it is


@pytest.mark.parametrize("norm", [nn.GroupNorm(1, 3), nn.LayerNorm(4)], ids=["channels", "last"])
def test_norms_that_do_not_fit_a_convolution(norm):
    model = nn.Sequential(nn.Conv2d(4, 4, 1))
    with pytest.raises((TypeError, ValueError), match=r"made for 3: make it for 4|are last"):
        isonorm.insert(model, "0", norm)
    assert type(model[0]) is nn.Conv2d
    features = nn.Sequential(nn.Linear(4, 2))  # (N, C): the last dimension is the channels'
    assert isonorm.insert(features, "0", nn.LayerNorm).norm.normalized_shape == (4,)


def test_a_module_that_is_also_held_elsewhere_is_refused():
    model = classifier()
    model.layers = [[model[3]]]
    with pytest.raises(ValueError, match="'3': it is also kept in a list"):
        isonorm.insert(model, "3", "dbn")
    assert isinstance(model[3], nn.Linear)
