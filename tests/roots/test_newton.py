"""IterNorm's root against Eq. 3–5 and the paper's own backward pass, and far past convergence."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from isonorm.roots.newton import Newton, reference


def paper(sigma: Tensor, num_iters: int) -> list[Tensor]:
    """P_0 … P_T of Eq. 3 on Σ_N (Eq. 4), the uncoupled iteration."""
    sigma_n = sigma / sigma.diagonal(dim1=-2, dim2=-1).sum(-1)[:, None, None]
    p = [torch.eye(sigma.shape[-1], dtype=sigma.dtype).expand_as(sigma)]
    for _ in range(num_iters):
        p.append(0.5 * (3 * p[-1] - torch.linalg.matrix_power(p[-1], 3) @ sigma_n))
    return p


def paper_root(sigma: Tensor, num_iters: int) -> Tensor:
    """Eq. 5."""
    tr = sigma.diagonal(dim1=-2, dim2=-1).sum(-1)[:, None, None]
    return paper(sigma, num_iters)[-1] / tr.sqrt()


def paper_gradient(sigma: Tensor, dw: Tensor, num_iters: int) -> Tensor:
    """(∂L/∂Σ)_s by the supplement's Eq. 12–14."""
    tr = sigma.diagonal(dim1=-2, dim2=-1).sum(-1)[:, None, None]
    sigma_n, p = sigma / tr, paper(sigma, num_iters)
    dp = dw / tr.sqrt()
    dsigma_n = torch.zeros_like(sigma)
    for k in range(num_iters, 0, -1):
        before = p[k - 1]
        square = before @ before
        dsigma_n = dsigma_n - 0.5 * (square @ before).mT @ dp
        dp = 1.5 * dp - 0.5 * (
            dp @ (square @ sigma_n).mT
            + square.mT @ dp @ sigma_n.mT
            + before.mT @ dp @ (before @ sigma_n).mT
        )
    trace_of = lambda a, b: (a * b).sum((-2, -1), keepdim=True)  # noqa: E731
    eye = torch.eye(sigma.shape[-1], dtype=sigma.dtype)
    dsigma = (
        dsigma_n / tr
        - trace_of(dsigma_n, sigma) / tr**2 * eye
        - trace_of(dw, p[-1]) / (2 * tr**1.5) * eye
    )
    return 0.5 * (dsigma + dsigma.mT)


def on_eigenvalues(values: Tensor, num_iters: int) -> Tensor:
    """Eq. 3–5 on the eigenvalues, where everything is a number and nothing fails to commute."""
    normalized, p = values / values.sum(-1, keepdim=True), torch.ones_like(values)
    for _ in range(num_iters):
        p = 0.5 * (3 * p - p**3 * normalized)
    return p / values.sum(-1, keepdim=True).sqrt()


def relative_error(got: Tensor, expected: Tensor) -> float:
    return ((got - expected).norm() / expected.norm()).item()


def count_nonfinite(t: Tensor) -> int:
    return int((~t.isfinite()).sum())


@pytest.mark.parametrize("num_iters", range(8))
def test_equals_the_paper(num_iters, spectrum, rotated):
    sigma = 3.0 * rotated(torch.stack([spectrum(12), torch.linspace(0.2, 1, 12).double()]))
    expected = paper_root(sigma, num_iters)
    root = Newton(num_iters)
    assert relative_error(root(sigma), expected) < 1e-11
    assert relative_error(root.forward(sigma)[0], expected) < 1e-11
    assert relative_error(reference(sigma, num_iters), expected) < 1e-11


@pytest.mark.parametrize("d", [1, 2, 7, 64])
def test_equals_the_recurrence_on_the_eigenvalues_for_every_t(d, rotated):
    """Where rounding of Σ itself is not amplified beyond 1e-12 (condition 10)."""
    values = torch.logspace(0, -1, d, dtype=torch.float64).unsqueeze(0)
    sigma = rotated(values)
    exact, vectors = torch.linalg.eigh(sigma)
    for num_iters in range(51):
        expected = (vectors * on_eigenvalues(exact, num_iters).unsqueeze(-2)) @ vectors.mT
        assert relative_error(Newton(num_iters)(sigma), expected) < 1e-12, num_iters


def test_equals_the_recurrence_on_diagonal_matrices_of_any_condition(spectrum):
    """A diagonal Σ has its eigenvalues exactly, so that condition 1e4 leaves 1e-12 within reach."""
    values = spectrum(64).unsqueeze(0)
    for num_iters in range(51):
        got = Newton(num_iters)(torch.diag_embed(values)).diagonal(dim1=-2, dim2=-1)
        torch.testing.assert_close(got, on_eigenvalues(values, num_iters), rtol=1e-12, atol=0)


@pytest.mark.parametrize("num_iters", [12, 50])
def test_past_convergence_float32_stays_at_the_root(num_iters, spectrum, rotated):
    """The uncoupled form diverges here; the coupled one keeps its distance from float64.

    In float32 Σ has lost 6e-8 of its norm, 6e-4 of its smallest eigenvalue.
    """
    sigma = rotated(spectrum(64).unsqueeze(0))
    w = Newton(num_iters)(sigma.float())
    assert count_nonfinite(w) == 0
    assert relative_error(w.double(), Newton(num_iters)(sigma)) < 5e-3


