"""Cholesky: torch's factorization as oracle, and covariances it would refuse."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from isonorm.roots.cholesky import Cholesky

TOLERANCE = {torch.float32: 2e-3, torch.float64: 1e-8}


def inverse_factor(sigma: Tensor) -> Tensor:
    """L^(-1) with torch's own derivatives."""
    return torch.linalg.inv(torch.linalg.cholesky(sigma))


@pytest.mark.parametrize("d", [1, 2, 16, 64, 256])
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_whitens_condition_1e4(d, dtype, spectrum, samples, whiteness):
    x = samples(spectrum(d), 4 * d + 4).to(dtype)
    x = x - x.mean(-1, keepdim=True)
    w = Cholesky()((x @ x.mT / x.shape[-1]).unsqueeze(0))[0]
    assert whiteness(w @ x) < TOLERANCE[dtype]


def test_is_the_inverse_of_torchs_factor(spectrum, rotated):
    sigma = 3.0 * rotated(torch.stack([spectrum(8), torch.linspace(0.1, 1, 8).double()]))
    expected = inverse_factor(sigma)
    assert ((Cholesky()(sigma) - expected).norm() / expected.norm()) < 1e-10
    w, memo = Cholesky().forward(sigma)
    assert torch.equal(w, Cholesky()(sigma))
    assert memo.shape == Cholesky().memo_shape(2, 8)


def test_is_lower_triangular_with_a_positive_diagonal(rotated):
    w = Cholesky()(rotated(torch.rand(3, 6, dtype=torch.float64) + 0.1))
    assert torch.equal(w, w.tril())
    assert (w.diagonal(dim1=-2, dim2=-1) > 0).all()


def test_derivative_is_that_of_torchs_factor(rotated, autograd_gradient, explicit_gradient):
    sigma = rotated(torch.tensor([[1.0, 0.6, 0.3, 0.1], [0.5, 0.5, 0.5, 0.1]]).double())
    dw = torch.randn_like(sigma)
    expected = autograd_gradient(inverse_factor, sigma, dw)
    root = Cholesky()
    torch.testing.assert_close(explicit_gradient(root, sigma, dw), expected, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(autograd_gradient(root, sigma, dw), expected, rtol=1e-10, atol=1e-10)


def test_second_derivative_is_that_of_torchs_factor(rotated):
    sigma = rotated(torch.tensor([[1.0, 0.6, 0.3]], dtype=torch.float64))
    dw, direction = torch.randn_like(sigma), torch.randn_like(sigma)

    def second(function) -> Tensor:
        a = sigma.clone().requires_grad_()
        (first,) = torch.autograd.grad(function(0.5 * (a + a.mT)), a, dw, create_graph=True)
        return torch.autograd.grad(first, a, direction)[0]

    torch.testing.assert_close(second(Cholesky()), second(inverse_factor), rtol=1e-9, atol=1e-9)


def test_gradcheck(rotated, assert_gradcheck):
    sigma = rotated(torch.tensor([[1.0, 0.5, 0.2], [0.7, 0.7, 0.3]], dtype=torch.float64))
    assert_gradcheck(Cholesky(), sigma)


SINGULAR = {
    "all features the same": lambda: torch.randn(1, 100).repeat(64, 1),
    "fewer samples than features": lambda: torch.randn(64, 3),
    "duplicated features": lambda: torch.randn(8, 100).repeat(8, 1),
    "dead features": lambda: torch.cat([torch.randn(4, 64), torch.zeros(60, 64)]),
    "rank two of 256": lambda: torch.randn(256, 2) @ torch.randn(2, 500),
}


@pytest.mark.parametrize("scale", [1.0, 1e6], ids=["scale 1", "scale 1e6"])
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("make", SINGULAR.values(), ids=SINGULAR.keys())
def test_singular_covariances_factor(make, dtype, scale, explicit_gradient, autograd_gradient):
    x = scale * make().to(dtype)
    x = x - x.mean(-1, keepdim=True)
    sigma = (x @ x.mT / x.shape[-1]).unsqueeze(0)
    root, dw = Cholesky(), torch.randn_like(sigma)
    w = root(sigma)
    assert int((~w.isfinite()).sum()) == 0
    assert (w.diagonal(dim1=-2, dim2=-1) > 0).all()
    assert int((~explicit_gradient(root, sigma, dw).isfinite()).sum()) == 0
    assert int((~autograd_gradient(root, sigma, dw).isfinite()).sum()) == 0


def test_one_singular_problem_leaves_the_others_exact(rotated):
    sigma = rotated(torch.rand(3, 4, dtype=torch.float64) + 0.5)
    sigma[1] = 1.0
    w = Cholesky()(sigma)
    torch.testing.assert_close(w[[0, 2]], inverse_factor(sigma[[0, 2]]), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("bad", ["nan", "inf"])
def test_a_broken_covariance_does_not_raise(bad):
    sigma = torch.eye(4).repeat(2, 1, 1)
    sigma[1, 2, 2] = float(bad)
    w = Cholesky()(sigma)
    torch.testing.assert_close(w[0], torch.eye(4))
    assert not w[1].isfinite().all()
