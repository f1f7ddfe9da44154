"""Inputs without information: finite outputs and gradients by every method and backend; and
broken inputs, which come out as BatchNorm lets them.
"""

from __future__ import annotations

from math import inf

import hypothesis.strategies as st
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from torch import Tensor

import isonorm
from isonorm import area as areas
from isonorm import operation as operations
from isonorm.functional import normalize
from isonorm.operation import Operation
from isonorm.roots import METHODS

#: "auto" is native code, where it is: what a CPU runs.
BACKENDS = ("reference", "torch", "auto")
OPERATIONS = [
    operations.center(),
    operations.scale(),
    operations.standardize(),
    operations.standardize(1),
    operations.standardize(inf),
    *(operations.whiten(method) for method in METHODS),
    operations.whiten("newton", 0),
    operations.whiten("newton", 50),
    operations.whiten("polar", 3),
    operations.whiten("polar", 20),
]


def images() -> Tensor:
    return torch.randn(8, 6, 4, 4)


def with_channels(x: Tensor, channels: list[int], value: Tensor | float) -> Tensor:
    x = x.clone()
    x[:, channels] = value
    return x


DEGENERATE = {
    "zeros": lambda: torch.zeros(8, 6, 4, 4),
    "ones": lambda: torch.ones(8, 6, 4, 4),
    "constant channel": lambda: with_channels(images(), [2], 3.0),
    "dead channels": lambda: with_channels(images(), [1, 4, 5], 0.0),
    "dead channels, scale 1e6": lambda: 1e6 * with_channels(images(), [1, 4, 5], 0.0),
    "duplicated channels": lambda: images()[:, [0, 1, 2, 0, 1, 2]],
    "duplicated channels, scale 1e6": lambda: 1e6 * images()[:, [0, 1, 2, 0, 1, 2]],
    "one channel six times": lambda: images()[:, [0] * 6],
    "one of two channels 127 times": lambda: torch.randn(64, 2)[:, [0] + [1] * 127],
    "one of two channels 127 times, scale 1e6": lambda: (
        1e6 * torch.randn(64, 2)[:, [0] + [1] * 127]
    ),
    "m < d": lambda: torch.randn(3, 64),
    "m < d, scale 1e6": lambda: 1e6 * torch.randn(3, 64),
    "two samples": lambda: 1e6 * torch.randn(2, 64),
    "two equal samples": lambda: torch.randn(1, 64).repeat(2, 1),
    "one sample far away": lambda: torch.cat([torch.randn(31, 6), 1e6 * torch.ones(1, 6)]),
    "mean 1e4": lambda: images() + 1e4,
    "mean 1e4, duplicated": lambda: images()[:, [0, 1, 2, 0, 1, 2]] + 1e4,
    "constant channel at 1e4": lambda: with_channels(images(), [2], 1e4),
    "scale 1e-6": lambda: 1e-6 * images(),
    "scale 1e6": lambda: 1e6 * images(),
    "scale 1e15": lambda: 1e15 * images(),
    "one channel of scale 1e15": lambda: images() * (1e15 ** torch.eye(6)[2])[:, None, None],
    "scales 1e-6 to 1e6": lambda: images() * torch.logspace(-6, 6, 6)[:, None, None],
}


def count_nonfinite(*tensors: Tensor) -> int:
    return sum(int((~t.isfinite()).sum()) for t in tensors)


