"""The fixed map of given statistics, as layers have it in eval."""

from __future__ import annotations

import pytest
import torch

from isonorm import area as areas
from isonorm import operation as operations
from isonorm.functional import apply_transform, normalize
from isonorm.recovery import Affine
from isonorm.roots import METHODS
from isonorm.statistics import Statistics
from tests.functional.helpers import WHITENING, correlated, double


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("area", WHITENING.values(), ids=WHITENING.keys())
def test_its_own_statistics_given_back_give_the_same_output(area, method, backend):
    x = correlated(3, 8, 4, 5).detach()
    operation = operations.whiten(method)
    y, statistics = normalize(x, area=area, operation=operation)
    again, same = normalize(x, area=area, operation=operation, statistics=statistics)
    torch.testing.assert_close(again, y, rtol=1e-9, atol=1e-9)
    assert torch.equal(same.cov, statistics.cov)


def test_given_statistics_make_a_fixed_map(backend):
    """As in eval: one row does not depend on the others, and the gradient is the map's own."""
    x = correlated(6, 3)
    mean, cov = torch.zeros(1, 3).double(), 4 * torch.eye(3).double().unsqueeze(0)
    y, _ = normalize(
        x,
        area="batch",
        operation=operations.whiten("zca"),
        statistics=Statistics(100, mean, cov),
        eps=0.0,
    )
    torch.testing.assert_close(y, x / 2)
    torch.testing.assert_close(torch.autograd.grad(y, x, torch.ones_like(y))[0], 0 * x + 0.5)


def test_given_statistics_accept_a_single_value():
    statistics = Statistics(100, torch.zeros(1, 3), torch.eye(3).unsqueeze(0))
    y, _ = normalize(
        torch.ones(1, 3), area="batch", operation="whiten", statistics=statistics, eps=0.0
    )
    assert y.shape == (1, 3)


@pytest.mark.parametrize("method", METHODS)
def test_apply_transform_is_what_normalize_did(method):
    """The eval map: W and μ given, with a remainder group and a recovery."""
    x, affine = correlated(5, 7, 3).detach(), Affine(double(7).detach(), double(7).detach())
    area, operation = areas.batch(3), operations.whiten(method)
    y, statistics = normalize(x, area=area, operation=operation, recovery=affine)
    w = torch.eye(3, dtype=torch.float64).repeat(3, 1, 1)
    w[:2] = operation.transform(statistics.cov[:2], 1e-5)
    w[2, :1, :1] = operation.transform(statistics.cov[2:, :1, :1], 1e-5)[0]
    again = apply_transform(x, w, statistics.mean, affine, area)
    torch.testing.assert_close(again, y, rtol=1e-9, atol=1e-9)


def test_statistics_of_another_dtype_are_promoted():
    x = torch.randn(8, 6, dtype=torch.float64)
    _, statistics = normalize(x, area="batch", operation="whiten")
    narrow = Statistics(8, statistics.mean.float(), statistics.cov.float())
    expected, _ = normalize(x, area="batch", operation="whiten", statistics=statistics)
    found, _ = normalize(x, area="batch", operation="whiten", statistics=narrow)
    assert found.dtype == torch.float64
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("wide", ["the input", "what is given"])
def test_a_map_is_applied_in_the_wider_precision(wide):
    mean, w = torch.full((1, 4), 1e4).double() + torch.rand(1, 4), torch.randn(1, 4, 4).double()
    x = torch.randn(8, 4).double() + 1e4
    if wide == "the input":
        mean, w = mean.float(), w.float()
    else:
        x = x.float()
    area, none = areas.batch(), Affine(None, None)
    found = apply_transform(x, w, mean, none, area)
    expected = apply_transform(x.double(), w.double(), mean.double(), none, area)
    assert found.dtype == x.dtype
    torch.testing.assert_close(found, expected.to(x.dtype), rtol=1e-6, atol=1e-6)


def test_given_statistics_keep_their_precision():
    x = torch.randn(8, 6, dtype=torch.float64)
    _, statistics = normalize(x, area="batch", operation="whiten")
    found, same = normalize(x.float(), area="batch", operation="whiten", statistics=statistics)
    assert found.dtype == torch.float32 and torch.equal(same.cov, statistics.cov)
