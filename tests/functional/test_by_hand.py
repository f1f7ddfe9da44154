"""``whiten`` and ``statistics``: judged by their formulas in dense float64 linear algebra."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from isonorm import area as areas
from isonorm.functional import normalize, statistics, whiten
from isonorm.operation import whiten as operation_of

CASES = [
    {},
    {"shrinkage": 0.2},
    {"correction": 1, "eps": 0.0},
    {"shrinkage": 0.1, "correction": 2, "eps": 1e-3, "group_size": 4},
    {"dim": "samples", "shrinkage": 0.3, "correction": 1},
]


def by_hand(
    z: Tensor, root, shrinkage=0.0, correction=0, dim="features", eps=1e-5, group_size=None
):
    x = z.T if dim == "samples" else z
    parts = []
    for group in x.split(group_size or x.shape[1], dim=1):
        centered = group - group.mean(0)
        cov = centered.T @ centered / (len(x) - correction)
        eye = torch.eye(len(cov), dtype=z.dtype)
        parts.append(centered @ root((1 - shrinkage) * cov + (shrinkage + eps) * eye).T)
    y = torch.cat(parts, dim=1)
    return y.T if dim == "samples" else y


def zca(cov: Tensor) -> Tensor:
    values, vectors = torch.linalg.eigh(cov)
    return vectors / values.sqrt() @ vectors.T


def lower(cov: Tensor) -> Tensor:
    return torch.linalg.inv(torch.linalg.cholesky(cov))


@pytest.mark.parametrize("options", CASES, ids=str)
@pytest.mark.parametrize(("method", "root"), [("zca", zca), ("cholesky", lower)])
def test_whiten_is_its_formula(options, method, root):
    z = torch.randn(9, 6).double() if "dim" not in options else torch.randn(6, 20).double()
    found = []
    for call in (
        lambda z: whiten(z, method=method, **options),
        lambda z: by_hand(z, root, **options),
    ):
        leaf = z.clone().requires_grad_()
        y = call(leaf)
        cotangent = torch.randn(y.shape, generator=torch.Generator().manual_seed(1)).double()
        found.append((y, torch.autograd.grad(y, leaf, cotangent)[0]))
    torch.testing.assert_close(found[0], found[1], rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("options", CASES[:4], ids=str)
def test_whiten_of_positions_and_of_sixteen_bits(options):
    z = torch.randn(5, 6, 4, 3).double()
    rows = z.transpose(0, 1).flatten(1).T
    expected = by_hand(rows, zca, **options).T.unflatten(1, (5, 4, 3)).transpose(0, 1)
    torch.testing.assert_close(whiten(z, **options), expected, rtol=1e-7, atol=1e-7)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = whiten(z.bfloat16(), **options)
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y.double(), expected, rtol=0, atol=0.05)


AREAS = ["batch", areas.batch(4), "instance", "layer", areas.group(3), areas.batch_group(2)]


@pytest.mark.parametrize("area", AREAS, ids=str)
@pytest.mark.parametrize("name", [None, "standardize", "scale"])
def test_statistics_are_those_of_normalize(area, name):
    x = torch.randn(5, 6, 7).double()
    own = statistics(x, area, operation=name)
    whitens = name is None and areas.resolve(area).whitens
    operation = operation_of("zca") if whitens else (name or "standardize")
    y, expected = normalize(x, area=area, operation=operation)
    assert own.count == expected.count
    torch.testing.assert_close(own[1:], expected[1:], rtol=1e-10, atol=1e-10)
    again, _ = normalize(x, area=area, operation=operation, statistics=own)
    torch.testing.assert_close(again, y, rtol=1e-8, atol=1e-8)


def test_statistics_are_differentiable():
    x = torch.randn(4, 3, 2).double().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: statistics(x, areas.batch(2))[1:], x)


WRONG = [
    ({"dim": "channels"}, "'features' or 'samples'; got 'channels'"),
    ({"shrinkage": 1.0}, "from 0 to below 1; got 1.0"),
    ({"correction": 9}, "below the 9 samples; got 9"),
    ({"correction": True}, "got True"),
    ({"method": "svd"}, "got 'svd'"),
    ({"eps": -1}, "eps must be a number"),
]


@pytest.mark.parametrize(("options", "words"), WRONG, ids=str)
def test_wrong_options_are_answered_in_one_sentence(options, words):
    with pytest.raises(ValueError, match=words):
        whiten(torch.randn(9, 3), **options)


def test_an_empty_batch_stays_empty():
    assert whiten(torch.randn(0, 3), shrinkage=0.1).shape == (0, 3)


def test_what_else_is_refused():
    with pytest.raises(ValueError, match=r"takes \(N, C\); got shape \(2, 3, 4\)"):
        whiten(torch.randn(2, 3, 4), dim="samples")
    with pytest.raises(ValueError, match=r"center\(\) is not made of means"):
        statistics(torch.randn(9, 3), operation="center")
