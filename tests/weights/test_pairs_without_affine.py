"""A BatchNorm that has a gain and no bias, or a bias and no gain, before it joins its layer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn

import isonorm
from isonorm import EquiConv2d, EquiLinear


@pytest.fixture(autouse=True)
def _memory_that_nobody_wrote_to_is_nan() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def batchnorm_without(*missing: str, frozen: bool = False) -> nn.BatchNorm2d:
    """As torch's own ``bias=False`` makes it, in versions that do not have it, too."""
    norm = nn.BatchNorm2d(8)
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    for parameter in norm.parameters():
        parameter.requires_grad_(not frozen)
    for name in missing:
        norm.register_parameter(name, None)
    return norm


@pytest.mark.parametrize("missing", [("bias",), ("weight",), ("weight", "bias")])
def test_what_the_norm_has_not_is_neutral_and_does_not_learn(missing):
    conv, norm = nn.Conv2d(3, 8, 3), batchnorm_without(*missing)
    layer = EquiConv2d.from_pair(conv, norm)
    for name, ours, theirs, neutral in (
        ("weight", layer.gamma, norm.weight, torch.ones(8)),
        ("bias", layer.beta, norm.bias, torch.zeros(8)),
    ):
        assert torch.equal(ours, neutral if name in missing else theirs)
        assert ours.requires_grad == (name not in missing)

    x = torch.rand(4, 3, 7, 7)
    whole = EquiConv2d.from_pair(conv, batchnorm_without())
    with torch.no_grad():
        whole.gamma.copy_(layer.gamma)
        whole.beta.copy_(layer.beta)
    torch.testing.assert_close(layer(x), whole(x), rtol=0, atol=0)


def test_what_was_frozen_stays_frozen():
    layer = EquiConv2d.from_pair(nn.Conv2d(3, 8, 3), batchnorm_without("bias", frozen=True))
    assert not layer.gamma.requires_grad and not layer.beta.requires_grad


def test_training_leaves_the_missing_bias_at_zero():
    layer = EquiConv2d.from_pair(nn.Conv2d(3, 8, 3), batchnorm_without("bias"))
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    y = layer(torch.rand(4, 3, 7, 7))
    (y * torch.randn_like(y)).sum().backward()
    gamma = layer.gamma.detach().clone()
    optimizer.step()
    assert torch.equal(layer.beta, torch.zeros(8)) and not torch.equal(layer.gamma, gamma)
    assert not layer.fuse().bias.requires_grad


def test_on_the_meta_device():
    norm = nn.BatchNorm1d(4, device="meta")
    norm.register_parameter("bias", None)
    assert EquiLinear.from_pair(nn.Linear(3, 4, device="meta"), norm).beta.is_meta


def test_a_converted_network():
    network = nn.Sequential(nn.Conv2d(3, 8, 3), batchnorm_without("bias"), nn.ReLU())
    gain = network[1].weight.detach().clone()
    isonorm.convert(network, "equinorm")
    assert torch.equal(network[0].gamma, gain) and torch.equal(network[0].beta, torch.zeros(8))
    assert network(torch.rand(2, 3, 8, 8)).isfinite().all()
