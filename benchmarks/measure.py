"""Two meters: time, with all candidates taking turns, and peak memory, by torch.profiler."""

from __future__ import annotations

import gc
import json
import random
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from math import ceil
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter
from typing import NamedTuple

from torch.profiler import ProfilerActivity, profile

Step = Callable[[], object]


class Spread(NamedTuple):
    """A measured quantity: its median, its quartiles and its least value, over n."""

    median: float
    lower: float
    upper: float
    least: float
    n: int


def spread(values: list[float]) -> Spread:
    """
    >>> spread([3.0, 1.0, 2.0, 5.0, 4.0])
    Spread(median=3.0, lower=2.0, upper=4.0, least=1.0, n=5)
    """
    lower, _, upper = quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3
    return Spread(median(values), lower, upper, min(values), len(values))


def ratio(times: list[float], others: list[float]) -> Spread:
    """Of two candidates that took turns, round by round: what slowed a round down slowed both."""
    return spread([a / b for a, b in zip(times, others, strict=True)])


def take_turns(
    steps: Mapping[str, Step], rounds: int, least_seconds: float = 0.05
) -> dict[str, list[float]]:
    """Seconds per call of each step, one number a round.

    Every round gives every step one turn, in an order of its own, so that a drift of the machine
    favours no one. In its turn a step is called until it has run for ``least_seconds``: long enough
    for the clock, and for what its predecessor left in the caches and the allocator not to matter.
    """
    shuffle = random.Random(0).shuffle
    with collector_paused():
        calls = {name: max(1, ceil(least_seconds / warm_up(step))) for name, step in steps.items()}
        times: dict[str, list[float]] = {name: [] for name in steps}
        for _ in range(rounds):
            order = list(steps)
            shuffle(order)
            for name in order:
                step = steps[name]
                start = perf_counter()
                for _ in range(calls[name]):
                    step()
                times[name].append((perf_counter() - start) / calls[name])
            gc.collect()
    return times


def warm_up(step: Step, times: int = 3) -> float:
    """Calls a step until its thread pools exist and its memory is mapped; the quickest call, in
    seconds.
    """
    seconds = []
    for _ in range(times):
        start = perf_counter()
        step()
        seconds.append(perf_counter() - start)
    return min(seconds)


@contextmanager
def collector_paused() -> Iterator[None]:
    """Without the garbage collector, which would charge its pauses, and the memory it frees, to
    whoever is running.
    """
    gc.collect()
    gc.freeze()  # what is there already need not be looked at again by the collections in between
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        if enabled:
            gc.enable()


def peak_bytes(step: Step) -> int:
    """The most memory of torch's allocator that was alive at once during a call, beyond what was
    alive before it.

    What the call returns stays alive until its end. Scratch space inside a BLAS library is not
    torch's, and not seen.
    """
    step()  # what is allocated once, on a first call, is not part of a training step
    with (
        collector_paused(),
        profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler,
    ):
        result = step()
    del result
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text())["traceEvents"]
    memory = sorted((e for e in events if e.get("name") == "[memory]"), key=lambda e: e["ts"])
    return peak_of((e["args"]["Addr"], e["args"]["Bytes"]) for e in memory)


def peak_of(events: Iterator[tuple[int, int]]) -> int:
    """The peak of live bytes over (address, bytes) events, in order; a release is a negative number
    of bytes.

    A release of something older is passed over: it was part of what was there before.

    >>> peak_of(iter([(1, 100), (2, 50), (1, -100), (9, -70), (3, 80)]))
    150
    """
    alive: dict[int, int] = {}
    total = peak = 0
    for address, size in events:
        if size > 0:
            alive[address] = size
            total += size
            peak = max(peak, total)
        else:
            total -= alive.pop(address, 0)
    return peak
