"""Analysis of layers that share their statistics with other ranks: it asks only this one."""

from __future__ import annotations

import json
import warnings
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn

import isonorm
from isonorm import analysis
from tests.processes import LIMIT, Copy, together

RANKS = 2


def train(rank: int, watched: bool) -> tuple[list[float], float | None]:
    """Running means after three steps with a shared norm, and the last SND that rank 0 saw if it
    was watched there, and there alone.
    """
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), isonorm.IterNorm(8, process_group="world"))
    torch.manual_seed(1 + rank)
    every = 1 if watched and rank == 0 else None
    with analysis.Monitor(model, every=every, disturbance=True) as monitor:
        for _ in range(3):
            y = model(torch.randn(16, 6) + rank)
            (y * torch.randn_like(y)).sum().backward()
            monitor.step()
    seen = monitor.latest[1]["snd"] if monitor.latest else None
    return model[1].running_mean.tolist(), seen


def measured(norm: nn.Module, x: Tensor) -> dict[str, list[float]]:
    """What the functions that work on copies find."""
    sizes = dict(batch_size=8, num_samples=2, num_batches=3)
    model = nn.Sequential(nn.Linear(8, 8, bias=False), norm)
    nn.init.orthogonal_(model[0].weight, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(5)
    return {
        "snd": analysis.snd(norm, x, **sizes).tolist(),
        "one by one": analysis.snd(norm, x, **sizes, chunk_size=1).tolist(),
        "swaps": analysis.axis_swaps(norm, x, batch_size=16, num_batches=2).similarity.tolist(),
        "jacobian": analysis.jacobian_singular_values(model, x[:4]).flatten().tolist(),
        "scales": list(analysis.scale_invariance(model, x)["0"]),
    }


def rank_main(rank: int, rendezvous: str) -> None:
    """One of two ranks; it prints what it found."""
    warnings.simplefilter("error")
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=RANKS,
        timeout=timedelta(seconds=LIMIT),
    )  # fmt: skip
    alone, _ = train(rank, watched=False)
    watched, disturbance = train(rank, watched=True)
    found = {"alone": alone, "watched": watched, "snd": disturbance}
    if rank == 0:  # nobody answers if it asks
        x = torch.randn(40, 8, generator=torch.Generator().manual_seed(7)) * 2 + 1
        group = dist.group.WORLD
        norms = {
            "IterNorm": isonorm.IterNorm(8, process_group=group),
            "BatchNorm": isonorm.BatchNorm(8, process_group="world"),
            "SyncBatchNorm": nn.SyncBatchNorm(8),
            "SyncBatchNorm of a group": nn.SyncBatchNorm(8, process_group=group),
        }
        found["measured"] = {name: measured(norm, x) for name, norm in norms.items()}
        own = {"IterNorm": isonorm.IterNorm(8), "BatchNorm": nn.BatchNorm1d(8)}
        found["expected"] = {name: measured(norm, x) for name, norm in own.items()}
        found["groups"] = [norms["IterNorm"].process_group != "", norms["BatchNorm"].process_group]
    print(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


def test_nothing_is_sent_to_other_ranks(tmp_path):
    meeting = str(tmp_path / "rendezvous")
    with Copy(rank_main, 0, meeting) as one, Copy(rank_main, 1, meeting) as other:
        ended = together(one, other)
    assert [rank.code for rank in ended] == [0, 0], ended
    # Gloo may say something first.
    first, second = (json.loads(rank.output.splitlines()[-1]) for rank in ended)
    assert first["watched"] == first["alone"] == second["watched"] == second["alone"]
    assert first["snd"] > 0 and second["snd"] is None
    assert first["groups"] == [True, "world"], "the layers themselves go on sharing"
    for name, numbers in first["measured"].items():
        expected = first["expected"]["IterNorm" if name == "IterNorm" else "BatchNorm"]
        for key, values in numbers.items():
            torch.testing.assert_close(values, expected[key], rtol=1e-3, atol=1e-4, msg=name + key)
