"""What every whitening promises, over inputs that hypothesis chooses."""

from __future__ import annotations

from itertools import pairwise

import hypothesis.strategies as st
import torch
from hypothesis import given, settings
from torch import Tensor

from isonorm import area as areas
from isonorm import operation as operations
from isonorm.functional import normalize

EXACT_METHODS = ("zca", "polar", "cholesky", "pca")
EXACT = st.sampled_from(EXACT_METHODS)
#: Whitenings that treat all channels alike.
SYMMETRIC = st.sampled_from(["newton", "zca", "polar"])
SEEDS = st.integers(0, 2**16)


@st.composite
def samples(draw, max_condition: float = 1e4) -> Tensor:
    """(N, C, S) float64 input with a covariance of bounded condition, more samples than channels,
    any mean and scale.
    """
    torch.manual_seed(draw(SEEDS))
    c = draw(st.integers(1, 12))
    condition = draw(st.floats(1, max_condition))
    n, s = draw(st.sampled_from([(4 * c + 4, 1), (8, 2 * c + 1), (2 * c + 2, 3)]))
    q = torch.linalg.qr(torch.randn(c, c, dtype=torch.float64)).Q
    deviations = condition ** torch.linspace(0, -0.5, c, dtype=torch.float64)
    x = (q * deviations) @ torch.randn(n, c, s, dtype=torch.float64)
    scale = 10 ** draw(st.floats(-3, 3))
    return scale * (x + draw(st.sampled_from([0.0, 1.0, 1e3])))


def whitened(x: Tensor, method: str, num_iters: int | None = None, **options) -> Tensor:
    operation = operations.whiten(method, num_iters)
    options = {"area": areas.batch(), "eps": 0.0} | options
    return normalize(x, operation=operation, **options)[0]


def covariance(y: Tensor) -> Tensor:
    return torch.cov(y.transpose(0, 1).flatten(1), correction=0).reshape(y.shape[1], y.shape[1])


def relative_error(got: Tensor, expected: Tensor) -> float:
    return ((got - expected).norm() / expected.norm()).item()


@settings(max_examples=60)
@given(x=samples(), method=EXACT)
def test_outputs_are_white(x, method):
    y = whitened(x, method)
    d = x.shape[1]
    assert (covariance(y) - torch.eye(d, dtype=torch.float64)).norm() / d**0.5 < 1e-8
    assert y.mean((0, 2)).abs().max() < 1e-8


@settings(max_examples=60)
@given(x=samples(), method=EXACT)
def test_float32_outputs_are_white(x, method):
    """At means of the order of the deviations; a mean of 1e3 costs the digits it takes up."""
    x = (x - x.mean((0, 2), keepdim=True)).float()
    d = x.shape[1]
    error = covariance(whitened(x, method).double()) - torch.eye(d, dtype=torch.float64)
    assert error.norm() / d**0.5 < 2e-3


@settings(max_examples=60)
@given(x=samples(), method=SYMMETRIC, seed=SEEDS)
def test_permuting_channels_permutes_outputs(x, method, seed):
    """Within a group: two groups of the same channels, each permuted by itself."""
    c = x.shape[1]
    generator = torch.Generator().manual_seed(seed)
    within = torch.cat([torch.randperm(c, generator=generator) + start for start in (0, c)])
    twice = torch.cat([x, 2 * x.flip(0)], dim=1)
    y = whitened(twice, method, area=areas.batch(c))
    permuted = whitened(twice[:, within], method, area=areas.batch(c))
    assert relative_error(permuted, y[:, within]) < 1e-7


@settings(max_examples=40)
@given(x=samples(), seed=SEEDS)
def test_cholesky_depends_on_the_channels_before_alone(x, seed):
    """Channel i is decorrelated from those before it: cutting later ones off changes nothing."""
    kept = 1 + seed % x.shape[1]
    y = whitened(x, "cholesky")
    assert relative_error(whitened(x[:, :kept], "cholesky"), y[:, :kept]) < 1e-7


@settings(max_examples=40)
@given(x=samples(max_condition=100))
def test_iter_norm_becomes_zca(x):
    """Each step brings it closer, until it is there."""
    exact = whitened(x, "zca")
    errors = [relative_error(whitened(x, "newton", t), exact) for t in (0, 1, 2, 4, 8, 16, 32)]
    assert all(after <= before + 1e-9 for before, after in pairwise(errors))
    assert errors[-1] < 1e-8


@settings(max_examples=60)
@given(
    x=samples(),
    method=st.sampled_from(["newton", *EXACT_METHODS]),
    scale=st.floats(1e-3, 1e3),
    shift=st.floats(-10, 10),
)
def test_scale_and_shift_do_not_matter(x, method, scale, shift):
    """One factor for all channels, one shift for each."""
    shifts = shift * torch.linspace(-1, 1, x.shape[1], dtype=torch.float64)[:, None] * x.std()
    assert relative_error(whitened(scale * x + shifts, method), whitened(x, method)) < 1e-6


@settings(max_examples=40)
@given(x=samples(), method=st.sampled_from(["zca", "polar"]), seed=SEEDS)
def test_rotating_the_input_rotates_the_output(x, method, seed):
    """ZCA moves the data least, wherever the axes are: W(QΣQᵀ) = Q·W(Σ)·Qᵀ."""
    torch.manual_seed(seed)
    q = torch.linalg.qr(torch.randn(x.shape[1], x.shape[1], dtype=torch.float64)).Q
    assert relative_error(whitened(q @ x, method), q @ whitened(x, method)) < 1e-6


@settings(max_examples=40)
@given(x=samples(), seed=SEEDS)
def test_exact_whitenings_differ_by_a_rotation(x, seed):
    first, second = (EXACT_METHODS[(seed + i) % 4] for i in (0, 1 + seed % 3))
    a, b = (whitened(x, m).transpose(0, 1).flatten(1) for m in (first, second))
    rotation = a @ b.mT / a.shape[1]
    eye = torch.eye(x.shape[1], dtype=torch.float64)
    assert (rotation @ rotation.mT - eye).abs().max() < 1e-6


@settings(max_examples=40)
@given(x=samples(), method=st.sampled_from(["newton", *EXACT_METHODS]), seed=SEEDS)
def test_the_order_of_samples_does_not_matter(x, method, seed):
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    assert relative_error(whitened(x[order], method), whitened(x, method)[order]) < 1e-7
