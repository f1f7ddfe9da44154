"""Polar: minimax coefficients, as many as were asked for, and full whitening by them."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from isonorm.roots import polar
from isonorm.roots.polar import (
    CUSHION,
    DEFAULT_STEPS,
    SPECTRAL_BOUND,
    Polar,
    cubic_steps,
    minimax_steps,
)
from isonorm.roots.recurrence import Step

#: How much wider than needed a step's interval may be: room for rounding at its upper end.
MARGIN = 1e-2

#: "The Polar Express" (Amsel et al. 2025), Algorithm 1, lines 4 to 7 of its list: the steps before
#: them answer another interval than the exact one.
PUBLISHED = [
    (3.3184196573706015, -2.488488024314874, 0.51004894012372),
    (2.300652019954817, -1.6689039845747493, 0.4188073119525673),
    (1.891301407787398, -1.2679958271945868, 0.37680408948524835),
    (1.8750014808534479, -1.2500016453999487, 0.3750001645474248),
]


def value(step: tuple[float, float, float], x: float) -> float:
    a, b, c = step
    return a * x + b * x**3 + c * x**5


def extrema(step: tuple[float, float, float]) -> tuple[float, float]:
    """Where p′ = a + 3bx² + 5cx⁴ vanishes."""
    a, b, c = step
    spread = (9 * b * b - 20 * a * c) ** 0.5
    return ((-3 * b - spread) / (10 * c)) ** 0.5, ((-3 * b + spread) / (10 * c)) ** 0.5


def bisect(step: tuple[float, float, float], target: float, low: float, high: float) -> float:
    """The x in [low, high] with p(x) = target, for a p that increases there."""
    for _ in range(200):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if value(step, middle) < target else (low, middle)
    return low


def interval(step: tuple[float, float, float]) -> tuple[float, float]:
    """The widest interval on which |1 − p| stays within the error p has at its own extrema."""
    q, r = extrema(step)
    error = value(step, q) - 1
    return bisect(step, 1 - error, 0.0, q), bisect(step, 1 + error, r, 2 * r)


@pytest.mark.parametrize("bound", [0.25, 1e-2, 1e-4, SPECTRAL_BOUND, 1e-10])
def test_each_step_equioscillates_on_its_interval(bound):
    """Four alternating errors of equal size make an odd quintic the closest to 1 (Chebyshev); the
    interval is all that the step before leaves, so that the composition is optimal too.
    """
    low, high = bound**0.5, 1.0
    for step in minimax_steps(8, bound, cushion=0):
        if (
            high - low < 1e-3
        ):  # the error, its cube, is beyond float64: the Taylor polynomial is left
            assert tuple(step) == pytest.approx((1.875, -1.25, 0.375), abs=1e-4)
            break
        q, r = extrema(step)
        error = value(step, q) - 1
        assert error > 0
        assert value(step, r) == pytest.approx(1 - error, abs=1e-9)
        own_low, own_high = interval(step)
        assert own_low < q < r < own_high
        # the interval covers what the step before leaves, and hardly more
        assert own_low <= low * (1 + 1e-7)
        assert high * (1 - 1e-7) <= own_high <= high * (1 + MARGIN)
        assert value(step, own_low) == pytest.approx(1 - error, abs=1e-9)
        assert value(step, own_high) == pytest.approx(1 + error, abs=1e-9)
        low, high = value(step, low), 1 + error


def test_no_quintic_comes_closer_to_one():
    """A dense oracle for the first step: on a grid of its interval, moving any coefficient any way
    makes the worst error larger.
    """
    (step,) = minimax_steps(1, bound=0.01, cushion=0)
    x = torch.linspace(*interval(step), 2001, dtype=torch.float64)
    powers = torch.stack([x, x**3, x**5], dim=-1)
    coefficients = torch.tensor(step, dtype=torch.float64)
    best = (1 - powers @ coefficients).abs().amax()
    moves = torch.randn(3, 500, dtype=torch.float64) * torch.logspace(-5, 0, 500)
    worse = (1 - powers @ (coefficients.unsqueeze(-1) + moves)).abs().amax(0)
    assert (worse >= best - 1e-9).all()


def test_steps_are_those_of_the_polar_express():
    low, high = interval(PUBLISHED[0])
    first, *later = minimax_steps(4, bound=(low / high) ** 2, cushion=0)
    a, b, c = PUBLISHED[0]
    # ours starts at the upper end 1, theirs at 2 − low
    assert tuple(first) == pytest.approx((a * high, b * high**3, c * high**5), rel=MARGIN)
    for ours, theirs in zip(later, PUBLISHED[1:], strict=True):
        assert tuple(ours) == pytest.approx(theirs, rel=MARGIN)


def composition(values: Tensor, steps: tuple[Step, ...]) -> Tensor:
    """P(λ): the factor by which the steps stretch √λ, each as a scalar polynomial."""
    x = values.sqrt()
    for a, b, c in steps:
        x = a * x + b * x**3 + c * x**5
    return x / values.sqrt()


def test_cubic_steps_arrive_in_float32_from_the_bound_on():
    values = torch.logspace(-6, 0, 2001, dtype=torch.float64)
    whitened = values.sqrt() * composition(values, cubic_steps())
    assert (whitened - 1).abs().max() < 1e-6


def test_no_cubic_comes_closer_to_one():
    low, high = 0.3, 1.0
    a, b, _ = polar._closest_cubic(low, high)
    x = torch.linspace(low, high, 2001, dtype=torch.float64)
    powers, coefficients = torch.stack([x, x**3], dim=-1), torch.tensor([a, b]).double()
    best = (1 - powers @ coefficients).abs().amax()
    moves = torch.randn(2, 500, dtype=torch.float64) * torch.logspace(-5, 0, 500)
    worse = (1 - powers @ (coefficients.unsqueeze(-1) + moves)).abs().amax(0)
    assert (worse >= best - 1e-6).all()


@pytest.mark.parametrize("condition", [1, 1e2, 1e4])
@pytest.mark.parametrize("d", [2, 16, 64])
def test_cubic_steps_solve_a_lyapunov_equation(d, condition):
    """As the kernels do it, in float32: S is the root of Σ/‖Σ‖_F."""
    values = torch.logspace(0, -math.log10(condition), d, dtype=torch.float64)
    roots = (values / values.norm()).sqrt()
    q, _ = torch.linalg.qr(torch.randn(d, d, dtype=torch.float64))
    direction = torch.randn(d, d, dtype=torch.float64)
    direction = direction + direction.mT
    exact = q @ ((q.mT @ direction @ q) / (roots[:, None] + roots)) @ q.mT
    s, e = ((q * roots) @ q.mT).float(), direction.float()
    for a, b, _ in cubic_steps():
        t = s @ e
        x = 0.5 * a * e + b * s @ (t - 0.5 * t.mT)
        s, e = s @ (a * torch.eye(d) + b * s @ s), x + x.mT
    assert (e / 2 - exact).abs().max() < 1e-5 * exact.abs().max()


def lowest(cushion: float) -> float:
    """How far down steps throw singular values that began at a tenth of the largest or above."""
    x = torch.linspace(0.1, 1, 10_001, dtype=torch.float64)
    found = []
    for a, b, c in minimax_steps(DEFAULT_STEPS, cushion=cushion):
        x = a * x + b * x**3 + c * x**5
        found.append(x.min().item())
    return min(found)


def test_the_cushion_keeps_large_eigenvalues_from_falling():
    assert lowest(cushion=0) < 0.01 < 0.1 < lowest(CUSHION)


def test_eight_steps_whiten_everything_above_the_bound():
    values = torch.logspace(-6, 0, 10_001, dtype=torch.float64)
    whitened = composition(values, minimax_steps(DEFAULT_STEPS)) * values.sqrt()
    assert (whitened - 1).abs().max() < 1e-9


def test_more_steps_never_whiten_less():
    values = torch.logspace(-6, 0, 10_001, dtype=torch.float64)
    errors = [
        (composition(values, minimax_steps(n)) * values.sqrt() - 1).abs().max().item()
        for n in range(1, 13)
    ]
    assert errors[0] > 0.9
    assert all(after < before + 1e-9 for before, after in pairwise(errors))


@pytest.mark.parametrize("num_iters", [1, 2, 3, 5, 8, 9, 20])
def test_requested_steps_are_the_steps_taken(num_iters, rotated):
    sigma = 3.0 * rotated(torch.logspace(0, -2, 6, dtype=torch.float64).expand(2, 6))
    root = Polar(num_iters)
    assert len(root.steps) == num_iters
    values, vectors = torch.linalg.eigh(sigma)
    scale = torch.linalg.matrix_norm(sigma)[:, None]
    p = composition(values / scale, minimax_steps(num_iters)) / scale.sqrt()
    expected = (vectors * p.unsqueeze(-2)) @ vectors.mT
    torch.testing.assert_close(root(sigma), expected, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(root.forward(sigma)[0], expected, rtol=1e-9, atol=1e-9)


TOLERANCE = {torch.float32: 2e-3, torch.float64: 1e-8}


@pytest.mark.parametrize("d", [2, 16, 64, 256])
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_whitens_condition_1e4(d, dtype, spectrum, samples, whiteness):
    x = samples(spectrum(d), 4 * d).to(dtype)
    x = x - x.mean(-1, keepdim=True)
    w = Polar()((x @ x.mT / x.shape[-1]).unsqueeze(0))[0]
    assert whiteness(w @ x) < TOLERANCE[dtype]


def test_is_zca(rotated):
    sigma = rotated(torch.logspace(0, -3, 8, dtype=torch.float64).unsqueeze(0))
    values, vectors = torch.linalg.eigh(sigma)
    expected = (vectors / values.sqrt().unsqueeze(-2)) @ vectors.mT
    torch.testing.assert_close(Polar()(sigma), expected, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("scale", [1e-24, 1e24], ids=["scale 1e-24", "scale 1e24"])
def test_the_scale_of_the_covariance_does_not_matter(scale, rotated):
    """Their squares have no place in float32; the Frobenius norm must not need them."""
    sigma = rotated(torch.logspace(0, -2, 8, dtype=torch.float64).unsqueeze(0)).float()
    torch.testing.assert_close(
        Polar()(sigma * scale) * scale**0.5, Polar()(sigma), rtol=1e-3, atol=1e-3
    )


SINGULAR = {
    "fewer samples than features": lambda: torch.randn(64, 2),
    "duplicated features": lambda: torch.randn(1, 32).repeat(64, 1),
    "all but one duplicated": lambda: torch.cat(
        [torch.randn(1, 32), torch.randn(1, 32).repeat(63, 1)]
    ),
    "dead features": lambda: torch.cat([torch.randn(4, 64), torch.zeros(60, 64)]),
}


@pytest.mark.parametrize("make", SINGULAR.values(), ids=SINGULAR.keys())
@pytest.mark.parametrize("num_iters", [DEFAULT_STEPS, 12, 50])
def test_singular_covariances_stay_finite(make, num_iters, explicit_gradient):
    """One eigenvalue at the very top of the interval, or many that rounding makes negative."""
    root = Polar(num_iters)
    for _ in range(8):
        x = 1e3 * make()
        x = x - x.mean(-1, keepdim=True)
        sigma = (x @ x.mT / x.shape[-1]).unsqueeze(0)
        assert int((~root(sigma).isfinite()).sum()) == 0
        gradient = explicit_gradient(root, sigma, torch.randn_like(sigma))
        assert int((~gradient.isfinite()).sum()) == 0


@pytest.mark.parametrize("num_iters", [1, 4, DEFAULT_STEPS])
def test_derivative_is_the_divided_difference(
    num_iters, rotated, autograd_gradient, explicit_gradient, spectral_gradient
):
    """Daleckii–Krein for Σ_N → P, then the chain rule through s = ‖Σ‖_F; with repeated
    eigenvalues.
    """
    sigma = 2.0 * rotated(torch.tensor([[1.0, 0.5, 0.5, 0.1, 0.02]], dtype=torch.float64))
    dw = torch.randn_like(sigma)
    root = Polar(num_iters)
    got = explicit_gradient(root, sigma, dw)

    s = torch.linalg.matrix_norm(sigma)[:, None, None]
    sigma_n = sigma / s
    dsigma_n = spectral_gradient(
        lambda values: composition(values, minimax_steps(num_iters)), sigma_n, dw / s.sqrt()
    )
    along_scale = (dsigma_n * sigma_n).sum() + 0.5 * (dw * root(sigma)).sum()
    expected = (dsigma_n - along_scale * sigma_n) / s
    torch.testing.assert_close(got, expected, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(got, autograd_gradient(root, sigma, dw), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("num_iters", [1, 3, DEFAULT_STEPS])
def test_gradcheck(num_iters, rotated, assert_gradcheck):
    sigma = rotated(torch.tensor([[1.0, 0.5, 0.1], [0.7, 0.7, 0.2]], dtype=torch.float64))
    assert_gradcheck(Polar(num_iters), sigma)


@pytest.mark.parametrize(("d", "m", "scale"), [(16, 8, 1.0), (64, 32, 1.0), (64, 8, 1e3)])
def test_float32_derivative_with_fewer_samples_than_features(d, m, scale, explicit_gradient):
    """The null directions of Σ have W of about ε^(-1/2), and derivatives of its cube."""
    samples = scale * torch.randn(d, m, dtype=torch.float64)
    sigma = (samples @ samples.mT / m + 1e-5 * torch.eye(d, dtype=torch.float64)).unsqueeze(0)
    dw = torch.randn_like(sigma)
    root = Polar()
    expected = explicit_gradient(root, sigma.float().double(), dw.float().double())
    found = explicit_gradient(root, sigma.float(), dw.float())
    torch.testing.assert_close(
        found.double(), expected, rtol=1e-5, atol=1e-5 * expected.abs().max()
    )


def test_coefficients_do_not_need_a_device(monkeypatch):
    monkeypatch.setattr(polar, "_minimax_steps", polar._minimax_steps.__wrapped__)
    with torch.device("meta"):
        assert Polar(5).steps == minimax_steps(5)
