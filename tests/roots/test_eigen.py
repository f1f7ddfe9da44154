"""ZCA and PCA: dense float64 linear algebra as oracle, repeated eigenvalues included."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from isonorm.roots.eigen import PCA, ZCA

TOLERANCE = {torch.float32: 2e-3, torch.float64: 1e-8}


@pytest.fixture(params=[ZCA, PCA], ids=["zca", "pca"])
def root(request) -> ZCA | PCA:
    return request.param()


@pytest.mark.parametrize("d", [1, 2, 16, 64, 256])
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_whitens_condition_1e4(root, d, dtype, spectrum, samples, whiteness):
    x = samples(spectrum(d), 4 * d + 4).to(dtype)
    x = x - x.mean(-1, keepdim=True)
    w = root((x @ x.mT / x.shape[-1]).unsqueeze(0))[0]
    assert whiteness(w @ x) < TOLERANCE[dtype]


def test_forward_is_the_call(root, rotated):
    sigma = rotated(torch.rand(3, 5, dtype=torch.float64) + 0.1)
    w, memo = root.forward(sigma)
    torch.testing.assert_close(w, root(sigma), rtol=0, atol=0)
    assert memo.shape == root.memo_shape(3, 5)


def test_zca_is_the_symmetric_positive_root(spectrum, rotated):
    """These three properties leave one matrix: Σ^(-1/2)."""
    sigma = rotated(spectrum(12).unsqueeze(0))
    w = ZCA()(sigma)
    eye = torch.eye(12, dtype=torch.float64).unsqueeze(0)
    torch.testing.assert_close(w, w.mT, rtol=1e-12, atol=1e-10)
    assert torch.linalg.eigvalsh(w).min() > 0
    torch.testing.assert_close(w @ sigma @ w, eye, rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    "values",
    [[1.0, 0.6, 0.3, 0.1], [0.5, 0.5, 0.5, 0.5], [1.0, 1.0, 0.01, 0.01], [1.0, 1e-2, 1e-4, 1e-4]],
    ids=["distinct", "all equal", "two pairs", "small pair"],
)
def test_zca_derivative_solves_the_lyapunov_equation(
    values, rotated, autograd_gradient, explicit_gradient
):
    """⟨dΣ, E⟩ = ⟨dW, −W·X·W⟩ with S·X + X·S = E, solved densely as (S⊗I + I⊗S) vec X = vec E."""
    sigma = rotated(torch.tensor([values], dtype=torch.float64))
    d = len(values)
    dw = torch.randn_like(sigma)
    w = torch.linalg.inv(_square_root(sigma))
    eye = torch.eye(d, dtype=torch.float64)
    s = _square_root(sigma)[0]
    system = torch.kron(s, eye) + torch.kron(eye, s)
    expected = torch.zeros_like(sigma)
    for i in range(d):
        for j in range(d):
            e = torch.zeros(d, d, dtype=torch.float64)
            e[i, j] += 0.5
            e[j, i] += 0.5
            x = torch.linalg.solve(system, e.reshape(-1)).view(d, d)
            expected[0, i, j] = -(dw[0] * (w[0] @ x @ w[0])).sum()
    size = expected.norm()
    assert (explicit_gradient(ZCA(), sigma, dw) - expected).norm() / size < 1e-10
    assert (autograd_gradient(ZCA(), sigma, dw) - expected).norm() / size < 1e-10


def _square_root(sigma: Tensor) -> Tensor:
    """Σ^(1/2) by the Denman–Beavers iteration: no eigenvectors."""
    y, z = sigma, torch.eye(sigma.shape[-1], dtype=sigma.dtype).expand_as(sigma)
    for _ in range(30):
        y, z = 0.5 * (y + torch.linalg.inv(z)), 0.5 * (z + torch.linalg.inv(y))
    return y


def test_zca_derivative_is_daleckii_krein(
    spectrum, rotated, spectral_gradient, autograd_gradient, explicit_gradient
):
    sigma = rotated(spectrum(10).unsqueeze(0))
    dw = torch.randn_like(sigma)
    expected = spectral_gradient(torch.rsqrt, sigma, dw)
    size = expected.norm()
    assert (explicit_gradient(ZCA(), sigma, dw) - expected).norm() / size < 1e-7
    assert (autograd_gradient(ZCA(), sigma, dw) - expected).norm() / size < 1e-7


@pytest.mark.parametrize(
    "values",
    [[1.0, 0.5, 0.2], [0.7, 0.7, 0.7], [1.0, 1.0, 0.3]],
    ids=["distinct", "all equal", "a pair"],
)
def test_zca_gradcheck(values, rotated, assert_gradcheck):
    assert_gradcheck(ZCA(), rotated(torch.tensor([values], dtype=torch.float64)))


def test_pca_orders_eigenvalues_downwards_and_fixes_signs(rotated):
    """DBN Section 3.1: rows of W are eigenvectors, largest eigenvalue first, first element
    positive.
    """
    values = torch.tensor([[1.0, 0.6, 0.3, 0.1]], dtype=torch.float64)
    sigma = rotated(values)
    w = PCA()(sigma)
    directions = w * values.sqrt().unsqueeze(-1)
    torch.testing.assert_close(sigma @ directions.mT, directions.mT * values.unsqueeze(-2))
    assert (w[..., 0] > 0).all()


def _pca_by_autograd(sigma: Tensor) -> Tensor:
    """PCA differentiated through torch's own eigenvectors."""
    values, vectors = torch.linalg.eigh(sigma)
    vectors = vectors * vectors[..., :1, :].sign()
    return (vectors / values.sqrt().unsqueeze(-2)).flip(-1).mT


