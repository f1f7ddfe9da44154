"""Statistics as a monoid: merging parts is measuring the whole, far from zero too."""

from __future__ import annotations

from functools import reduce

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

from isonorm import area as areas
from isonorm import synchronization
from isonorm.statistics import (
    Statistics,
    join_matrices,
    join_vectors,
    measure,
    merge,
    split_statistics,
    working_dtype,
)
from isonorm.synchronization import group_name, resolve_group

B, D, M = 3, 4, 90


def samples(dtype=torch.float64, mean: float = 0.0) -> torch.Tensor:
    """(b, d, m) problems with correlated features of different spreads."""
    mix = torch.randn(B, D, D, dtype=torch.float64)
    return (mix @ torch.randn(B, D, M, dtype=torch.float64) + mean).to(dtype)


def split_measure(x: torch.Tensor, sizes: list[int]) -> Statistics:
    return reduce(merge, [measure(part) for part in x.split(sizes, dim=-1)])


def assert_same(left: Statistics, right: Statistics, **tolerance) -> None:
    assert left.count == right.count
    torch.testing.assert_close(left.mean, right.mean, **tolerance)
    torch.testing.assert_close(left.cov, right.cov, **tolerance)


def test_measure_is_torch_cov():
    x = samples(mean=3.0)
    stats = measure(x)
    assert stats.count == M
    torch.testing.assert_close(stats.mean, x.mean(-1))
    for problem, cov, unbiased in zip(x, stats.cov, stats.unbiased_cov(), strict=True):
        torch.testing.assert_close(cov, torch.cov(problem, correction=0))
        torch.testing.assert_close(unbiased, torch.cov(problem, correction=1))


def test_measure_without_centering_is_the_second_moment():
    x = samples(mean=3.0)
    stats = measure(x, center=False)
    assert not stats.mean.any()
    torch.testing.assert_close(stats.cov, torch.einsum("bim,bjm->bij", x, x) / M)


@pytest.mark.parametrize("count", [7, torch.tensor(7.0, dtype=torch.float64)], ids=["int", "rank"])
def test_unbiased_cov_takes_either_kind_of_count(count):
    cov = samples()[..., :D]
    unbiased = Statistics(count, cov[..., 0], cov).unbiased_cov()
    torch.testing.assert_close(unbiased, cov * 7 / 6)


@pytest.mark.parametrize("count", [1, torch.tensor(1.0)], ids=["int", "rank"])
def test_unbiased_cov_of_one_sample_is_finite(count):
    assert Statistics(count, torch.zeros(1, 2), torch.zeros(1, 2, 2)).unbiased_cov().eq(0).all()


SPLITS = {
    "halves": [45, 45],
    "one sample apart": [1, 89],
    "unequal": [2, 7, 81],
    "one by one": [1] * M,
}


