"""The time of a step on a GPU without the host's part: captured in a CUDA graph, then replayed.

In eager mode the host launches kernel by kernel, and of a small layer that is all one would time.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from statistics import median

import torch

Step = Callable[[], object]


def waits_for_device(step: Step) -> bool:
    """Whether a step needs a number from the device before it can go on, so that no graph can hold
    it: an eigendecomposition, say, that asks whether it has converged.
    """
    before = torch.cuda.get_sync_debug_mode()
    try:
        with warnings.catch_warnings():  # torch tells that it does not detect every wait
            warnings.filterwarnings("ignore", "Synchronization debug mode", UserWarning)
            torch.cuda.set_sync_debug_mode("error")
        step()
    except RuntimeError as error:
        if "synchronizing" not in str(error):
            raise
        return True
    finally:
        torch.cuda.set_sync_debug_mode(before)
    return False


def replay_seconds(step: Step, rounds: int = 15, least: float = 0.02) -> float:
    """Median seconds of a step over so many rounds, each of as many replays as take about ``least``
    seconds, and of one at least.
    """
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def seconds(calls: int) -> float:
        start.record()
        for _ in range(calls):
            graph.replay()
        stop.record()
        torch.cuda.synchronize()
        return start.elapsed_time(stop) / 1e3 / calls

    calls = max(1, int(least / max(seconds(2), 1e-6)))
    return median(seconds(calls) for _ in range(rounds))
