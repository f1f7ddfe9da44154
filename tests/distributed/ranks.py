"""Processes for the ranks of distributed tests."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

from tests.distributed import worker
from tests.processes import COPIES, LIMIT


class Ranks:
    """Processes that stand by to be the ranks of one task after another, functions of modules.

    A call that fails or takes too long ends them all; the next one starts new ones.
    """

    timeout = LIMIT  # seconds after which a call, with the start of its processes, is taken to hang
    collective_timeout = LIMIT / 2  # the same for one collective
    grace = 30  # seconds that ranks have to answer after another has failed

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.calls = 0
        self.kept = 0  # the size of the group that the last call has left standing
        self.processes: list[BaseProcess] = []
        self.connections: list = []

    def start(self, rank: int) -> None:
        ours, theirs = COPIES.Pipe()
        log = self.folder / f"rank{rank}.log"
        process = COPIES.Process(target=worker.main, args=(theirs, log))
        process.start()
        theirs.close()
        self.processes.append(process)
        self.connections.append(ours)

    def run(
        self, function: Callable, shares: list, *arguments, keep: bool = False, **keywords
    ) -> list:
        """``function(share, *arguments, **keywords)`` on as many ranks as there are shares. Their
        group may be kept for a next call, which begins at once then.
        """
        for rank in range(len(self.processes), len(shares)):
            self.start(rank)
        self.calls += 1
        task = {
            "function": function,
            "keywords": keywords,
            "rendezvous": str(self.folder / f"rendezvous{self.calls}"),
            "world_size": len(shares),
            "timeout": self.collective_timeout,
            "new": self.kept != len(shares),
            "keep": keep,
        }
        self.kept = len(shares) if keep else 0
        failures = ["the call did not end"]
        try:
            for rank, share in enumerate(shares):
                own = {"rank": rank, "arguments": (share, *arguments)}
                self.connections[rank].send_bytes(pickle.dumps(task | own))
            replies = self.replies(len(shares))
            failures = [f"rank {r}: {w}" for r, (k, w) in sorted(replies.items()) if k != "result"]
        finally:
            if failures:
                self.close()
        if failures:
            pytest.fail("\n".join(failures), pytrace=False)
        return [replies[rank][1] for rank in range(len(shares))]

    def replies(self, world_size: int) -> dict[int, tuple[str, Any]]:
        """What each rank answers: its result, or how it failed. After the first failure the
        others, who may be waiting for that rank, get a few seconds.
        """
        replies: dict[int, tuple[str, Any]] = {}
        deadline = time.monotonic() + self.timeout
        while len(replies) < world_size:
            pending = {self.connections[r]: r for r in range(world_size) if r not in replies}
            for connection in wait(list(pending), max(0.0, deadline - time.monotonic())):
                reply = self.receive(pending[connection])
                replies[pending.pop(connection)] = reply
                if reply[0] != "result":
                    deadline = min(deadline, time.monotonic() + self.grace)
            if pending and time.monotonic() > deadline:
                replies |= {rank: ("hang", "no answer") for rank in pending.values()}
        return replies

    def receive(self, rank: int) -> tuple[str, Any]:
        try:
            return pickle.loads(self.connections[rank].recv_bytes())
        except (EOFError, ConnectionResetError):
            log = (self.folder / f"rank{rank}.log").read_text(errors="replace")
            return "death", f"the process ended; its last words were {log[-2000:]}"

    def close(self) -> None:
        for connection in self.connections:
            connection.close()
        for process in self.processes:
            process.kill()
            process.join()
        self.processes, self.connections, self.kept = [], [], 0
