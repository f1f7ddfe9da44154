"""``Whitener``: judged by scikit-learn's PCA and by numpy's covariance and linear algebra."""

from __future__ import annotations

import copy
import io

import numpy
import pytest
import torch
from sklearn.covariance import ShrunkCovariance
from sklearn.decomposition import PCA
from torch import Tensor

import isonorm
from isonorm import Whitener
from isonorm.roots import own

D, N = 6, 400
METHODS = ["zca", "pca", "cholesky", "polar"]


@pytest.fixture
def x() -> Tensor:
    """Samples with a condition number of about 1e4, far from zero."""
    mixed = torch.linalg.qr(torch.randn(D, D, dtype=torch.float64)).Q
    scales = torch.logspace(0, -2, D, dtype=torch.float64)
    return torch.randn(N, D, dtype=torch.float64) * scales @ mixed + 5


def fitted(x: Tensor, *arguments, **options) -> Whitener:
    whitener = Whitener(D, *arguments, **options)
    for part in x.split([1, 0, 7, 150, len(x) - 158]):
        whitener.update(part)
    return whitener


@pytest.mark.parametrize("shift", [0.0, 1e6])
def test_one_pass_gives_the_moments_of_all_samples(shift, x):
    x = x + shift
    whitener = fitted(x)
    deviations = x - x.mean(0)
    expected = deviations.T @ deviations / (N - 1)
    assert whitener.count == N
    torch.testing.assert_close(whitener.mean, x.mean(0), rtol=1e-14, atol=0)
    torch.testing.assert_close(whitener.covariance, expected, rtol=1e-7, atol=1e-9)
    if not shift:
        theirs = torch.from_numpy(numpy.cov(x.numpy().T))
        torch.testing.assert_close(whitener.covariance, theirs, rtol=1e-10, atol=1e-12)


def test_pca_is_scikit_learns(x):
    theirs = PCA(whiten=True).fit(x.numpy())
    whitener = fitted(x, "pca")
    new = torch.randn(20, D, dtype=torch.float64) + 5
    signs = numpy.sign(theirs.components_[:, :1])  # ours: each first loading positive
    expected = torch.from_numpy(theirs.transform(new.numpy()) * signs.T)
    torch.testing.assert_close(whitener.transform(new), expected, rtol=1e-8, atol=1e-8)
    back = torch.from_numpy(theirs.inverse_transform(expected.numpy() * signs.T))
    torch.testing.assert_close(whitener.inverse(expected), back, rtol=1e-8, atol=1e-8)


