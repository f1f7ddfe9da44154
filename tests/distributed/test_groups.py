"""Who shares with whom: process groups by object and by name, and what is none."""

from __future__ import annotations

import pickle
import re

import pytest
import torch
import torch.distributed as dist

from tests.distributed.agreement import FLOAT64, assert_agree, make_batches
from tests.distributed.layers import make
from tests.distributed.ranks import Ranks
from tests.distributed.tasks import step, train, train_copies, train_in_groups

pytestmark = pytest.mark.xdist_group("ranks")  # where groups stay together, one set of processes


def test_a_group_of_some_ranks_keeps_to_itself(ranks: Ranks) -> None:
    names = ("iternorm", "batchnorm")
    _, shares = make_batches((3, 4, 2), (3, 3))
    zero, one, two = ranks.run(train_in_groups, shares, names)
    pair = [
        (torch.cat([x, x2]), torch.cat([c, c2]))
        for (x, c), (x2, c2) in zip(shares[0], shares[2], strict=True)
    ]
    for results, batches in (([zero, two], pair), ([one], shares[1])):
        expected = train(batches, None, names)
        for how in ("object", "name"):
            renamed = {f"{what}, by {how}": result for what, result in expected.items()}
            assert_agree(results, renamed, **FLOAT64)


def test_copies_and_pickles_stay_in_their_group(ranks: Ranks) -> None:
    whole, shares = make_batches((4, 2), (3, 3))
    results, pickles = zip(*ranks.run(train_copies, shares, "iternorm"), strict=True)
    expected = step(make("iternorm", torch.float64, None), whole)
    for how in ("itself", "copy", "pickle"):
        assert_agree(list(results), {how: expected}, **FLOAT64)
    # Where there is nobody to talk to, the pickle is a layer like any other.
    alone = step(pickle.loads(pickles[0]), whole)
    assert_agree([{"alone": alone}], {"alone": expected}, rtol=0, atol=0)


def test_without_torch_distributed_nothing_is_shared() -> None:
    assert not dist.is_initialized()
    whole, _ = make_batches((8,), (3, 3))
    names = ("iternorm", "batchnorm")
    assert_agree([train(whole, "world", names)], train(whole, None, names), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("standardize-1", "standardize(p=1) cannot be synchronized"),
        ("layernorm", "nothing to share across ranks"),
        ("instancenorm", "nothing to share across ranks"),
        ("groupwhitening", "nothing to share across ranks"),
        ("positionalnorm", "nothing to share across ranks"),
    ],
)
def test_what_ranks_cannot_share_is_refused(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        make(name, torch.float64, "world")


@pytest.mark.parametrize("process_group", ["0", "World", 5, True])
def test_what_is_no_group_is_refused(process_group: object) -> None:
    with pytest.raises(ValueError, match="process_group must be"):
        make("iternorm", torch.float64, process_group)
