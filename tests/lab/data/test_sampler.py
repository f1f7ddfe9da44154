from __future__ import annotations

import copy
from itertools import islice

import pytest
import torch

from isonorm.lab.data import Sampler


def epoch(sampler: Sampler) -> list[tuple[list[int], list[list[float]]]]:
    return [(batch.order.tolist(), batch.draws.tolist()) for batch in sampler]


def test_an_epoch_visits_every_image_once_and_the_next_in_another_order():
    sampler = Sampler(23, 5, drop_last=False)
    epochs = [[index for order, _ in epoch(sampler) for index in order] for _ in range(3)]
    assert all(sorted(order) == list(range(23)) for order in epochs)
    assert len({tuple(order) for order in epochs}) == 3
    assert sampler.epoch == 3 and sampler.position == 0


@pytest.mark.parametrize(
    ("batch_size", "drop_last", "sizes"),
    [
        (5, True, [5, 5]),
        (5, False, [5, 5, 3]),
        (13, True, [13]),
        (None, True, [13]),
        (1, True, [1] * 13),
    ],
)
def test_incomplete_batches_are_dropped_or_kept(batch_size, drop_last, sizes):
    sampler = Sampler(13, batch_size, drop_last=drop_last)
    assert [len(order) for order, _ in epoch(sampler)] == sizes
    assert len(sampler) == len(sizes)


def test_without_shuffling_the_order_is_the_files():
    assert [order for order, _ in epoch(Sampler(5, 2, shuffle=False, drop_last=False))] == [
        [0, 1],
        [2, 3],
        [4],
    ]


def test_the_seed_decides():
    first, again, other = (epoch(Sampler(50, 10, seed=s, num_draws=2)) for s in (3, 3, 4))
    assert first == again and first != other


@pytest.mark.parametrize("world_size", [2, 3, 6])
def test_global_batches_do_not_depend_on_the_number_of_processes(world_size):
    def run(rank: int, world_size: int) -> list:
        sampler = Sampler(
            40, 12, drop_last=False, num_draws=3, rank=rank, world_size=world_size, seed=1
        )
        return [batch for _ in range(2) for batch in epoch(sampler)]

    alone = run(0, 1)
    shares = zip(*(run(rank, world_size) for rank in range(world_size)), strict=True)
    assert [
        ([i for order, _ in ranks for i in order], [d for _, draws in ranks for d in draws])
        for ranks in shares
    ] == alone


def test_shares_are_equal_but_for_an_incomplete_batch():
    for rank, last in ((0, 0), (1, 1), (2, 1)):
        sizes = [
            len(order)
            for order, _ in epoch(Sampler(8, 6, drop_last=False, rank=rank, world_size=3))
        ]
        assert sizes == [2, last]


@pytest.mark.parametrize("taken", [0, 1, 3, 4, 5, 11])
def test_a_resumed_order_goes_on_as_an_uninterrupted_one(taken):
    def endless(sampler: Sampler):
        while True:
            yield from ((batch.order.tolist(), batch.draws.tolist()) for batch in sampler)

    options = {"batch_size": 6, "num_draws": 1, "seed": 5}
    expected = list(islice(endless(Sampler(25, **options)), 20))
    stopped = Sampler(25, **options)
    list(islice(endless(stopped), taken))
    state = copy.deepcopy(stopped.state_dict())

    resumed = Sampler(25, **{**options, "seed": 99})
    resumed.load_state_dict(state)
    assert list(islice(endless(resumed), 20 - taken)) == expected[taken:]
    # Nor does the interrupted one lose its place when it is asked again.
    assert list(islice(endless(stopped), 20 - taken)) == expected[taken:]


def test_a_state_taken_after_the_last_batch_leaves_the_end_of_the_epoch_to_come():
    sampler = Sampler(6, 2)
    for _ in sampler:
        state = sampler.state_dict()
    assert (state["epoch"], state["position"]) == (0, 3)
    resumed = Sampler(6, 2)
    resumed.load_state_dict(state)
    assert epoch(resumed) == [] and resumed.epoch == 1
    assert epoch(resumed) == epoch(sampler)


def test_an_order_resumes_with_another_number_of_processes():
    alone = Sampler(24, 4)
    next(iter(alone))
    ranks = [Sampler(24, 4, rank=rank, world_size=2, seed=7) for rank in (0, 1)]
    for sampler in ranks:
        sampler.load_state_dict(alone.state_dict())
    (first, second), rest = (epoch(sampler) for sampler in ranks), epoch(alone)
    assert [a + b for (a, _), (b, _) in zip(first, second, strict=True)] == [a for a, _ in rest]


def test_only_batches_that_were_taken_count():
    sampler = Sampler(10, 2)
    prepared = list(sampler.remaining())
    taken = sampler.handing_out(prepared)
    next(taken), next(taken)
    assert sampler.position == 2


def test_a_state_that_does_not_fit_is_refused():
    state = Sampler(24, 4).state_dict()
    with pytest.raises(ValueError, match="has num_images=24, this one 25"):
        Sampler(25, 4).load_state_dict(state)
    with pytest.raises(ValueError, match="has batch_size=4, this one 5"):
        Sampler(24, 5).load_state_dict(state)
    with pytest.raises(ValueError, match="after batch 9 of an epoch, which has 6"):
        Sampler(24, 4).load_state_dict({**state, "position": 9})


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"batch_size": 0}, "between 1 and the 10 images; got 0"),
        ({"batch_size": 11}, "between 1 and the 10 images; got 11"),
        ({"batch_size": 5, "world_size": 2}, "batch_size=5 .* all 2 processes"),
        ({"batch_size": 4, "world_size": 2, "rank": 2}, "got 2 of 2"),
    ],
)
def test_impossible_orders_are_refused(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        Sampler(10, **options)


def test_torchs_own_generator_is_left_alone():
    state = torch.get_rng_state()
    epoch(Sampler(10, 2, num_draws=2))
    assert torch.equal(torch.get_rng_state(), state)