def test_zca_and_cholesky_are_dense_linear_algebra(x):
    cov = numpy.cov(x.numpy().T)
    values, vectors = numpy.linalg.eigh(cov)
    zca = vectors / numpy.sqrt(values) @ vectors.T
    lower = numpy.linalg.inv(numpy.linalg.cholesky(cov))
    for method, expected in (("zca", zca), ("polar", zca), ("cholesky", lower)):
        found = fitted(x, method).matrix
        torch.testing.assert_close(found, torch.from_numpy(expected), rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("method", METHODS)
def test_whitens_and_undoes_it(method, x):
    whitener = fitted(x, method)
    z = whitener.transform(x)
    torch.testing.assert_close(z.T.cov(), torch.eye(D).double(), rtol=0, atol=1e-8)
    torch.testing.assert_close(whitener.inverse(z), x, rtol=1e-9, atol=1e-9)
    assert torch.equal(whitener(x), z)
    tokens = x.view(20, 20, D)
    torch.testing.assert_close(whitener(tokens), z.view(20, 20, D))


@pytest.mark.parametrize("method", METHODS)
def test_float32_loses_nothing_to_a_large_mean(method, x):
    x = (x.float() + 1000).double()
    whitener = fitted(x.float(), method)
    z = whitener.transform(x.float())
    assert z.dtype == torch.float32
    expected = fitted(x, method).transform(x)
    torch.testing.assert_close(z.double(), expected, rtol=1e-5, atol=1e-5)


def test_shrinkage_eps_and_max_condition(x):
    cov = torch.from_numpy(numpy.cov(x.numpy().T))
    eye = torch.eye(D, dtype=torch.float64)
    cases = {
        ("shrinkage", 0.1): 0.9 * cov + 0.1 * eye,
        ("eps", 0.02): cov + 0.02 * eye,
    }
    for (name, value), expected in cases.items():
        w = fitted(x, **{name: value}).matrix
        torch.testing.assert_close(w @ expected @ w.T, eye, rtol=0, atol=1e-9)
    scaled = x / torch.trace(cov).div(D).sqrt()  # there scikit-learn shrinks towards I, too
    theirs = ShrunkCovariance(shrinkage=0.1).fit(scaled.numpy()).covariance_
    w = fitted(scaled, shrinkage=0.1).matrix
    unbiased = torch.from_numpy(theirs) * N / (N - 1)
    torch.testing.assert_close(w @ unbiased @ w.T, eye, rtol=0, atol=1e-9)
    for method in METHODS:
        w = fitted(x, method, max_condition=50.0).matrix
        assert torch.linalg.cond(w) == pytest.approx(50**0.5, rel=1e-6)
        largest = torch.linalg.eigvalsh(w @ cov @ w.T)[-1]
        assert largest == pytest.approx(1, rel=1e-6)


def test_singular_covariances_stay_finite():
    few = torch.randn(3, D, dtype=torch.float64)
    dead = torch.randn(50, D, dtype=torch.float64)
    dead[:, 2] = 7.0
    for x in (few, dead, 1e-8 * few, 1e8 * dead, few[:1].expand(9, D) * torch.arange(9)[:, None]):
        for method in METHODS:
            whitener = Whitener(D, method).update(x)
            assert whitener.transform(x).isfinite().all() and whitener.matrix.isfinite().all()


def test_as_a_linear_layer(x):
    whitener = fitted(x)
    linear = whitener.to_linear(torch.float64)
    torch.testing.assert_close(linear(x), whitener(x), rtol=1e-9, atol=1e-9)
    assert whitener.to_linear().weight.dtype == torch.float32
    assert type(linear) is torch.nn.Linear and linear.weight.requires_grad


def test_transform_is_differentiable(x):
    whitener = fitted(x)
    samples = x[:4].clone().requires_grad_()
    assert torch.autograd.gradcheck(whitener.transform, samples)
    assert torch.autograd.gradcheck(whitener.inverse, samples)


def test_state_casts_and_copies_keep_the_fit(x):
    whitener = fitted(x)
    before = whitener(x)
    other = Whitener(D)
    assert set(whitener.state_dict()) == {"count", "sample_mean", "sample_cov"}
    other.update(torch.randn(9, D))
    other(x)  # W of other samples
    other.load_state_dict(whitener.state_dict())
    saved = io.BytesIO()
    torch.save(whitener, saved)
    saved.seek(0)
    twins = [other, copy.deepcopy(whitener), torch.load(saved, weights_only=False)]
    twins.append(torch.nn.Sequential(whitener).half()[0])  # type: ignore[arg-type]
    for twin in twins:
        assert twin.covariance.dtype == torch.float64
        torch.testing.assert_close(twin(x), before, rtol=0, atol=0)
    more = torch.randn(30, D, dtype=torch.float64)
    expected = torch.from_numpy(numpy.cov(torch.cat([x, more]).numpy().T))
    torch.testing.assert_close(other.update(more).covariance, expected, rtol=1e-10, atol=1e-12)
    assert not torch.equal(other(x), before)


def test_a_registered_root(x, monkeypatch):
    monkeypatch.setattr(own, "_REGISTERED", {})
    isonorm.register_root("diagonal", lambda s: torch.diag_embed(s.diagonal(0, 1, 2).rsqrt()))
    z = fitted(x, "diagonal").transform(x)
    torch.testing.assert_close(z.std(0), torch.ones(D).double())


def test_repr_says_what_differs_from_the_defaults(x):
    assert repr(fitted(x)) == "Whitener(6, method='zca', count=400)"
    made = Whitener(3, "pca", 0.1, eps=1e-3, max_condition=10)
    assert repr(made) == (
        "Whitener(3, method='pca', shrinkage=0.1, eps=0.001, max_condition=10, count=0)"
    )


def test_a_refused_update_adds_nothing(x):
    whitener = fitted(x)
    before = whitener.covariance
    x[300, 2] = float("nan")
    for wrong, error, words in (
        (x, ValueError, "NaN or infinity"),
        (torch.ones(3, D + 1), ValueError, r"\(…, 6\).*got torch.float32 of shape \(3, 7\)"),
        (torch.ones(3, D).int(), ValueError, "torch.int32"),
        ([1.0], TypeError, "got list"),
    ):
        with pytest.raises(error, match=words):
            whitener.update(wrong)
    assert whitener.count == N and torch.equal(whitener.covariance, before)


WRONG = {
    "unfitted": (lambda: Whitener(3).transform(torch.ones(2, 3)), RuntimeError, "0 samples"),
    "one": (lambda: Whitener(3).update(torch.ones(1, 3)).matrix, RuntimeError, "1 samples"),
    "constant": (lambda: Whitener(3).update(torch.ones(9, 3)).matrix, RuntimeError, "constant"),
    "method": (lambda: Whitener(3, "svd"), ValueError, "one of newton.*got 'svd'"),
    "size": (lambda: Whitener(0), ValueError, "positive integer; got 0"),
    "shrinkage": (lambda: Whitener(3, shrinkage=1.5), ValueError, "from 0 to 1; got 1.5"),
    "condition": (lambda: Whitener(3, max_condition=0.5), ValueError, "1 or more; got 0.5"),
    "eps": (lambda: Whitener(3, eps=-1), ValueError, "eps must be a number ≥ 0; got -1"),
}


@pytest.mark.parametrize(("call", "error", "words"), WRONG.values(), ids=WRONG)
def test_wrong_arguments_are_answered_in_one_sentence(call, error, words):
    with pytest.raises(error, match=words):
        call()
