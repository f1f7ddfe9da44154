"""Layers in equilibrium, which share the sums of their inputs."""

from __future__ import annotations

import pytest
import torch

from isonorm.synchronization import FIRST_MESSAGE
from tests.distributed.agreement import FLOAT64, SHARES, assert_agree, make_batches
from tests.distributed.ranks import Ranks
from tests.distributed.tasks import count_collectives, train

pytestmark = pytest.mark.xdist_group("ranks")  # where groups stay together, one set of processes


@pytest.mark.parametrize("share", ["unequal", "last-empty", "first-empty"])
def test_layers_in_equilibrium_do_what_one_process_does(ranks: Ranks, share: str) -> None:
    """They share the sums of their inputs, which are positive here."""
    whole, shares = make_batches(*SHARES[share], mean=3.0)
    results = ranks.run(train, shares, "world", ("equiconv",))
    assert_agree(results, train(whole, None, ("equiconv",)), **FLOAT64)


def test_each_rank_of_layers_in_equilibrium_measures_its_own_first_part(ranks: Ranks) -> None:
    whole, shares = make_batches((4, 4), (3, 3), mean=3.0)
    results = ranks.run(train, shares, "world", ("equiconv-half",))
    measured = [torch.cat([x[:2], x[4:6]]).mean((0, 2, 3)) for x, _ in whole]
    for result in results:
        for done in result.values():
            expected = torch.stack(measured).mean(0)
            torch.testing.assert_close(done["buffers"]["running_v"], expected, **FLOAT64)


def test_layers_in_equilibrium_send_one_sum_each_way(ranks: Ranks) -> None:
    _, shares = make_batches((2, 3), (3, 3))
    for sent in ranks.run(count_collectives, shares, ("equiconv",)):
        assert set(map(tuple, sent.values())) == {(8 * FIRST_MESSAGE,) * 2}
