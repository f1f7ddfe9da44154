"""Parametrizations of half-precision weights, computed in float32 and rounded once."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from isonorm.weights import centered_weight_norm

sixteen_bits = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)


def in_double(layer: nn.Module) -> nn.Module:
    return copy.deepcopy(layer).double()


@sixteen_bits
@pytest.mark.parametrize("gain", [True, False])
@pytest.mark.parametrize("size", [3e-4, 1.0, 4000.0])  # in float16 squares vanish, or overflow
def test_centered_weights_are_those_of_float64_rounded(gain, size, dtype):
    layer = nn.Conv2d(4, 6, 3)
    with torch.no_grad():
        layer.weight.mul_(size)
    layer = layer.to(dtype)
    exact = in_double(layer)
    for each in (layer, exact):
        centered_weight_norm(each, gain=gain)
    assert layer.weight.dtype == dtype
    assert all(p.dtype == dtype for p in layer.parameters())
    roundings = 2 if gain else 1  # of the gain, and of the weight
    tolerance = roundings * torch.finfo(dtype).eps
    torch.testing.assert_close(layer.weight.double(), exact.weight, rtol=tolerance, atol=1e-7)

    cotangent = torch.randn_like(exact.weight)
    (exact.weight * cotangent).sum().backward()
    (layer.weight.double() * cotangent).sum().backward()
    for ours, theirs in zip(layer.parameters(), exact.parameters(), strict=True):
        if theirs.grad is not None:
            found = ours.grad.double()
            assert (found - theirs.grad).norm() <= 4 * torch.finfo(dtype).eps * theirs.grad.norm()


@sixteen_bits
@pytest.mark.parametrize("value", [0.0, 1.5])
def test_rows_without_direction_give_zeros(value, dtype):
    layer = nn.Linear(64, 4).to(dtype)
    with torch.no_grad():
        layer.weight[0] = value
    centered_weight_norm(layer)
    weight = layer.weight
    assert weight.isfinite().all() and (weight[0] == 0).all() and (weight[1:] != 0).any()
    # The slope at zero is 1e6, of which float16 holds but a twentieth.
    (weight * 1e-3 * torch.arange(64)).sum().backward()
    assert all(p.grad.isfinite().all() for p in layer.parametrizations.weight.parameters())
