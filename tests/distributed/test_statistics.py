"""Shared statistics: how they are summed and sent, of how many values, and where not."""

from __future__ import annotations

from functools import partial

import pytest
import torch

import isonorm
from isonorm.synchronization import FIRST_MESSAGE
from tests.distributed.agreement import FLOAT64, SHARES, assert_agree, make_batches
from tests.distributed.layers import CHANNELS, make
from tests.distributed.ranks import Ranks
from tests.distributed.tasks import (
    buffers,
    count_collectives,
    count_collectives_of_one_group,
    count_collectives_on_a_gpu,
    differentiate_statistics,
    evaluate_alone,
    fit_whitener,
    step,
    train,
    try_forward,
)

pytestmark = pytest.mark.xdist_group("ranks")  # where groups stay together, one set of processes


#: What the gradient of a parameter may be off by near 1e4: the mean's error times the sum of the
#: cotangents, which is 60.
FAR_GRADIENT = 0.08


def test_a_mean_far_from_zero_costs_no_more_than_its_own_rounding(ranks: Ranks) -> None:
    """Judged in float64, with the same numbers. Near 1e4 a float32 mean is known to 1e-3; second
    moments about zero would be known to 8, beside variances near 1.
    """
    whole, shares = make_batches(*SHARES["unequal"], dtype=torch.float32, mean=1e4)
    expected = train([(x.double(), c.double()) for x, c in whole], None)
    results = ranks.run(train, shares, "world")
    judge = partial(assert_agree, results, expected, rtol=1e-5, check_dtype=False)
    judge(parts=("y", "dx"), atol=5e-3)
    judge(parts=("parameters",), atol=FAR_GRADIENT)
    judge(parts=("running_mean",), atol=2e-3)
    judge(parts=("running_cov", "running_whitening"), atol=5e-4)


def test_moments_about_zero_would_be_seen_in_the_gradients() -> None:
    """E[x²] − E[x]² in float32 misses what the test above asks, by far."""
    whole, _ = make_batches(*SHARES["unequal"], dtype=torch.float32, mean=1e4)
    exact = train([(x.double(), c.double()) for x, c in whole], None, ("batchnorm",))
    naive = torch.zeros(CHANNELS)
    for x, cotangent in whole:
        mean, square = (moment.mean((0, 2, 3), keepdim=True) for moment in (x, x.square()))
        y = (x - mean) / ((square - mean.square()).clamp(min=0) + 1e-5).sqrt()
        naive += (y * cotangent).sum((0, 2, 3))
    error = naive - exact["batchnorm, torch"]["parameters"]["weight"]
    assert (error.abs() > 10 * FAR_GRADIENT).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_constant_channels_stay_finite(ranks: Ranks, dtype: torch.dtype) -> None:
    """Their variance is zero however large they are, and a rounding error below zero is fatal."""
    _, shares = make_batches((37, 11), (5, 7), dtype)
    constants = torch.tensor([1e6, 1e5, 3e6, 7e6]) / 3
    for batches in shares:
        for x, _ in batches:
            x[:, 1:5] = constants.to(dtype).view(4, 1, 1)
    for result in ranks.run(train, shares, "world"):
        for what, done in result.items():
            for tensor in (*done["y"], *done["dx"], *done["buffers"].values()):
                assert tensor.isfinite().all(), what


def test_one_collective_each_way_whose_size_is_neither_the_batchs_nor_the_ranks(
    ranks: Ranks,
) -> None:
    message = [8 * FIRST_MESSAGE]
    for sizes, positions in (((2, 3), (2, 2)), ((2, 3, 4), (2, 2)), ((9, 0), (5, 7))):
        for sent in ranks.run(count_collectives, make_batches(sizes, positions)[1]):
            assert all(each == 2 * message for each in sent.values()), sent


def test_of_a_large_layer_the_rest_follows_its_first_message(ranks: Ranks) -> None:
    """The digest is 4 numbers; forward sends a count, and two numbers for each of μ and Σ."""
    d, first = 40, 8 * FIRST_MESSAGE
    for sent in ranks.run(count_collectives_of_one_group, [(3, d), (5, d)]):
        forward, backward = 8 * (4 + 1 + 2 * (d + d * d)), 8 * (4 + d + d * d)
        assert sent == {"forward": [first, forward - first], "backward": [first]}
        assert backward < first


