"""Float32 where there are fewer samples than channels: W stretches directions without variance most
of all, and there nothing but rounding is left of x − μ.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import isonorm
from isonorm import area as areas
from isonorm import operation as operations

CPU = ["torch", "native"]
#: Samples and channels: full rank but for the mean, less, hardly any, and a large group.
SHAPES = [(17, 16), (16, 16), (12, 16), (2, 16), (60, 64)]


def output_and_gradient(backend: str, x: Tensor, dy: Tensor, operation) -> tuple[Tensor, Tensor]:
    """Return y and dx of a whitening over the batch."""
    leaf = x.clone().requires_grad_()
    with isonorm.backend(backend):
        y, _ = isonorm.functional.normalize(leaf, area=areas.batch(), operation=operation)
    return y.detach(), *torch.autograd.grad(y, leaf, dy)


def draw(shape: tuple[int, ...], seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator), torch.randn(shape, generator=generator)


def check_gradients(backend: str, steps: int, shape: tuple[int, int], seeds: int = 5) -> None:
    """Compare dx of Newton's steps with automatic differentiation in float64."""
    newton = operations.whiten("newton", steps)
    for seed in range(seeds):
        x, dy = draw(shape, seed)
        _, exact = output_and_gradient("reference", x.double(), dy.double(), newton)
        _, dx = output_and_gradient(backend, x, dy, newton)
        assert (dx - exact).norm() < 1e-3 * exact.norm(), (seed, (dx - exact).norm() / exact.norm())


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("steps", [1, 5, 9, 14, 15, 17, 20])
@pytest.mark.parametrize("backend", ["reference", *CPU])
def test_gradients_of_newton_are_those_of_float64(backend, steps, shape):
    check_gradients(backend, steps, shape)


@pytest.mark.parametrize("backend", CPU)
@pytest.mark.parametrize("steps", [5, 14, 20])
def test_gradients_of_one_sample_many_times_over_are_those_of_float64(backend, steps):
    x, dy = draw((1, 16), 0)[0].expand(12, 16), draw((12, 16), 1)[1]
    newton = operations.whiten("newton", steps)
    _, exact = output_and_gradient("reference", x.double(), dy.double(), newton)
    _, dx = output_and_gradient(backend, x, dy, newton)
    assert (dx - exact).norm() < 1e-3 * exact.norm()


METHODS = ["newton", "zca", "pca", "cholesky", "polar"]
LAYOUTS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}
#: Shapes and areas: all samples, a remainder of one channel, each example by itself.
BATCHES = [
    pytest.param((12, 16), areas.batch(), id="fewer-samples"),
    pytest.param((2, 16), areas.batch(), id="two-samples"),
    pytest.param((3, 17, 2, 2), areas.batch(16), id="positions"),
    pytest.param((40, 16), areas.batch(), id="full-rank"),
    pytest.param((3, 16, 3, 3), areas.instance(16), id="instances"),
    pytest.param((3, 32, 3, 3), areas.group(4), id="groups-as-features"),
]
#: The rounding of products with W, whose entries come to 1/√ε = 316, averaged over samples.
OF_PRODUCTS = 5e-5


def check_means(backend: str, method: str, shape, area, layout: str, far: float) -> None:
    """Compare the mean of the output with that of torch's normalizations of the same input."""
    x = draw(shape, 0)[0] + far
    if len(shape) == 4:
        x = x.contiguous(memory_format=LAYOUTS[layout])
    operation = operations.whiten(method)
    with isonorm.backend(backend):
        y, statistics = isonorm.functional.normalize(x, area=area, operation=operation, eps=1e-5)
    over_batch = area.spans_batch
    theirs = (
        torch.nn.functional.batch_norm(x, None, None, training=True)
        if over_batch
        else torch.nn.functional.instance_norm(x)
    )
    axes = [i for i in range(x.dim()) if i != 1 and (i != 0 or over_batch)]

    def farthest(t: Tensor) -> float:
        mean = t.double().mean(axes)
        if area.features == "groups":  # samples are a group's channels, too
            mean = mean.unflatten(1, (4, -1)).mean(2)
        return mean.abs().max().item()

    assert statistics.mean.dtype == torch.float32
    assert farthest(y) < 10 * farthest(theirs) + OF_PRODUCTS


@pytest.mark.parametrize("far", [0.0, 10.0, 1e3, 1e5])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("shape", "area"), BATCHES)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("backend", ["reference", *CPU])
def test_the_mean_of_the_output_is_as_near_zero_as_batch_norms(
    backend, method, shape, area, layout, far
):
    if backend == "native" and area.features == "groups":
        backend = "torch"
    check_means(backend, method, shape, area, layout, far)


def check_far_from_zero(backend: str, method: str, shape, area) -> None:
    """Compare y and all gradients at a mean of 1e5 with float64."""
    x, dy = draw(shape, 1)
    x = x + 1e5
    weight, bias = (t.abs() + 0.5 for t in draw((shape[1],), 2))

    def found(backend: str, dtype: torch.dtype) -> list[Tensor]:
        leaves = [t.to(dtype, copy=True).requires_grad_() for t in (x, weight, bias)]
        with isonorm.backend(backend):
            y, statistics = isonorm.functional.normalize(
                leaves[0],
                area=area,
                operation=operations.whiten(method),
                recovery=isonorm.recovery.Affine(*leaves[1:]),
            )
            # a loss of the statistics, too
            loss = (y * dy.to(dtype)).sum() + (statistics.cov * statistics.cov.detach()).sum()
            return [y.detach(), *torch.autograd.grad(loss, leaves)]

    exact = found("reference", torch.float64)
    for name, got, want in zip(
        ("y", "dx", "dγ", "dβ"), found(backend, torch.float32), exact, strict=True
    ):
        error = ((got - want).norm() / want.norm()).item()
        # Σ's rounding is up to 2⁻²⁴/ε, 6e-3, of its least eigenvalues: y and dγ hardly see those,
        # while dx cancels terms that are as large as their reciprocals.
        assert error < (1e-2 if name == "dx" else 1e-3), (name, error)


@pytest.mark.parametrize(("shape", "area"), BATCHES)
@pytest.mark.parametrize("method", ["newton", "zca", "cholesky"])
@pytest.mark.parametrize("backend", ["reference", *CPU])
def test_gradients_far_from_zero_are_those_of_float64(backend, method, shape, area):
    if backend == "native" and area.features == "groups":
        backend = "torch"
    check_far_from_zero(backend, method, shape, area)