def assert_finite(x: Tensor, area, operation: Operation, backend: str) -> None:
    x = x.detach().requires_grad_()
    with isonorm.backend(backend):
        y, statistics = normalize(x, area=area, operation=operation)
    outputs = [y] + [statistics.cov] * operation.is_quadratic
    gradients = torch.autograd.grad(outputs, x, [torch.randn_like(o) for o in outputs])
    assert count_nonfinite(y) == 0, "output"
    assert count_nonfinite(*gradients) == 0, "gradient"


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("operation", OPERATIONS, ids=repr)
@pytest.mark.parametrize("make", DEGENERATE.values(), ids=DEGENERATE.keys())
def test_outputs_and_gradients_are_finite(make, operation, backend):
    x = make()
    assert_finite(x, areas.batch(), operation, backend)
    if x.dim() > 2:
        assert_finite(x, areas.instance(4), operation, backend)
        assert_finite(x, areas.group(3), operation, backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("operation", OPERATIONS, ids=repr)
def test_float64_is_finite_too(operation, backend):
    for make in DEGENERATE.values():
        assert_finite(make().double(), areas.batch(), operation, backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("operation", OPERATIONS, ids=repr)
def test_half_precision_is_finite_within_its_range(operation, dtype, backend):
    for name in ("zeros", "constant channel", "dead channels", "one channel six times", "m < d"):
        assert_finite(DEGENERATE[name]().to(dtype), areas.batch(), operation, backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("operation", OPERATIONS, ids=repr)
def test_without_eps_zeros_are_not_an_exception(operation, backend):
    """0/0 is NaN, as in BatchNorm with eps=0; nothing raises."""
    x = torch.zeros(8, 4, requires_grad=True)
    with isonorm.backend(backend):
        y, _ = normalize(x, area="batch", operation=operation, eps=0.0)
    (gradient,) = torch.autograd.grad(y, x, torch.randn_like(y))
    assert y.shape == gradient.shape == x.shape


SHAPES = st.tuples(
    st.integers(2, 12), st.sampled_from([1, 2, 3, 5, 12, 64]), st.sampled_from([1, 2, 7, 36])
)
#: By how much neighboring channels differ: copies, copies up to rounding, independent.
DISTANCES = st.sampled_from([0.0, 1e-7, 1e-3, 1.0])


@settings(max_examples=500)
@given(
    shape=SHAPES,
    seed=st.integers(0, 2**16),
    scale=st.sampled_from([1e-6, 1e-3, 1.0, 1e3, 1e6]),
    mean=st.sampled_from([0.0, 1.0, -1e4]),
    distance=DISTANCES,
    dead=st.integers(0, 3),
    operation=st.sampled_from(OPERATIONS),
    area=st.sampled_from([areas.batch(), areas.batch(5), areas.instance(5), areas.group(1)]),
    backend=st.sampled_from(BACKENDS),
)
def test_no_counterexample_is_found(
    shape, seed, scale, mean, distance, dead, operation, area, backend
):
    n, c, s = shape
    if area.name != "batch" and s == 1 and operation.centers:
        s = 2  # one value cannot be centered by itself
    generator = torch.Generator().manual_seed(seed)
    first = torch.randn(n, 1, s, generator=generator)
    x = first + distance * torch.randn(n, c, s, generator=generator)
    x[:, max(1, c - dead) :] = 0
    torch.manual_seed(seed)
    assert_finite(scale * x + mean, area, operation, backend)


BROKEN = {"NaN": torch.nan, "infinite": inf}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("value", BROKEN.values(), ids=BROKEN.keys())
@pytest.mark.parametrize("operation", OPERATIONS, ids=repr)
def test_broken_input_reaches_the_output_as_in_batch_norm(operation, value, backend):
    """Where BatchNorm's output is NaN nothing else's is finite; other groups do not hear of it."""
    clean = torch.randn(8, 6, 5)
    x = clean.clone()
    x[3, 1, 2] = value
    x.requires_grad_()
    with isonorm.backend(backend):
        y, statistics = normalize(x, area=areas.batch(3), operation=operation)
        expected, _ = normalize(clean, area=areas.batch(3), operation=operation)
    assert not y[3, 1, 2].isfinite()
    if operation.centers:  # without a mean to subtract, x/∞ is 0
        broken = F.batch_norm(x, None, None, training=True).isnan()
        assert not y[broken].isfinite().any()
    assert count_nonfinite(statistics.mean if operation.centers else statistics.cov) > 0
    torch.testing.assert_close(y[:, 3:], expected[:, 3:])
    (gradient,) = torch.autograd.grad(y, x, torch.randn_like(y))
    assert count_nonfinite(gradient[:, 3:]) == 0


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("value", BROKEN.values(), ids=BROKEN.keys())
@pytest.mark.parametrize("method", METHODS)
def test_a_broken_example_stays_alone_where_examples_are_apart(method, value, backend):
    clean = torch.randn(4, 6, 9)
    x = clean.clone()
    x[1, 2, 3] = value
    operation = operations.whiten(method)
    for area in (areas.instance(6), areas.group(3)):
        with isonorm.backend(backend):
            y, _ = normalize(x, area=area, operation=operation)
            expected, _ = normalize(clean, area=area, operation=operation)
        assert count_nonfinite(y[1]) > 0
        torch.testing.assert_close(y[[0, 2, 3]], expected[[0, 2, 3]])
