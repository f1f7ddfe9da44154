"""Ranks train, and differentiate, as one process does with the whole batch."""

from __future__ import annotations

import pytest
import torch

from tests.distributed.agreement import FLOAT64, SHARES, assert_agree, make_batches
from tests.distributed.layers import make
from tests.distributed.ranks import Ranks
from tests.distributed.tasks import (
    differentiate_twice,
    step,
    train,
    train_before_tanh,
    train_compiled,
    train_model,
)

pytestmark = pytest.mark.xdist_group("ranks")  # where groups stay together, one set of processes


@pytest.mark.parametrize("share", SHARES)
def test_ranks_do_what_one_process_does(ranks: Ranks, share: str) -> None:
    # Three samples of four features leave directions that nothing but eps bounds.
    options = {"eps": 1e-2} if share == "one-each" else {}
    whole, shares = make_batches(*SHARES[share])
    results = ranks.run(train, shares, "world", **options)
    assert_agree(results, train(whole, None, **options), **FLOAT64)


def test_ranks_do_it_in_float32_up_to_the_order_of_sums(ranks: Ranks) -> None:
    """As near as sums over a few hundred samples come when taken in another order; polar's steps
    amplify their rounding.
    """
    whole, shares = make_batches(*SHARES["unequal"], dtype=torch.float32)
    results, expected = ranks.run(train, shares, "world"), train(whole, None)
    polar = {key: expected.pop(key) for key in list(expected) if "polar" in key}
    assert_agree(results, expected, rtol=2e-5, atol=2e-5)
    assert_agree(results, polar, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("sizes", [(4, 4), (5, 0, 2)])
def test_data_parallel_training_is_that_of_one_process(
    ranks: Ranks, sizes: tuple[int, ...]
) -> None:
    whole, shares = make_batches(sizes, (), count=3)
    expected = train_model(whole, None, sum(sizes))
    results = ranks.run(train_model, shares, "world", sum(sizes))
    losses = torch.stack([rank["losses"] for rank in results]).sum(0)
    torch.testing.assert_close(losses, expected["losses"], **FLOAT64)
    for rank in results:
        torch.testing.assert_close(rank["state"], expected["state"], **FLOAT64)


@pytest.mark.parametrize("sizes", [(4, 3), (3, 0, 4)])
def test_double_backward_is_that_of_one_process(ranks: Ranks, sizes: tuple[int, ...]) -> None:
    names = ("iternorm", "dbn-zca", "dbn-cholesky", "batchnorm", "batchgroupnorm", "coloring")
    whole, shares = make_batches(sizes, (2, 2))
    results = ranks.run(differentiate_twice, shares, "world", names)
    assert_agree(results, differentiate_twice(whole, None, names), **FLOAT64)


def test_recomputed_layers_share_their_statistics_once(ranks: Ranks) -> None:
    names = ("iternorm", "batchnorm")
    whole, shares = make_batches((4, 3), (3, 3))
    results = ranks.run(train_before_tanh, shares, "world", names, recompute=True)
    assert_agree(results, train_before_tanh(whole, None, names, recompute=False), **FLOAT64)


@pytest.mark.parametrize(
    ("sizes", "positions", "groups"),
    [
        ((4, 3), (3, 3), {"iternorm": "name", "batchgroupnorm": "name"}),
        ((4, 3), (3, 3), {"coloring": "object"}),
        ((2, 0), (), {"iternorm": "name"}),
        ((1, 1), (), {"iternorm": "name"}),
        ((4, 0), (), {"center": "name"}),
        ((4, 1), (), {"center": "name"}),
        ((4, 3), (3, 3), {"equiconv": "object"}),
    ],
    ids=[
        "by-name",
        "by-object",
        "empty-rank",
        "one-each",
        "empty-centered",
        "one-centered",
        "equilibrium",
    ],
)
def test_compiled_ranks_do_what_one_process_does(
    ranks: Ranks, sizes: tuple[int, ...], positions: tuple[int, ...], groups: dict[str, str]
) -> None:
    whole, shares = make_batches(sizes, positions)
    expected = {name: step(make(name, torch.float64, None), whole) for name in groups}
    assert_agree(ranks.run(train_compiled, shares, groups), expected, **FLOAT64)


def test_centering_alone_is_shared_too(ranks: Ranks) -> None:
    whole, shares = make_batches((4, 3), (3, 3))
    results = ranks.run(train, shares, "world", ("center",))
    assert_agree(results, train(whole, None, ("center",)), **FLOAT64)
