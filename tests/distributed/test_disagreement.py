"""Ranks that are not alike: they agree, or all of them say why not, and can go on."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.distributed.agreement import make_batches
from tests.distributed.ranks import Ranks
from tests.distributed.tasks import join_with, run_in_mode, train, try_pass

pytestmark = pytest.mark.xdist_group("ranks")  # where groups stay together, one set of processes

#: What one of the ranks does otherwise, and what it says that it sends.
FORWARD: dict[str, tuple[dict[str, Any], str]] = {
    "group size": ({"group_size": 8}, "group_size=8"),
    "group size, the other way": ({"group_size": 1}, "group_size=1"),
    "channels": ({"channels": 64, "group_size": 64}, "8321 numbers"),
    "root": ({"method": "zca"}, "method=zca"),
    "eps": ({"eps": 1e-3}, "eps=0.001"),
    "recovery": ({"recovery": None}, "weight=False"),
    "another kind of layer": ({"layer": "equiconv"}, "a layer in equilibrium"),
}
BACKWARD: dict[str, tuple[dict[str, Any], str]] = {
    "a graph of the backward": ({"twice": True}, "numbers of batch area"),
    "another forward": ({"backward": False}, "numbers of batch area"),
}


def assert_said_by_all(outcomes: list[tuple[str, bool]], other: str) -> None:
    first, *others = (said for said, _ in outcomes)
    assert "ranks that share statistics must run the same layers" in first
    assert other in first and all(said == first for said in others)


@pytest.mark.parametrize("odd", [0, 1, 2])
def test_any_rank_may_be_the_odd_one(ranks: Ranks, odd: int) -> None:
    hows = [{"group_size": 8} if rank == odd else {} for rank in range(3)]
    outcomes = ranks.run(try_pass, hows)
    assert_said_by_all(outcomes, f"rank {odd}: ")
    assert all(same for _, same in outcomes)


@pytest.mark.parametrize(("how", "other"), FORWARD.values(), ids=FORWARD.keys())
def test_ranks_whose_layers_differ_say_so_and_change_nothing(
    ranks: Ranks, how: dict[str, Any], other: str
) -> None:
    outcomes = ranks.run(try_pass, [how, {}])
    assert_said_by_all(outcomes, other)
    assert all(same for _, same in outcomes)


@pytest.mark.parametrize(("how", "other"), BACKWARD.values(), ids=BACKWARD.keys())
def test_ranks_that_part_in_backward_say_so(ranks: Ranks, how: dict[str, Any], other: str) -> None:
    assert_said_by_all(ranks.run(try_pass, [{}, how]), other)


def test_ranks_of_several_dtypes_do_what_one_process_does(ranks: Ranks) -> None:
    """Judged in float64, with the same numbers."""
    names = ("iternorm", "dbn-cholesky", "batchnorm", "coloring")
    whole, shares = make_batches((4, 3, 5), (3, 3), torch.float32)
    shares[1] = [(x.double(), c.double()) for x, c in shares[1]]
    expected = train([(x.double(), c.double()) for x, c in whole], None, names)
    for rank, results in enumerate(ranks.run(train, shares, "world", names)):
        rows = slice(*((0, 4), (4, 7), (7, 12))[rank])
        for key, done in expected.items():
            for what in ("y", "dx"):
                for mine, theirs in zip(results[key][what], done[what], strict=True):
                    torch.testing.assert_close(
                        mine.double(), theirs[rows], rtol=2e-5, atol=2e-5, msg=f"{key}, {what}"
                    )
            for name, buffer in done["buffers"].items():
                mine = results[key]["buffers"][name]
                torch.testing.assert_close(mine.to(buffer.dtype), buffer, rtol=1e-5, atol=1e-5)


def test_a_rank_that_waits_in_vain_is_told_what_may_be_wrong(ranks: Ranks) -> None:
    """The other one evaluates, needs nobody for that, and leaves."""
    waited, left = ranks.run(run_in_mode, [True, False])
    assert "not every rank took part in a sum over ranks" in waited
    assert "all in training or all in eval" in waited and left == ""


def test_join_is_refused_on_every_rank(ranks: Ranks) -> None:
    for said in ranks.run(join_with, [1, 3]):
        assert "cannot run inside DistributedDataParallel's join()" in said
