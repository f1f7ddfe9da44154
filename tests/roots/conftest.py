"""Covariances with a known spectrum, and a root's two ways of being differentiated, for all
roots.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

CONDITION = 1e4


def _log_uniform(d: int) -> Tensor:
    return torch.logspace(0, -4, d, dtype=torch.float64)


def _one_large(d: int) -> Tensor:
    values = torch.full((d,), 1 / CONDITION, dtype=torch.float64)
    values[0] = 1
    return values


def _one_small(d: int) -> Tensor:
    values = torch.ones(d, dtype=torch.float64)
    values[-1] = 1 / CONDITION
    return values


def _two_clusters(d: int) -> Tensor:
    values = torch.ones(d, dtype=torch.float64)
    values[d // 2 :] = 1 / CONDITION
    return values


@pytest.fixture(
    params=[_log_uniform, _one_large, _one_small, _two_clusters],
    ids=lambda make: make.__name__.strip("_"),
)
def spectrum(request) -> Callable[[int], Tensor]:
    """d eigenvalues of condition 1e4, the largest of them 1, in float64."""
    return request.param


@pytest.fixture
def rotated() -> Callable[[Tensor], Tensor]:
    """Σ = QΛQᵀ in float64 with a random orthogonal Q, for (…, d) eigenvalues."""

    def rotate(values: Tensor) -> Tensor:
        d = values.shape[-1]
        q = torch.linalg.qr(torch.randn(*values.shape[:-1], d, d, dtype=torch.float64)).Q
        sigma = (q * values.unsqueeze(-2)) @ q.mT
        return 0.5 * (sigma + sigma.mT)

    return rotate


@pytest.fixture
def samples() -> Callable[[Tensor, int], Tensor]:
    """m samples of d features, (d, m), whose covariance is exactly QΛQᵀ (to float64 rounding)."""

    def draw(values: Tensor, m: int) -> Tensor:
        d = values.shape[0]
        white = torch.randn(d, m, dtype=torch.float64)
        white = white - white.mean(-1, keepdim=True)
        lower = torch.linalg.cholesky(white @ white.mT / m)
        white = torch.linalg.solve_triangular(lower, white, upper=False)
        return torch.linalg.qr(torch.randn(d, d, dtype=torch.float64)).Q @ (
            values.sqrt().unsqueeze(-1) * white
        )

    return draw


@pytest.fixture
def whiteness() -> Callable[[Tensor], Tensor]:
    """‖cov(y) − I‖/√d of (d, m) samples, measured in float64."""

    def measure(y: Tensor) -> Tensor:
        d = y.shape[0]
        error = torch.cov(y.double(), correction=0) - torch.eye(d, dtype=torch.float64)
        return error.norm() / d**0.5

    return measure


@pytest.fixture
def autograd_gradient() -> Callable[..., Tensor]:
    """dΣ from dW by automatic differentiation of a function Σ → W, symmetrized, as dx uses it."""

    def gradient(function: Callable[[Tensor], Tensor], sigma: Tensor, dw: Tensor) -> Tensor:
        sigma = sigma.detach().requires_grad_()
        (grad,) = torch.autograd.grad(function(sigma), sigma, dw)
        return 0.5 * (grad + grad.mT)

    return gradient


@pytest.fixture
def explicit_gradient() -> Callable[..., Tensor]:
    """dΣ from dW by ``root.forward`` and ``root.backward``, the pair the explicit path calls."""

    def gradient(root, sigma: Tensor, dw: Tensor) -> Tensor:
        with torch.no_grad():
            w, memo = root.forward(sigma)
            assert memo.shape == root.memo_shape(sigma.shape[0], sigma.shape[-1])
            return root.backward(dw, sigma, w, memo)

    return gradient


@pytest.fixture
def spectral_gradient() -> Callable[..., Tensor]:
    """dΣ from dW for W = f(Σ), by the Daleckii–Krein theorem: the divided differences of f on the
    eigenvalues, f′ where they repeat.
    """

    def gradient(f: Callable[[Tensor], Tensor], sigma: Tensor, dw: Tensor) -> Tensor:
        values, vectors = torch.linalg.eigh(sigma)
        fv = f(values)
        with torch.enable_grad():
            at = values.clone().requires_grad_()
            (slope,) = torch.autograd.grad(f(at).sum(), at)
        gap = values.unsqueeze(-1) - values.unsqueeze(-2)
        mean_slope = 0.5 * (slope.unsqueeze(-1) + slope.unsqueeze(-2))
        same = gap.abs() < 1e-7 * values.amax()
        kernel = torch.where(
            same,
            mean_slope,
            (fv.unsqueeze(-1) - fv.unsqueeze(-2)) / torch.where(same, 1.0, gap),
        )
        inner = vectors.mT @ (0.5 * (dw + dw.mT)) @ vectors
        return vectors @ (kernel * inner) @ vectors.mT

    return gradient


@pytest.fixture
def assert_gradcheck() -> Callable[..., None]:
    """First and second derivatives of a root, in reverse, forward and batched mode, by finite
    differences around a covariance; the argument is symmetrized: a root is defined there only.
    """

    def check(root, sigma: Tensor) -> None:
        def of_symmetric(a: Tensor) -> Tensor:
            return root(0.5 * (a + a.mT))

        sigma = sigma.detach().requires_grad_()
        assert torch.autograd.gradcheck(
            of_symmetric, sigma, check_forward_ad=True, check_batched_grad=True
        )
        assert torch.autograd.gradgradcheck(
            of_symmetric, sigma, check_fwd_over_rev=True, check_batched_grad=True
        )

    return check