@pytest.mark.parametrize("sizes", SPLITS.values(), ids=SPLITS.keys())
def test_parts_merge_to_the_whole(sizes):
    x = samples(mean=3.0)
    assert_same(split_measure(x, sizes), measure(x), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("sizes", SPLITS.values(), ids=SPLITS.keys())
def test_no_cancellation_far_from_zero(sizes):
    """At mean 1e4 a float32 E[x²] − μ² would keep no digit of a variance of 1.

    Rounding x itself moves nothing, as both sides see the same float32 numbers; what is left is the
    rounding of the mean, 1e4 · 2⁻²⁴, whose square is the error of the covariance.
    """
    x = samples(torch.float32, mean=1e4)
    exact = measure(x.double())
    got = split_measure(x, sizes)
    torch.testing.assert_close(got.mean.double(), exact.mean, rtol=1e-6, atol=0)
    scale = exact.cov.diagonal(dim1=-2, dim2=-1).amax(-1)[:, None, None]
    assert ((got.cov.double() - exact.cov).abs() / scale).max() < 2e-4
    naive = torch.einsum("bim,bjm->bij", x, x) / M - x.mean(-1)[..., None] * x.mean(-1)[:, None]
    assert ((naive.double() - exact.cov).abs() / scale).max() > 1e-1


parts = st.lists(st.integers(1, 12), min_size=3, max_size=6)


@settings(max_examples=40)
@given(sizes=parts, mean=st.sampled_from([0.0, 1.0, 1e4]), seed=st.integers(0, 2**16))
def test_merge_is_associative(sizes, mean, seed):
    generator = torch.Generator().manual_seed(seed)
    pieces = [
        measure(torch.randn(2, 3, n, generator=generator, dtype=torch.float64) + mean)
        for n in sizes
    ]
    left = reduce(merge, pieces)
    right = reduce(lambda later, earlier: merge(earlier, later), reversed(pieces))
    assert_same(left, right, rtol=1e-10, atol=1e-10)


@settings(max_examples=40)
@given(n=st.integers(1, 20), m=st.integers(1, 20), seed=st.integers(0, 2**16))
def test_merge_is_commutative(n, m, seed):
    generator = torch.Generator().manual_seed(seed)
    left = measure(torch.randn(2, 3, n, generator=generator, dtype=torch.float64))
    right = measure(torch.randn(2, 3, m, generator=generator, dtype=torch.float64) + 5)
    assert_same(merge(left, right), merge(right, left), rtol=1e-12, atol=1e-12)


def test_nothing_is_the_neutral_element():
    stats = measure(samples())
    nothing = Statistics(0, torch.zeros_like(stats.mean), torch.zeros_like(stats.cov))
    assert_same(merge(nothing, stats), stats)
    assert_same(merge(stats, nothing), stats)
    assert_same(merge(nothing, nothing), nothing)


def test_statistics_are_in_float64_for_float64_only():
    dtypes = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
    working = [working_dtype(torch.empty(0, dtype=dtype)) for dtype in dtypes]
    assert working == [torch.float64, torch.float32, torch.float32, torch.float32]


def test_joined_blocks_split_again():
    """A shorter last group is the leading corner of its matrix; the rest is identity."""
    area = areas.batch(4)  # of 10 channels: two groups of 4, one of 2
    means = [torch.randn(2, 4), torch.randn(1, 2)]
    covs = [torch.randn(2, 4, 4), torch.randn(1, 2, 2)]
    joined = Statistics(5, join_vectors(means), join_matrices(covs))
    assert joined.mean.shape == (3, 4)
    assert torch.equal(joined.mean[2, 2:], torch.zeros(2))
    assert torch.equal(joined.cov[2, 2:], torch.eye(4)[2:])
    assert torch.equal(joined.cov[2, :, 2:], torch.eye(4)[:, 2:])
    for part, mean, cov in zip(split_statistics(joined, area, 5, 10, 1), means, covs, strict=True):
        assert torch.equal(part.mean, mean)
        assert torch.equal(part.cov, cov)


@pytest.mark.parametrize("groups", [1, 2], ids=["too few groups", "no last group"])
def test_statistics_of_another_area_are_refused(groups):
    stats = Statistics(5, torch.zeros(groups, 4), torch.zeros(groups, 4, 4))
    with pytest.raises(ValueError, match=r"do not fit area batch\(group_size=4\).*10 channels"):
        split_statistics(stats, areas.batch(4), 5, 10, 1)


@pytest.mark.parametrize(("d", "size"), [(4, 5), (5, 4)], ids=["covariance", "mean"])
def test_one_of_the_statistics_from_another_area_is_refused(d, size):
    stats = Statistics(5, torch.zeros(3, d), torch.zeros(3, size, size))
    with pytest.raises(ValueError, match="do not fit area"):
        split_statistics(stats, areas.batch(4), 5, 10, 1)


def test_nobody_to_talk_to_without_torch_distributed():
    assert group_name(None) == ""
    assert group_name("world") == "world"
    assert resolve_group("") is None
    assert resolve_group("world") is None


def test_a_wrong_process_group_is_explained():
    with pytest.raises(ValueError, match="process_group must be a torch"):
        group_name(3)  # type: ignore[arg-type]


@pytest.mark.parametrize("sizes", [[M], [30, 41, 19]], ids=["one rank", "three"])
def test_ranks_lose_little_of_float64_far_from_zero(sizes, monkeypatch):
    """Near 3e7 second moments about zero, 1e15 in float64, would be known to a tenth."""
    parts = [measure(x) for x in (samples() + 1e8 / 3).split(sizes, -1)]
    sent: list[list[torch.Tensor]] = []
    monkeypatch.setattr(synchronization, "all_reduce", lambda own, *_: sent.append(own) or own)
    for part in parts:
        synchronization.reduce_across("", [part], centers=True, what="samples")
    total = [torch.stack(each).sum(0) for each in zip(*sent, strict=True)]
    monkeypatch.setattr(synchronization, "all_reduce", lambda own, *_: total)
    (found,) = synchronization.reduce_across("", parts[:1], centers=True, what="samples")
    expected = reduce(merge, parts)
    torch.testing.assert_close(found.mean, expected.mean, rtol=1e-15, atol=0)
    torch.testing.assert_close(found.cov, expected.cov, rtol=1e-6, atol=1e-6)
