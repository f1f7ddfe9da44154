"""Operations: their transforms against dense linear algebra, and what they refuse."""

from __future__ import annotations

from math import inf, log, pi

import pytest
import torch

from isonorm import operation as operations
from isonorm.operation import Operation, add_eps, resolve
from isonorm.roots import METHODS


@pytest.fixture
def cov() -> torch.Tensor:
    """Two problems of four features, eigenvalues well apart."""
    x = torch.randn(2, 4, 50, dtype=torch.float64)
    return x @ x.mT / 50


@pytest.mark.parametrize("method", [method for method in METHODS if method != "newton"])
def test_whitening_transforms_whiten(method, cov):
    w = operations.whiten(method).transform(cov, eps=0.0)
    eye = torch.eye(4, dtype=torch.float64).expand(2, 4, 4)
    torch.testing.assert_close(w @ cov @ w.mT, eye, rtol=0, atol=1e-9)


@pytest.mark.parametrize("method", METHODS)
def test_eps_joins_the_diagonal(method, cov):
    operation = operations.whiten(method)
    shifted = cov + 0.1 * torch.eye(4, dtype=torch.float64)
    torch.testing.assert_close(add_eps(cov, 0.1), shifted)
    torch.testing.assert_close(operation.transform(cov, 0.1), operation.transform(shifted, 0.0))


STEPS = [("newton", 0), ("newton", 5), ("polar", 1), ("polar", 8), ("zca", None), ("pca", None)]


@pytest.mark.parametrize(("method", "steps"), STEPS, ids=lambda value: str(value))
def test_one_feature_is_standardized_by_every_method_and_any_number_of_steps(method, steps):
    variance = torch.tensor([[[4.0]], [[1e-8]], [[0.0]]], dtype=torch.float64)
    w = operations.whiten(method, steps).transform(variance, eps=1e-5)
    torch.testing.assert_close(w, (variance + 1e-5).rsqrt())


def test_scalar_operations_divide_by_the_deviation():
    variance = torch.tensor([[[4.0]], [[0.25]]])
    torch.testing.assert_close(
        operations.standardize().transform(variance, 0.0), torch.tensor([[[0.5]], [[2.0]]])
    )
    torch.testing.assert_close(
        operations.scale().transform(variance, 0.0), torch.tensor([[[0.5]], [[2.0]]])
    )
    torch.testing.assert_close(
        operations.center().transform(variance, 0.0), torch.ones_like(variance)
    )


def test_spread_is_the_norm_it_names():
    x = torch.tensor([[[-3.0, 1.0, 2.0, 0.0]]], dtype=torch.float64)
    one, two, maximum = (operations.standardize(p).spread(x, (-1,)) for p in (1, 2, inf))
    assert two.item() == pytest.approx(14 / 4)
    assert one.item() == pytest.approx((6 / 4) ** 2 * pi / 2)
    # Hoffer et al. 2018: C∞ = (1 + √(π ln 4))/√(8 ln n), here n = 4
    assert maximum.item() == pytest.approx((3 * (1 + (pi * log(4)) ** 0.5)) ** 2 / (8 * log(4)))


@pytest.mark.parametrize(("p", "low", "high"), [(1, 0.99, 1.01), (2, 0.99, 1.01), (inf, 1, 1.6)])
def test_spread_is_the_variance_of_gaussian_samples(p, low, high):
    """For p = ∞ as nearly as the paper's closed form, the mean of two bounds a factor 2.1 apart."""
    x = 3.0 * torch.randn(400, 1000, dtype=torch.float64)
    deviation = operations.standardize(p).spread(x, (-1,)).sqrt().mean()
    assert 3.0 * low < deviation.item() < 3.0 * high


def test_spread_runs_over_several_axes():
    x = torch.randn(3, 4, 5, dtype=torch.float64)
    for p in (1, 2, inf):
        operation = operations.standardize(p)
        torch.testing.assert_close(
            operation.spread(x, (0, 2)).flatten(),
            operation.spread(x.transpose(0, 1).flatten(1), (1,)).flatten(),
        )


def test_operations_say_what_they_are():
    assert operations.whiten().is_matrix and not operations.standardize().is_matrix
    quadratic = [
        operations.whiten("pca"),
        operations.standardize(),
        operations.scale(),
    ]
    other = [operations.center(), operations.standardize(1), operations.standardize(inf)]
    assert all(operation.is_quadratic for operation in quadratic)
    assert not any(operation.is_quadratic for operation in other)


def test_operations_compare_and_print_as_they_were_called():
    assert operations.whiten("newton", 7) == operations.whiten("newton", 7)
    assert operations.whiten("newton", 7) != operations.whiten("newton", 8)
    made = [
        operations.whiten("newton", 7),
        operations.whiten("zca"),
        operations.standardize(),
        operations.standardize(inf),
        operations.center(),
    ]
    assert list(map(repr, made)) == [
        "whiten('newton', num_iters=7)",
        "whiten('zca')",
        "standardize(p=2)",
        "standardize(p=inf)",
        "center()",
    ]


def test_defaults_are_the_papers():
    assert operations.whiten().root.num_iters == 5  # type: ignore[union-attr]
    assert operations.whiten("newton", 3).root.num_iters == 3  # type: ignore[union-attr]
    assert operations.whiten("polar", 4).root.num_iters == 4  # type: ignore[union-attr]


def test_resolve_takes_a_name_or_an_operation():
    assert resolve("whiten") == operations.whiten("newton")
    assert resolve("scale") == operations.scale()
    assert isinstance(resolve(operations.standardize(1)), Operation)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: operations.whiten("svd"), "one of newton, polar.*got 'svd'"),
        (lambda: operations.whiten("zca", 5), "'zca' does not iterate"),
        (lambda: operations.whiten("newton", -1), "integer from 0 to 100; got -1"),
        (lambda: operations.whiten("newton", 101), "integer from 0 to 100; got 101"),
        (lambda: operations.whiten("newton", 5.0), "integer from 0 to 100; got 5.0"),
        (lambda: operations.whiten("newton", True), "integer from 0 to 100; got True"),
        (lambda: operations.whiten("polar", 0), "integer from 1 to 100; got 0"),
        (lambda: operations.standardize(3), "p = 1, 2 or math.inf; got p=3"),
        (lambda: resolve("whitening"), "one of center, scale.*got 'whitening'"),
        (lambda: resolve(None), "got None"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_wrong_arguments_are_explained(call, message):
    with pytest.raises(ValueError, match=message):
        call()
