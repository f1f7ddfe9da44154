"""What r counts, which part of the batch is measured, and the gradients through it."""

from __future__ import annotations

import copy
from math import prod

import pytest
import torch
from torch import nn
from torch.autograd import gradcheck

from isonorm import EquiConv2d, EquiLinear
from isonorm.weights.equilibrium import normalize_kernel


@pytest.mark.parametrize(
    ("options", "shape"),
    [
        ({"kernel_size": 3, "padding": 1}, (4, 3, 8, 9)),
        ({"kernel_size": 3}, (4, 3, 8, 9)),
        ({"kernel_size": 3, "stride": 2, "padding": 1}, (4, 3, 8, 9)),
        ({"kernel_size": (3, 5), "stride": (2, 3), "padding": (0, 2)}, (4, 3, 8, 9)),
        ({"kernel_size": 3, "dilation": 2, "stride": 2, "padding": 2}, (4, 3, 8, 9)),
        ({"kernel_size": (3, 5), "padding": "same"}, (2, 3, 8, 9)),
        ({"kernel_size": 3, "padding": "valid"}, (2, 3, 8, 9)),
        ({"kernel_size": 3, "padding": (2, 1), "padding_mode": "circular"}, (2, 3, 8, 9)),
        ({"kernel_size": 3, "padding": 1, "padding_mode": "reflect"}, (2, 3, 8, 9)),
        ({"kernel_size": 3, "padding": (0, 2), "padding_mode": "replicate"}, (2, 3, 8, 9)),
    ],
    ids=str,
)
def test_r_is_batch_size_times_output_positions_times_stride_squared(options, shape):
    layer = EquiConv2d(3, 5, **options, momentum=1.0)
    x = torch.rand(shape)
    y = layer(x)
    r = y.shape[0] * prod(y.shape[2:]) * prod(layer.stride)
    torch.testing.assert_close(layer.running_v, x.sum((0, 2, 3)) / r)
    plain = nn.Conv2d(3, 5, **options, bias=False)
    kernel = normalize_kernel(layer.weight.detach(), layer.running_v, single_pass=True)
    plain.load_state_dict({"weight": kernel})
    torch.testing.assert_close(y, plain(x))


def test_r_of_a_linear_layer_is_the_number_of_rows():
    layer = EquiLinear(4, 3, momentum=1.0)
    x = torch.rand(5, 7, 4)
    layer(x)
    torch.testing.assert_close(layer.running_v, x.mean((0, 1)))


@pytest.mark.parametrize(("fraction", "counted"), [(0.25, 2), (0.5, 4), (0.01, 1), (1.0, 8)])
def test_the_first_part_of_the_batch_is_measured_and_counted(case, fraction, counted):
    layer = case.make(statistics_fraction=fraction, momentum=1.0)
    whole = copy.deepcopy(layer)
    whole.statistics_fraction = 1.0
    x = torch.rand(8, *case.shape[1:])
    y = layer(x)
    torch.testing.assert_close(y[:counted], whole(x[:counted]))
    torch.testing.assert_close(layer.running_v, whole.running_v)


def test_gradients_of_the_measured_part_alone_flow_through_v():
    layer = EquiLinear(4, 3, statistics_fraction=0.5, dtype=torch.float64)
    x = torch.rand(4, 4, dtype=torch.float64, requires_grad=True)
    y = layer(x)
    cotangent = torch.randn_like(y)
    (dx,) = torch.autograd.grad(y, x, cotangent)
    through_kernel = cotangent @ normalize_kernel(
        layer.weight, x[:2].mean(0).detach(), layer.gamma, single_pass=True
    )
    torch.testing.assert_close(dx[2:], through_kernel[2:].detach())
    assert (dx[:2] - through_kernel[:2]).abs().min() > 1e-6


@pytest.mark.parametrize("single_pass", [False, True], ids=["exact", "single-pass"])
def test_gradcheck(case, single_pass):
    layer = case.make(single_pass=single_pass, track_running_stats=False, dtype=torch.float64)
    x = case.draw(torch.float64)[:2].requires_grad_()
    names = [name for name, _ in layer.named_parameters()]

    def call(x, *parameters):
        given = dict(zip(names, parameters, strict=True))
        return torch.func.functional_call(layer, given, (x,))

    assert names == ["weight", "gamma", "beta"]
    assert gradcheck(call, (x, *layer.parameters()), fast_mode=True)


def test_the_affine_acts_after_the_convolution(case):
    layer = case.make()
    bare = copy.deepcopy(layer)
    nn.init.ones_(bare.gamma)
    nn.init.zeros_(bare.beta)
    x = case.draw()
    channel = -1 if isinstance(layer, EquiLinear) else 1
    y = bare(x).movedim(channel, -1)
    expected = (y * layer.gamma + layer.beta).movedim(-1, channel)
    torch.testing.assert_close(layer(x), expected)


def test_one_instance_without_a_batch():
    layer = EquiConv2d(3, 4, 3, momentum=1.0)
    x = torch.rand(3, 6, 6)
    torch.testing.assert_close(layer(x), layer(x.unsqueeze(0)).squeeze(0))
    row = torch.rand(5)
    linear = EquiLinear(5, 2)
    torch.testing.assert_close(linear(row), linear(row.unsqueeze(0)).squeeze(0))
