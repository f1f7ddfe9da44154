"""How programs of a kernel share the tiles of a tensor: arithmetic that needs no GPU."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from isonorm import area, operation
from isonorm.kernels.plan import make_plan

pytest.importorskip("triton")

from isonorm.kernels.gpu.layout import AHEAD, MOST_AT_ONCE, Sharing, Tuning, layout, share_out
from isonorm.kernels.gpu.overlap import overlaps

FRONTS = [(0, 0.0), (2, 0.5), (4, 0.7), (4, 0.85)]
TUNINGS = [
    Tuning(64, 4, 1, programs, tiles, front)
    for programs, tiles, front in product((2, 4), (1, 2, 4, 12), FRONTS)
]


def steps(number: int, tiles: int, work: Sharing) -> range:
    """What ``tile.share`` says in Triton."""
    if number < work.front:
        return range(number, work.front_tiles, work.front)
    first = work.front_tiles + number - work.front
    return range(first, tiles, work.programs - work.front)


@pytest.mark.parametrize("tuning", TUNINGS, ids=str)
def test_every_tile_is_mapped_once(tuning):
    for multiprocessors, problems, tiles in product(
        (1, 2, 7, 132), (1, 3, 16, 100, 264, 300, 528, 1000), (1, 2, 8, 9, 10, 13, 17, 20, 65, 400)
    ):
        work = share_out(tiles, tuning, multiprocessors, problems, reduces=False)
        assert 1 <= work.programs <= tiles and work.front < work.programs + (work.front == 0)
        taken = [i for number in range(work.programs) for i in steps(number, tiles, work)]
        assert sorted(taken) == list(range(tiles)), (multiprocessors, problems, tiles)


@pytest.mark.parametrize("tuning", [one for both in AHEAD.values() for one in both], ids=str)
def test_programs_with_sums_have_tiles_enough(tuning):
    for multiprocessors, problems, tiles in product((1, 132), (1, 16, 300), (1, 3, 4, 9, 1000)):
        work = share_out(tiles, tuning, multiprocessors, problems, reduces=True)
        at_once = max(1, tuning.programs * multiprocessors // problems)
        assert 1 <= work.programs <= at_once and not work.many
        assert work.programs == 1 or tiles // work.programs >= tuning.tiles


def test_long_shares_are_cut():
    tuning = Tuning(64, 4, 1, 2, 4, (2, 0.5))
    few = share_out(MOST_AT_ONCE * 264, tuning, 132, 1, reduces=False)
    assert few == Sharing(264, 0, 0, many=False)
    many = share_out(MOST_AT_ONCE * 264 + 1, tuning, 132, 1, reduces=False)
    assert many.many and many.front == 264 and many.programs > 2 * 264
    assert 0.4 < many.front_tiles / (MOST_AT_ONCE * 264) <= 0.5


@pytest.mark.parametrize("overlap", [True, False])
def test_kernels_that_sum_start_when_all_before_is_done(overlap, monkeypatch):
    monkeypatch.setattr("isonorm.kernels.gpu.layout.overlaps", lambda device: overlap)
    plan = make_plan(area.batch(64), operation.whiten("newton", 5), 1e-5, "", "triton")
    x = torch.empty(8, 128, 49, dtype=torch.bfloat16)
    block, *_ = plan.problem_shapes(x)[0]
    found = layout(tuple(x.shape), x.stride(), x.dtype, x.device, block, plan, "high")
    early = {name: found.launcher(name, {}).early for name in AHEAD}
    assert early == {
        "moments_kernel": False,
        "apply_kernel": overlap,
        "backward_sums_kernel": False,
        "backward_apply_kernel": overlap,
    }
    assert all(found.launcher(name, {}).constants["OVERLAP"] is overlap for name in AHEAD)


@pytest.mark.skipif(torch.version.hip is not None, reason="overlap is CUDA's")
@pytest.mark.parametrize(
    ("capability", "environment", "expected"),
    [((9, 0), None, True), ((9, 0), "0", False), ((12, 0), "1", True), ((8, 9), None, False)],
)
def test_kernels_overlap_from_hopper_on(capability, environment, expected, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.delenv("ISONORM_OVERLAP", raising=False)
    if environment is not None:
        monkeypatch.setenv("ISONORM_OVERLAP", environment)
    assert overlaps(torch.device("cuda")) is expected
    assert not overlaps(torch.device("cpu"))