SINGULAR = {
    "fewer samples than features": lambda: torch.randn(64, 2),
    "duplicated features": lambda: torch.randn(1, 64).repeat(256, 1),
    "dead features": lambda: torch.cat([torch.randn(4, 64), torch.zeros(60, 64)]),
}


@pytest.mark.parametrize("make", SINGULAR.values(), ids=SINGULAR.keys())
@pytest.mark.parametrize("num_iters", [5, 50, 100])
def test_singular_covariances_stay_finite(make, num_iters, explicit_gradient):
    """Rounding makes some of their zero eigenvalues negative, which Newton steps push away."""
    x = 1e3 * make()
    x = x - x.mean(-1, keepdim=True)
    sigma = (x @ x.mT / x.shape[-1]).unsqueeze(0)
    root = Newton(num_iters)
    assert count_nonfinite(root(sigma)) == 0
    assert count_nonfinite(explicit_gradient(root, sigma, torch.randn_like(sigma))) == 0


def test_no_steps_divide_by_the_root_of_the_trace(rotated):
    sigma = rotated(torch.rand(3, 5, dtype=torch.float64) + 0.1)
    trace = torch.stack([torch.trace(s) for s in sigma])
    expected = torch.eye(5, dtype=torch.float64) / trace.sqrt()[:, None, None]
    torch.testing.assert_close(Newton(0)(sigma), expected)
    torch.testing.assert_close(Newton(0).forward(sigma)[0], expected)


def test_many_steps_are_zca(rotated):
    sigma = rotated(torch.logspace(0, -2, 8, dtype=torch.float64).unsqueeze(0))
    values, vectors = torch.linalg.eigh(sigma)
    expected = (vectors / values.sqrt().unsqueeze(-2)) @ vectors.mT
    torch.testing.assert_close(Newton(30)(sigma), expected, rtol=1e-10, atol=1e-10)


def test_white_input_of_64_features_keeps_variance_059_after_5_steps():
    """T steps are not full whitening: the trace shares its unit among 64 eigenvalues."""
    sigma = torch.eye(64, dtype=torch.float64).unsqueeze(0)
    w = Newton(5)(sigma)
    torch.testing.assert_close(w @ sigma @ w.mT, 0.59 * sigma, atol=5e-3, rtol=0)


@pytest.mark.parametrize("num_iters", [0, 1, 2, 5, 7])
def test_derivative_is_the_papers(num_iters, rotated, autograd_gradient, explicit_gradient):
    sigma = 2.0 * rotated(torch.logspace(0, -2, 6, dtype=torch.float64).expand(2, 6))
    dw = torch.randn_like(sigma)
    root = Newton(num_iters)
    got = explicit_gradient(root, sigma, dw)
    assert relative_error(got, paper_gradient(sigma, dw, num_iters)) < 1e-11
    assert relative_error(got, autograd_gradient(root, sigma, dw)) < 1e-11
    plain = autograd_gradient(lambda s: paper_root(s, num_iters), sigma, dw)
    assert relative_error(got, plain) < 1e-11


def test_derivative_at_repeated_eigenvalues(rotated, spectral_gradient, explicit_gradient):
    """Daleckii–Krein for Σ_N → P, then Eq. 12 for the trace."""
    sigma = rotated(torch.tensor([[0.5, 0.5, 0.2, 0.2, 0.2, 0.05]], dtype=torch.float64))
    dw, tr = torch.randn_like(sigma), torch.tensor(1.65, dtype=torch.float64)

    def polynomial(values: Tensor) -> Tensor:
        p = torch.ones_like(values)
        for _ in range(5):
            p = 0.5 * (3 * p - p**3 * values)
        return p

    dsigma_n = spectral_gradient(polynomial, sigma / tr, dw / tr.sqrt())
    along_trace = (dsigma_n * sigma / tr).sum() + 0.5 * (dw * paper_root(sigma, 5)).sum()
    expected = (dsigma_n - along_trace * torch.eye(6, dtype=torch.float64)) / tr
    assert relative_error(explicit_gradient(Newton(5), sigma, dw), expected) < 1e-12


@pytest.mark.parametrize("num_iters", [0, 1, 5])
def test_gradcheck(num_iters, rotated, assert_gradcheck):
    sigma = rotated(torch.tensor([[1.0, 0.5, 0.1], [0.7, 0.7, 0.2]], dtype=torch.float64))
    assert_gradcheck(Newton(num_iters), sigma)


@pytest.mark.parametrize("small", [1e-8, 1e-5])
def test_more_steps_never_whiten_less(small):
    """One direction dominates: ‖Z − I‖ cannot show the progress of the others."""
    sigma = torch.diag(torch.tensor([1.0, small, small, small])).unsqueeze(0)
    stretched = [Newton(t)(sigma)[0, 1, 1].item() for t in (1, 5, 13, 14, 15, 20, 40, 100)]
    assert stretched == sorted(stretched)
    assert stretched[-1] == pytest.approx(small**-0.5, rel=1e-3)
