"""Half precision, autocast, memory formats and the transforms of ``torch.func``."""

from __future__ import annotations

import copy

import pytest
import torch

import isonorm
from isonorm import EquiConv2d, EquiLinear


def test_statistics_stay_float32_in_a_half_layer(case):
    layer, x = case.make().bfloat16(), case.draw().bfloat16()
    wide = copy.deepcopy(layer).float()
    y, expected = layer(x), wide(x.float())
    assert y.dtype == torch.bfloat16 == layer.weight.dtype
    assert layer.running_v.dtype == torch.float32
    torch.testing.assert_close(layer.running_v, wide.running_v)
    assert (y.float() - expected).norm() < 0.02 * expected.norm()


def test_autocast_leaves_the_statistics_in_float32(case):
    layer, x = case.make(), case.draw()
    other = copy.deepcopy(layer)
    expected = other(x)
    with torch.autocast("cpu", torch.bfloat16):
        y = layer(x)
    assert y.dtype == torch.bfloat16 and torch.equal(layer.running_v, other.running_v)
    assert (y.float() - expected).norm() < 0.02 * expected.norm()


def test_channels_last_stays_channels_last():
    layer = EquiConv2d(4, 6, 3, padding=1)
    x = torch.rand(2, 4, 6, 5)
    y = copy.deepcopy(layer).to(memory_format=torch.channels_last)(
        x.to(memory_format=torch.channels_last)
    )
    assert y.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(y, layer(x))


def test_vmap_is_a_loop_and_jvp_a_difference_quotient(case):
    layer = case.make(track_running_stats=False, dtype=torch.float64)
    x = torch.stack([case.draw(torch.float64) for _ in range(2)])
    expected = torch.stack([layer(part) for part in x])
    torch.testing.assert_close(torch.func.vmap(layer)(x), expected)
    direction = torch.randn_like(x[0])
    _, found = torch.func.jvp(layer, (x[0],), (direction,))
    h = 1e-6
    expected = (layer(x[0] + h * direction) - layer(x[0] - h * direction)) / (2 * h)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("make", [EquiLinear, lambda *_: isonorm.BatchNorm(4)], ids=["equi", "bn"])
def test_a_refused_transform_changes_nothing(make):
    """Statistics of several batches cannot be averaged into those of one layer."""
    layer = make(4, 3)
    before = copy.deepcopy(layer.state_dict())
    with pytest.raises(RuntimeError, match="vmap"):
        torch.func.vmap(layer)(torch.rand(2, 5, 4))
    torch.testing.assert_close(layer.state_dict(), before, rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_an_ensemble_has_statistics_of_its_own(case):
    layers, x = [case.make() for _ in range(3)], case.draw()
    parameters, buffers = torch.func.stack_module_state(layers)

    def call(p, b):
        return torch.func.functional_call(layers[0], (p, b), (x,))

    y = torch.func.vmap(call)(parameters, buffers)
    torch.testing.assert_close(y, torch.stack([layer(x) for layer in layers]))
    for name, stacked in buffers.items():
        torch.testing.assert_close(
            stacked, torch.stack([layer.get_buffer(name) for layer in layers])
        )
