"""How much memory training takes: the most that torch holds at once."""

from __future__ import annotations

import gc
import json
import math
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from torch.profiler import ProfilerActivity, profile


@contextmanager
def collector_paused() -> Iterator[None]:
    """Without the garbage collector, which would charge its pauses, and the memory it frees, to
    whoever is running.
    """
    gc.collect()
    frozen_by_others = gc.get_freeze_count() > 0  # unfrozen, theirs could not be told from ours
    if not frozen_by_others:
        gc.freeze()  # what is there already need not be looked at again by collections in between
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if not frozen_by_others:
            gc.unfreeze()
        if enabled:
            gc.enable()


@contextmanager
def _stderr_silenced() -> Iterator[None]:
    """The profiler of torch 2.13 announces itself on the process's standard error, whatever its log
    level, in the middle of progress bars; and there it says what it could not write.
    """
    sys.stderr.flush()
    try:
        saved = os.dup(2)
    except OSError:  # a process without standard error
        yield
        return
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)


def peak_bytes(step: Callable[[], object]) -> float:
    """The most memory of torch's allocator that was alive at once during a call, beyond what was
    alive before it.

    What the call returns stays alive until its end. Scratch space inside a BLAS library is not
    torch's, and not seen. NaN where there is no room on the disk for the profiler's trace.
    """
    step()  # what is allocated once, on a first call, is not part of a training step
    with (
        collector_paused(),
        _stderr_silenced(),
        profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler,
    ):
        result = step()
    del result
    try:
        with tempfile.TemporaryDirectory() as folder, _stderr_silenced():
            trace = Path(folder) / "trace.json"
            profiler.export_chrome_trace(str(trace))
            events = json.loads(trace.read_text())["traceEvents"]
    except (OSError, ValueError):  # ValueError: what was written of it is no JSON
        return math.nan
    memory = sorted((e for e in events if e.get("name") == "[memory]"), key=lambda e: e["ts"])
    return float(peak_of((e["args"]["Addr"], e["args"]["Bytes"]) for e in memory))


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
