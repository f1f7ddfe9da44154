"""Native code's sums over many samples: rounding neither grows with their number nor with means."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import isonorm
from isonorm import area as areas
from isonorm import operation as operations
from isonorm.functional import normalize
from isonorm.kernels.native import library
from isonorm.recovery import Affine
from tests.kernels.paths import channels_last, contiguous, correlated, needs_native_code

pytestmark = [needs_native_code, pytest.mark.usefixtures("poisoned_memory")]

NEWTON = operations.whiten("newton")


def test_float32_is_as_accurate_as_plain_torch():
    """Against float64; with means of several deviations, and gradients that have one."""
    x = channels_last(correlated(64, 32, 20, 20) + 5).float()
    dy, parameters = torch.randn_like(x) + 1, [torch.rand(32) + 0.5, torch.randn(32)]

    def found(backend: str, dtype: torch.dtype) -> list[Tensor]:
        inputs = [t.detach().to(dtype).requires_grad_() for t in (x, *parameters)]
        with isonorm.backend(backend):
            y, statistics = normalize(
                inputs[0], area=areas.batch(32), operation=NEWTON, recovery=Affine(*inputs[1:])
            )
        return [y, statistics.cov, *torch.autograd.grad(y, inputs, dy.to(dtype))]

    exact = found("reference", torch.float64)
    plain, native = (found(backend, torch.float32) for backend in ("torch", "native"))
    for mine, other, want in zip(native, plain, exact, strict=True):
        assert (mine - want).norm() < 2 * (other - want).norm()


@pytest.mark.parametrize("mean", [1e4, 1e6])
def test_a_mean_far_from_zero_cancels_nothing(mean):
    """In several chunks, of which one is unlike the others."""
    x = correlated(8, 4, 64, 64) + mean
    x[0] += 100
    x = x.float()
    with isonorm.backend("native"):
        _, statistics = normalize(x, area="batch", operation=NEWTON)
    expected = torch.cov(x.double().transpose(0, 1).flatten(1), correction=0)
    error = (statistics.cov[0] - expected).abs().amax() / expected.abs().amax()
    assert error < 30 * torch.finfo(torch.float32).eps


@pytest.mark.parametrize("layout", [contiguous, channels_last], ids=lambda layout: layout.__name__)
def test_many_equal_products_are_added_in_parts_and_chunks_in_float64(layout):
    """The covariance's error, of 160,000 samples: sums one after the other, in a tile or over
    chunks, leave five times as much.
    """
    x = layout(torch.where(torch.rand(400, 4, 400) < 0.5, -0.1, 0.1))
    with isonorm.backend("native"):
        _, statistics = normalize(x, area="batch", operation=NEWTON)
    exact = torch.cov(x.double().transpose(0, 1).flatten(1), correction=0)
    assert (statistics.cov[0] - exact).norm() < 1e-7 * exact.norm()


@pytest.mark.parametrize("d", [4, 16, 64])
@pytest.mark.parametrize("layout", [contiguous, channels_last, torch.clone])
def test_sums_over_samples_are_added_without_loss(layout, d):
    """A cotangent with a mean, and many samples: what is left of its sum is rounding."""
    x = correlated(20000, d) if layout is torch.clone else layout(correlated(50, d, 20, 20))
    run = library.Pass(areas.batch(d), areas.flat(x.float()).unsqueeze(1))
    dy = torch.full_like(run.x, 0.1)
    mean, _, rest = run.moments()
    f, _ = run.sums(dy, mean, rest)
    exact = dy.double().sum((0, 3))
    assert ((f - exact).norm() / exact.norm()) < 1.5e-6


@pytest.mark.parametrize("layout", [contiguous, channels_last], ids=lambda layout: layout.__name__)
def test_products_over_samples_are_added_without_loss(layout):
    """Within a tile, and from chunk to chunk: the same number every time, so that roundings of the
    sum would all go one way.
    """
    signs = torch.tensor([[1.0, -1.0, 1.0, -1.0], [1.0, -1.0, -1.0, 1.0]]).repeat(1, 1 << 20)
    x = layout(0.3 * signs.unsqueeze(0)).unsqueeze(1)
    run = library.Pass(areas.batch(2), x)
    mean, cov, rest = run.moments()
    _, outer = run.sums(x, mean, rest)
    for found in (cov, outer / x.shape[-1]):
        error = (found[0].double() / 0.3**2 - torch.eye(2).double()).abs().amax()
        assert error < 5e-7


@pytest.mark.parametrize("layout", [contiguous, channels_last], ids=lambda layout: layout.__name__)
def test_a_mean_far_from_zero_cancels_nothing_in_a_tile_that_is_not_full(layout):
    x = layout(correlated(6, 4, 5) + 1e4).float()
    with isonorm.backend("native"):
        _, statistics = normalize(x, area="batch", operation=NEWTON)
    expected = torch.cov(x.double().transpose(0, 1).flatten(1), correction=0)
    error = (statistics.cov[0] - expected).abs().amax() / expected.abs().amax()
    assert error < 30 * torch.finfo(torch.float32).eps
