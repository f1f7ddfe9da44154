"""``normalize`` against torch's own norms and activations."""

from __future__ import annotations

from math import inf, log, pi

import pytest
import torch
import torch.nn.functional as F

from isonorm import area as areas
from isonorm import operation as operations
from isonorm.functional import normalize
from isonorm.recovery import Affine
from isonorm.roots import METHODS
from tests.functional.helpers import affine_whiten, correlated, double, gradients

SHAPES = {
    "no positions": (12, 6),
    "sequence": (5, 6, 7),
    "image": (4, 6, 3, 5),
    "1x1 image": (8, 6, 1, 1),
    "video": (3, 6, 2, 3, 2),
}
TORCH = {
    "batch_norm": (
        areas.batch(),
        lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True),
    ),
    "instance_norm": (areas.instance(), lambda x, w, b: F.instance_norm(x, weight=w, bias=b)),
    "group_norm": (areas.group(3), lambda x, w, b: F.group_norm(x, 3, w, b)),
    "layer_norm": (areas.layer(), lambda x, w, b: F.group_norm(x, 1, w, b)),
    "positional": (
        areas.position(),
        lambda x, w, b: F.layer_norm(x.movedim(1, -1), x.shape[1:2], w, b).movedim(-1, 1),
    ),
    "batch_group_norm": (
        areas.batch_group(3),
        lambda x, w, b: (
            F.batch_norm(x.reshape(len(x), 3, -1), None, None, training=True).view_as(x)
            * w.view(-1, *[1] * (x.dim() - 2))
            + b.view(-1, *[1] * (x.dim() - 2))
        ),
    ),
}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
@pytest.mark.parametrize(("area", "oracle"), TORCH.values(), ids=TORCH.keys())
def test_standardize_is_torchs_norm(area, oracle, shape, backend):
    if area.name == "instance" and torch.Size(shape[2:]).numel() == 1:
        pytest.skip("one value has no instance norm")
    x, weight, bias = double(*shape), double(6), double(6)
    y, _ = normalize(x, area=area, operation="standardize", recovery=Affine(weight, bias))
    expected = oracle(x, weight, bias)
    torch.testing.assert_close(y, expected, rtol=1e-10, atol=1e-10)
    inputs = (x, weight, bias)
    for got, want in zip(gradients(y, inputs), gradients(expected, inputs), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-8, atol=1e-10)


def test_scale_on_a_layer_is_rms_norm(backend):
    x = double(4, 6, 3, 5)
    y, _ = normalize(x, area="layer", operation="scale", eps=1e-4)
    expected = F.rms_norm(x, (6, 3, 5), eps=1e-4)
    torch.testing.assert_close(y, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gradients(y, (x,))[0], gradients(expected, (x,))[0])


def test_center_subtracts_the_mean(backend):
    x = double(4, 6, 5)
    y, _ = normalize(x, area="batch", operation="center")
    torch.testing.assert_close(y, x - x.mean((0, 2), keepdim=True))


@pytest.mark.parametrize("p", [1, inf])
def test_other_norms_divide_by_their_own_deviation(p, backend):
    x = double(4, 6, 5)
    y, statistics = normalize(x, area="batch", operation=operations.standardize(p), eps=1e-3)
    deviations = (x - x.mean((0, 2), keepdim=True)).transpose(0, 1).flatten(1)
    size = deviations.abs().mean(1) if p == 1 else deviations.abs().amax(1)
    # Hoffer et al. 2018: √(π/2), and C∞ for 20 samples
    constant = {1: (pi / 2) ** 0.5, inf: (1 + (pi * log(4)) ** 0.5) / (8 * log(20)) ** 0.5}[p]
    expected = deviations / ((constant * size).square() + 1e-3).sqrt()[:, None]
    torch.testing.assert_close(y.transpose(0, 1).flatten(1), expected)
    torch.testing.assert_close(statistics.cov.flatten(), (constant * size).square())


ONE_FEATURE = [*((method, None) for method in METHODS), ("newton", 0), ("newton", 1), ("polar", 1)]


@pytest.mark.parametrize(("method", "steps"), ONE_FEATURE, ids=lambda value: str(value))
@pytest.mark.parametrize("group_size", [1, 4], ids=["groups of 1", "a last group of 1"])
def test_a_group_of_one_channel_is_batch_norm(method, steps, group_size, backend):
    x = correlated(4, 5, 6)
    operation = operations.whiten(method, steps)
    y, _ = normalize(x, area=areas.batch(group_size), operation=operation)
    expected = F.batch_norm(x, None, None, training=True)
    last = slice(None) if group_size == 1 else slice(4, 5)
    torch.testing.assert_close(y[:, last], expected[:, last], rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(
        gradients(y[:, last], (x,))[0][:, last],
        gradients(expected[:, last], (x,))[0][:, last],
        rtol=1e-8,
        atol=1e-9,
    )


@pytest.mark.parametrize("act", ["relu", "silu", "identity", None])
def test_act_and_residual_follow_the_recovery(act, backend):
    x, weight, bias, residual = correlated(4, 3, 4), double(3), double(3), double(4, 3, 4)
    plain = affine_whiten(x, weight, bias) + residual
    expected = {"relu": F.relu, "silu": F.silu}.get(act or "", lambda y: y)(plain)
    y, _ = normalize(
        x,
        area=areas.batch(2),
        operation="whiten",
        recovery=Affine(weight, bias),
        act=act,
        residual=residual,
    )
    torch.testing.assert_close(y, expected)
    inputs = (x, weight, bias, residual)
    for got, want in zip(gradients(y, inputs), gradients(expected, inputs), strict=True):
        torch.testing.assert_close(got, want)
