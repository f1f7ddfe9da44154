"""A meter of time, with all candidates taking turns; that of memory is ``isonorm.lab.memory``."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Mapping
from math import ceil
from statistics import median, quantiles
from time import perf_counter
from typing import NamedTuple

from isonorm.lab.memory import collector_paused

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
    steps: Mapping[str, Step], rounds: int, least_seconds: float = 0.05, seed: int = 0
) -> dict[str, list[float]]:
    """Seconds per call of each step, one number a round.

    Every round gives every step one turn, in an order of its own, which the seed decides, so that a
    drift of the machine favours no one. In its turn a step is called until it has run for
    ``least_seconds``: long enough for the clock, and for what its predecessor left in the caches
    and the allocator not to matter.
    """
    shuffle = random.Random(seed).shuffle
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