@pytest.mark.gpu
def test_between_gpus_only_the_first_of_equal_sums_is_checked(ranks: Ranks) -> None:
    d, first = 6, [8 * FIRST_MESSAGE] * 2
    x = torch.randn(30, d, generator=torch.Generator().manual_seed(0)) @ torch.randn(d, d)
    expected = isonorm.DBN(d, group_size=None)(x)
    outputs = []
    for counts, y in ranks.run(count_collectives_on_a_gpu, list(x.split([20, 10]))):
        assert counts == [first, [8 * (1 + 2 * (d + d * d)), 8 * (d + d * d)]]
        outputs.append(y)
    torch.testing.assert_close(torch.cat(outputs), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("sizes", [(1, 0), (0, 0, 1)])
def test_one_value_over_all_ranks_is_refused_on_each(ranks: Ranks, sizes: tuple[int, ...]) -> None:
    _, shares = make_batches(sizes, ())
    for outcomes in ranks.run(try_forward, shares, "world", ("iternorm", "dbn-zca", "batchnorm")):
        for what, (message, same) in outcomes.items():
            assert "more than one value" in message, what
            assert same, what


def test_one_value_is_enough_where_nothing_is_centered(ranks: Ranks) -> None:
    whole, shares = make_batches((1, 0), ())
    results = ranks.run(train, shares, "world", ("scale",))
    assert_agree(results, train(whole, None, ("scale",)), **FLOAT64)


def test_no_samples_on_any_rank_change_nothing(ranks: Ranks) -> None:
    _, shares = make_batches((0, 0), (3, 3))
    for result in ranks.run(train, shares, "world"):
        for what, done in result.items():
            assert all(t.shape == (0, CHANNELS, 3, 3) for t in (*done["y"], *done["dx"]))
            untouched = buffers(make(what.split(",")[0], torch.float64, None))
            for name, buffer in untouched.items():
                assert torch.equal(done["buffers"][name], buffer), (what, name)


@pytest.mark.parametrize("track_running_stats", [True, False])
def test_eval_needs_nobody_else(ranks: Ranks, track_running_stats: bool) -> None:
    options = {"track_running_stats": track_running_stats}
    whole, shares = make_batches((4, 3), (3, 3))
    layer = make("iternorm", torch.float64, None, **options)
    step(layer, whole)
    (outputs, sent), _ = ranks.run(evaluate_alone, shares, "iternorm", **options)
    assert sent == []
    expected = step(layer.eval(), shares[0])["y"]
    torch.testing.assert_close(outputs, expected, **FLOAT64)


def test_a_loss_may_use_the_statistics(ranks: Ranks) -> None:
    whole, shares = make_batches((4, 1, 2), (3, 3))
    results = ranks.run(differentiate_statistics, shares, "world", 1 / 3)
    assert_agree(results, differentiate_statistics(whole, None, 1.0), **FLOAT64)


def test_one_rank_that_is_not_finite_spoils_nothing(ranks: Ranks) -> None:
    whole, shares = make_batches((4, 3), (3, 3))
    shares[1][0][0][1, 2] = float("nan")
    results = ranks.run(train, shares, "world", ("iternorm",), check_finite=True)
    for key, expected in train(whole[1:], None, ("iternorm",)).items():
        for result in results:
            torch.testing.assert_close(result[key]["buffers"], expected["buffers"], **FLOAT64)


@pytest.mark.parametrize("mean", [0.0, 1e6])
def test_a_whitener_of_all_ranks_is_that_of_all_samples(ranks: Ranks, mean: float) -> None:
    x = torch.randn(90, 5, dtype=torch.float64).cumsum(1) + mean
    shares = [[x[:20], x[20:33]], [x[33:], x[:0]]]
    w, moments, _ = fit_whitener([x], None)
    for theirs, other, refusal in ranks.run(fit_whitener, shares, "world"):
        torch.testing.assert_close(theirs, w, rtol=1e-7, atol=1e-7)
        assert other["count"] == 90
        torch.testing.assert_close(other, moments, rtol=1e-7, atol=1e-7)
        assert "synchronize once, after the last update" in refusal