def test_pca_derivative_is_that_of_the_eigenvectors(rotated, autograd_gradient, explicit_gradient):
    sigma = rotated(torch.tensor([[1.0, 0.6, 0.3, 0.1]] * 3, dtype=torch.float64))
    dw = torch.randn_like(sigma)
    expected = autograd_gradient(_pca_by_autograd, sigma, dw)
    torch.testing.assert_close(explicit_gradient(PCA(), sigma, dw), expected, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(autograd_gradient(PCA(), sigma, dw), expected, rtol=1e-9, atol=1e-9)


def test_pca_gradcheck(rotated, assert_gradcheck):
    sigma = rotated(torch.tensor([[1.0, 0.5, 0.2], [0.9, 0.3, 0.6]], dtype=torch.float64))
    assert_gradcheck(PCA(), sigma)


def test_pca_drops_the_rotation_between_equal_eigenvalues(explicit_gradient, autograd_gradient):
    """What is left is the derivative of the lengths: dΣ = −½ Wᵀ diag(dW·Wᵀ) W."""
    sigma = 0.5 * torch.eye(4, dtype=torch.float64).unsqueeze(0)
    dw = torch.randn_like(sigma)
    w = PCA()(sigma)
    lengths = torch.diag_embed((dw @ w.mT).diagonal(dim1=-2, dim2=-1))
    expected = -0.5 * w.mT @ lengths @ w
    torch.testing.assert_close(explicit_gradient(PCA(), sigma, dw), expected)
    torch.testing.assert_close(autograd_gradient(PCA(), sigma, dw), expected)


HARD = {
    "zero": lambda: torch.zeros(1, 4, 4),
    "rank one": lambda: torch.ones(1, 4, 4),
    "identity": lambda: torch.eye(4).unsqueeze(0),
    "slightly indefinite": lambda: torch.diag(torch.tensor([1.0, 0.5, 1e-9, -1e-8])).unsqueeze(0),
    "NaN": lambda: torch.full((1, 4, 4), float("nan")),
    "infinite": lambda: torch.full((1, 4, 4), float("inf")),
}


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("make", HARD.values(), ids=HARD.keys())
def test_no_matrix_raises(root, make, dtype, explicit_gradient, autograd_gradient):
    sigma = make().to(dtype)
    finite = sigma.isfinite().all() and sigma.any()  # without a scale there is no root
    w = root(sigma)
    assert w.isfinite().all() == finite
    dw = torch.randn_like(sigma)
    for gradient in (explicit_gradient(root, sigma, dw), autograd_gradient(root, sigma, dw)):
        assert gradient.isfinite().all() or not finite


def test_a_broken_problem_leaves_the_others_alone(root, rotated):
    sigma = rotated(torch.rand(3, 4, dtype=torch.float64) + 0.1)
    expected = root(sigma)
    sigma[1, 2, 2] = float("nan")
    w = root(sigma)
    assert w[1].isnan().any()
    torch.testing.assert_close(w[[0, 2]], expected[[0, 2]])
