"""Whitening, against plain dense code and by the covariance of its output."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import isonorm
from isonorm import area as areas
from isonorm import operation as operations
from isonorm.area import Area
from isonorm.functional import dbn, iter_norm, normalize
from isonorm.recovery import Affine
from isonorm.roots import METHODS
from tests.functional.helpers import WHITENING, correlated, double, gradients
from tests.kernels.paths import needs_native_code


def plain_problems(area: Area, x: Tensor) -> list[tuple[tuple, Tensor]]:
    """The (d, m) matrices of an (N, C, S) input, with the index of what each was cut from: groups
    of full size first, then the shorter last ones.
    """
    n, c, _ = x.shape
    if area.name == "group":
        k = area.num_groups or 1
        return [((i,), x[i].reshape(k, -1)) for i in range(n)]
    g = area.group_size or c
    cuts = [slice(start, min(start + g, c)) for start in range(0, c, g)]
    if area.name == "instance":
        full, rest = cuts[: c // g], cuts[c // g :]
        places = [(i, cut) for part in (full, rest) for i in range(n) for cut in part]
        return [(place, x[place]) for place in places]
    return [((slice(None), cut), x[:, cut].transpose(0, 1).flatten(1)) for cut in cuts]


def plain_whiten(problem: Tensor, method: str, eps: float) -> Tensor:
    """W(x − μ) of one (d, m) matrix by torch.linalg alone."""
    centered = problem - problem.mean(-1, keepdim=True)
    sigma = centered @ centered.mT / problem.shape[-1] + eps * torch.eye(len(problem)).double()
    if method == "cholesky":
        return torch.linalg.solve_triangular(torch.linalg.cholesky(sigma), centered, upper=False)
    if method == "newton":  # IterNorm Eq. 3–5
        trace, p = torch.trace(sigma), torch.eye(len(problem)).double()
        for _ in range(5):
            p = 0.5 * (3 * p - p @ p @ p @ sigma / trace)
        return p @ centered / trace.sqrt()
    values, vectors = torch.linalg.eigh(sigma)
    vectors = vectors * vectors[:1].sign()
    pca = (vectors / values.sqrt()).flip(-1).mT
    return pca @ centered if method == "pca" else (vectors / values.sqrt()) @ vectors.mT @ centered


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("area", WHITENING.values(), ids=WHITENING.keys())
def test_whitening_is_that_of_every_problem_by_itself(area, method, backend):
    x = correlated(3, 8, 4, 5)
    y, statistics = normalize(x, area=area, operation=operations.whiten(method), eps=1e-3)
    expected = torch.empty_like(x.flatten(2))
    for b, (index, problem) in enumerate(plain_problems(area, x.flatten(2))):
        d = len(problem)
        white = plain_whiten(problem, method, 1e-3)
        expected[index] = (
            white.view(d, len(x), -1).transpose(0, 1)
            if area.name == "batch"
            else white.reshape_as(expected[index])
        )
        torch.testing.assert_close(statistics.mean[b, :d], problem.mean(-1))
        torch.testing.assert_close(statistics.cov[b, :d, :d], torch.cov(problem, correction=0))
    assert statistics.count == problem.shape[-1]
    torch.testing.assert_close(y, expected.view_as(x), rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(
        gradients(y, (x,))[0], gradients(expected.view_as(x), (x,))[0], rtol=1e-6, atol=1e-8
    )


TOLERANCE = {torch.float32: 2e-3, torch.float64: 1e-8}


@pytest.mark.parametrize("method", ["zca", "polar", "cholesky", "pca"])
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_whitened_output_is_white(method, dtype, backend):
    """Condition 1e4 in two groups of 32 channels, mean 3."""
    white = torch.randn(400, 64, dtype=torch.float64)
    mix = torch.linalg.qr(torch.randn(2, 32, 32, dtype=torch.float64)).Q
    mix = mix * torch.logspace(0, -2, 32, dtype=torch.float64)
    x = (torch.block_diag(*mix) @ white.mT).mT.to(dtype) + 3
    y, _ = normalize(x, area=areas.batch(32), operation=operations.whiten(method), eps=0.0)
    for group in y.double().split(32, dim=1):
        error = torch.cov(group.mT, correction=0) - torch.eye(32, dtype=torch.float64)
        assert error.norm() / 32**0.5 < TOLERANCE[dtype]


def hard(m: int, d: int) -> Tensor:
    """m samples of d features in float32, with condition 1e4."""
    white = torch.randn(m, d, dtype=torch.float64)
    white = torch.linalg.qr(white - white.mean(0)).Q * m**0.5
    rotation = torch.linalg.qr(torch.randn(d, d, dtype=torch.float64)).Q
    return (white * torch.logspace(0, -2, d, dtype=torch.float64) @ rotation.mT).float()


#: Sums so long that how they are added decides: of few features, of many, and in one example.
LONG = {
    "2 of 100352": (100352, 2, 1),
    "3 of 100352": (100352, 3, 1),
    "11 of 100352": (100352, 11, 1),
    "8 of 4 examples": (25000, 8, 4),
    "2 of 512": (512, 2, 1),
    "16 of 2 long examples": (400000, 16, 2),
}


@pytest.mark.parametrize(
    "name", ["reference", "torch", pytest.param("native", marks=needs_native_code)]
)
@pytest.mark.parametrize("layout", ["rows", "columns"])
@pytest.mark.parametrize(("m", "d", "examples"), LONG.values(), ids=LONG.keys())
def test_many_samples_are_added_without_loss(m, d, examples, layout, name):
    """The errors of Σ are magnified by its condition: they must stay below 2e-7."""
    x = hard(m, d).view(examples, -1, d).transpose(1, 2)
    with isonorm.backend(name):
        assert distance_from_white(x.contiguous() if layout == "rows" else x) < 1e-3


def distance_from_white(x: Tensor) -> float:
    """‖cov(y) − I‖/√d of exactly whitened (n, d, s) samples."""
    y, _ = normalize(x, area="batch", operation=operations.whiten("zca"), eps=0.0)
    white, d = y.double().transpose(0, 1).flatten(1), x.shape[1]
    error = torch.cov(white, correction=0) - torch.eye(d, dtype=torch.float64, device=x.device)
    return error.norm().item() / d**0.5


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["auto", "torch", "reference"])
@pytest.mark.parametrize("layout", ["rows", "columns"])
@pytest.mark.parametrize("d", [2, 17, 64, 128])
def test_many_samples_are_added_without_loss_on_a_gpu(d, layout, name):
    """By kernels up to 64 features, and by products in batches."""
    x = hard(100352, d).view(4, -1, d).transpose(1, 2).cuda()
    with isonorm.backend(name):
        assert distance_from_white(x.contiguous() if layout == "rows" else x) < 1.5e-3


def test_iter_norm_and_dbn_are_compositions():
    x, weight, bias = correlated(8, 5, 3), double(5), double(5)
    affine = Affine(weight, bias)
    y, statistics = iter_norm(x, group_size=2, num_iters=3, eps=1e-2, weight=weight, bias=bias)
    operation = operations.whiten("newton", 3)
    expected, same = normalize(
        x, area=areas.batch(2), operation=operation, recovery=affine, eps=1e-2
    )
    assert torch.equal(y, expected) and torch.equal(statistics.cov, same.cov)
    for method, steps in (("zca", None), ("cholesky", None), ("polar", 3)):
        y, _ = dbn(x, group_size=2, method=method, num_iters=steps, weight=weight, bias=bias)
        operation = operations.whiten(method, steps)
        expected, _ = normalize(x, area=areas.batch(2), operation=operation, recovery=affine)
        assert torch.equal(y, expected)
