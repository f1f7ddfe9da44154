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
    """Compare dx of Newton's steps with automatic differentiation in float64.

    Where T steps stretch a direction by 1.5^T, float32 products lose 1.5^T · 2⁻²⁴ of terms that
    cancel: 2e-4 at T = 20, several times that if the smallest variance is near that of rounding.
    """
    newton = operations.whiten("newton", steps)
    for seed in range(seeds):
        x, dy = draw(shape, seed)
        _, exact = output_and_gradient("reference", x.double(), dy.double(), newton)
        _, dx = output_and_gradient(backend, x, dy, newton)
        assert (dx - exact).norm() < 1e-3 * exact.norm(), (seed, (dx - exact).norm() / exact.norm())


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("steps", [1, 5, 9, 14, 15, 17])
@pytest.mark.parametrize("backend", CPU)
def test_gradients_of_newton_are_those_of_float64(backend, steps, shape):
    check_gradients(backend, steps, shape)


@pytest.mark.parametrize("shape", SHAPES[2:], ids=str)
@pytest.mark.parametrize("backend", CPU)
def test_gradients_of_twenty_steps_are_those_of_float64(backend, shape):
    check_gradients(backend, 20, shape)


@pytest.mark.parametrize("backend", CPU)
@pytest.mark.parametrize("steps", [5, 14, 20])
def test_gradients_of_one_sample_many_times_over_are_those_of_float64(backend, steps):
    x, dy = draw((1, 16), 0)[0].expand(12, 16), draw((12, 16), 1)[1]
    newton = operations.whiten("newton", steps)
    _, exact = output_and_gradient("reference", x.double(), dy.double(), newton)
    _, dx = output_and_gradient(backend, x, dy, newton)
    assert (dx - exact).norm() < 1e-3 * exact.norm()
