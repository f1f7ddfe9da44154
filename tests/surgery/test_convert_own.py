"""``convert`` to layers of one's own, and what their factories ask for beyond a norm."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

import isonorm
from isonorm.registry import REGISTRY


class Doubled(isonorm.IterNorm):
    def forward(self, x, residual=None):
        return 2 * super().forward(x, residual)


class Squared(nn.BatchNorm2d):
    def forward(self, x):
        return super().forward(x).square()


class Rescale(nn.Module):
    """A norm by name alone: nothing in it says so."""

    def __init__(self, num_features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(num_features))

    def forward(self, x):
        return self.weight.view(-1, 1, 1) * x / x.square().mean(1, keepdim=True).sqrt()


@pytest.fixture
def registered():
    isonorm.register_norm(Doubled)
    isonorm.register_norm(Rescale)
    yield
    del REGISTRY["doubled"], REGISTRY["rescale"]


def test_a_subclass_with_a_forward_of_its_own_gets_the_state(network, images, registered):
    model = network()
    expected, weight = 2 * model[:2](images), model[1].weight
    (change, _) = isonorm.convert(model, "doubled").changed
    assert type(model[1]) is Doubled and model[1].weight is weight
    assert not change.same and change.deviation is None and "forward of its own" in change.note
    torch.testing.assert_close(model[:2](images), expected)


def test_so_does_one_of_torchs(network, images):
    model = network()
    expected = model[:2](images).square()
    (change, _) = isonorm.convert(model, Squared).changed
    assert not change.same and "Squared has a forward of its own" in change.note
    torch.testing.assert_close(model[:2](images), expected)


def test_a_registered_norm_that_cannot_be_read_is_reported(network, registered):
    model = network()
    isonorm.convert(model, "rescale")
    report = isonorm.convert(model, "batchnorm")
    assert [row.reason for row in report.left] == ["Rescale is not a norm that can be read"] * 2


def test_an_activation_of_the_factorys_is_not_the_same_function(network):
    model = network()
    report = isonorm.convert(model, partial(isonorm.IterNorm, act="relu"))
    for change in report.changed:
        assert not change.same and "it applies relu now" in change.note
    again = isonorm.convert(model, partial(isonorm.DBN, act="silu"))
    assert model[1].act == "relu" and "act='silu' became 'relu', as it was" in again.changed[0].note


@pytest.mark.parametrize(
    "option",
    [{"affine": False}, {"act": "relu"}, {"check_finite": True}, {"track_running_stats": False}],
)
def test_it_is_not_already_that_if_the_factory_asks_for_more(network, option):
    model = network(isonorm.DBN)
    isonorm.convert(model, partial(isonorm.DBN, **option))
    ((name, value),) = option.items()
    assert getattr(model[1], name) == value


def test_without_running_statistics_it_does_not_go_on_as_it_did(network):
    (change, _) = isonorm.convert(
        network(), partial(isonorm.IterNorm, track_running_stats=False)
    ).changed
    assert change.note == "without running statistics, eval normalizes by the batch"
