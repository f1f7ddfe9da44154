"""Ranks that share statistics, alike and not: right, or one sentence on each, and never a hang."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path

import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.distributed.drawn import CHANNELS, Done, Make, Part, do
from tests.distributed.ranks import Ranks

UNLIKE = "RuntimeError: ranks that share statistics must run the same layers"
APART = "RuntimeError: not every rank took part in a sum over ranks"
ALONE = "ValueError: expected more than one value to normalize together; got one over all ranks"

#: Bounds for outputs, gradients and statistics, against float64; eps = 0.01 bounds W by 10.
BOUNDS = {torch.float64: 1e-8, torch.float32: 2e-3}
#: What makes one rank's layer another one.
OTHERWISE = {
    "kind": {"kind": "cholesky"},
    "kind of layer": {"kind": "equilibrium"},
    "group size": {"group_size": 3},
    "channels": {"channels": CHANNELS + 3},
    "recovery": {"recovery": None},
    "eps": {"eps": 0.5},
}


@cache
def ranks(world: int) -> Ranks:
    """Return so many processes, which stay to the end of this one."""
    folder = Path(tempfile.mkdtemp(prefix="ranks-"))
    started = Ranks(folder)
    started.timeout = 60
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    atexit.register(started.close)
    return started


def run(parts: list[Part], keep: bool = True) -> list[Done]:
    return ranks(len(parts)).run(do, parts, keep=keep)


makes = st.builds(
    Make,
    kind=st.sampled_from(["newton", "zca", "polar", "standardize", "scale", "equilibrium"]),
    group_size=st.sampled_from([1, 2, 4, 6]),
    channels=st.just(CHANNELS),
    recovery=st.sampled_from(["affine", "coloring", None]),
    eps=st.just(1e-2),
)


@st.composite
def alike(draw: st.DrawFn, dtypes: bool = True) -> list[Part]:
    """Parts of two or three ranks with one layer: sizes, also none, and dtypes differ."""
    make, world = draw(makes), draw(st.integers(2, 3))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    backends = st.sampled_from(["auto", "torch", "reference"])
    common = {
        "make": make,
        "backend": draw(backends),
        "forwards": draw(st.sampled_from([1, 1, 2])),
        "parallel": draw(st.sampled_from(["", "", "ddp", "no_sync"])),
    }
    if make.recovery is None or make.kind == "equilibrium":
        common["parallel"] = ""
    several = dtypes and not common["parallel"] and draw(st.booleans())
    dtype = st.sampled_from(list(BOUNDS))
    given_dtypes = [draw(dtype) for _ in range(world)] if several else [draw(dtype)] * world
    positions = draw(st.sampled_from([(), (1,), (3,)])) if make.kind != "equilibrium" else (3,)
    shift, steps = draw(st.sampled_from([0.0, 2.0, 100.0])), draw(st.integers(1, 2))
    sizes = [[draw(st.sampled_from([0, 1, 2, 5])) for _ in range(steps)] for _ in range(world)]

    def random(*shape: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(dtype)

    def batch(n: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        x = random(n, CHANNELS, *positions, dtype=dtype)
        if make.kind == "equilibrium":
            return x.abs() + 0.1, random(n, 4, *positions, dtype=dtype)
        return x + shift, random(*x.shape, dtype=dtype)

    return [
        Part(batches=[batch(n, dtype) for n in sizes[rank]], **common)
        for rank, dtype in enumerate(given_dtypes)
    ]


def together(parts: list[Part]) -> Part:
    """The part of one process with the batches of all ranks, in float64."""
    cut = zip(*(part.batches for part in parts), strict=True)
    whole = [
        tuple(torch.cat([t.double() for t in tensors]) for tensors in zip(*batches, strict=True))
        for batches in cut
    ]
    return parts[0]._replace(batches=whole, parallel="")


def assert_agree(parts: list[Part], outcomes: list[Done], expected: Done) -> None:
    """Check each rank's outputs and statistics, and the parameters' gradients in sum (DDP gives
    their mean): as near as the least of the dtypes allows.
    """
    bound = max(BOUNDS[part.batches[0][0].dtype] for part in parts)
    pairs: list[tuple[str, torch.Tensor, torch.Tensor]] = []
    for i in range(len(expected.y)):
        for what in ("y", "dx"):
            found = torch.cat([getattr(done, what)[i].double() for done in outcomes])
            pairs.append((f"{what} {i}", found, getattr(expected, what)[i]))
    for name, right in expected.parameters.items():
        pairs.append((name, sum(done.parameters[name].double() for done in outcomes), right))
    for name, right in expected.buffers.items():
        pairs += [(name, done.buffers[name].double(), right.double()) for done in outcomes]
    for what, found, right in pairs:
        size = right.abs().max().item() if right.numel() else 0.0
        torch.testing.assert_close(
            found, right, rtol=0, atol=bound * (1 + size), msg=f"{what}: {{}}".format
        )


@given(alike())
def test_ranks_do_what_one_process_does(parts: list[Part]) -> None:
    """Attacks sums over ranks with unequal and empty batches, several dtypes, implementations and
    DDP; the oracle is one process with the whole batch in float64.
    """
    expected = do(together(parts), None)
    outcomes = run(parts)
    said = [done.said for done in outcomes]
    if expected.said:
        assert all(s.startswith(ALONE) for s in said), (expected.said, said)
        assert "more than one value" in expected.said
        return
    assert not any(said), said
    assert_agree(parts, outcomes, expected)


@given(alike(), st.sampled_from(list(OTHERWISE)), st.integers(0, 2))
def test_a_rank_with_another_layer_is_told_of_on_all(
    parts: list[Part], what: str, odd: int
) -> None:
    """Attacks with one rank whose layer differs: all ranks must raise the same sentence and change
    nothing.
    """
    odd %= len(parts)
    other = parts[odd].make._replace(**OTHERWISE[what])
    make = parts[odd].make
    assume(other != make and (what.startswith("kind") or make.kind != "equilibrium"))
    if what == "recovery":  # elsewhere coloring follows the pass, which is the same without it
        assume(make.recovery == "affine" or make.kind in ("newton", "zca", "polar"))
    parts = [part._replace(parallel="") for part in parts]
    batches = parts[odd].batches
    if other.channels != CHANNELS:
        batches = [
            tuple(t.repeat_interleave(2, 1)[:, : other.channels] for t in b) for b in batches
        ]
    elif (other.kind == "equilibrium") != (parts[odd].make.kind == "equilibrium"):
        batches = [(x if x.dim() == 3 else x.unsqueeze(-1), c) for x, c in batches]
    parts[odd] = parts[odd]._replace(make=other, batches=batches)
    outcomes = run(parts)
    first = outcomes[0].said
    assert first.startswith(UNLIKE), [done.said for done in outcomes]
    assert all(done.said == first and done.as_before for done in outcomes)


@given(
    alike(),
    st.sampled_from(["eval", "wrong input", "no backward", "a graph", "one more forward"]),
    st.integers(0, 2),
)
def test_a_rank_that_does_something_else_leaves_nobody_waiting(
    parts: list[Part], what: str, odd: int
) -> None:
    """Attacks with one rank in eval, with an error, or on another way through forward and backward:
    each of the others must raise a sentence in a limited time.
    """
    odd %= len(parts)
    if what == "a graph":  # elsewhere the sums of a backward are the same with one
        assume(parts[odd].make.kind != "equilibrium")
    backend = "torch" if what == "a graph" else parts[odd].backend
    parts = [part._replace(parallel="", backend=backend) for part in parts]
    mine = parts[odd]
    changes = {
        "eval": {"training": False},
        "wrong input": {"batches": [(x[:, 1:], c) for x, c in mine.batches]},
        "no backward": {"backward": False},
        "a graph": {"twice": True},
        "one more forward": {"forwards": mine.forwards + 1},
    }
    parts[odd] = mine._replace(**changes[what])
    alone = do(together(parts), None).said if what not in ("eval", "wrong input") else ""
    assume(not alone)
    outcomes = run(parts, keep=False)
    for rank, done in enumerate(outcomes):
        if rank != odd:
            assert done.said.startswith((UNLIKE, APART)), (what, rank, done.said)
    if what == "wrong input":
        assert outcomes[odd].said.startswith("ValueError: ")
