"""Processes that begin at once: copies of one that imported what takes seconds, and did nothing
else. Where a test is about the beginning of a process, it starts one of its own.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait

#: One for each process that runs tests, from its first use to its end. What it imports is what all
#: who are copied from it need: an optimizer alone brings torch's compiler.
COPIES = get_context("forkserver")
COPIES.set_forkserver_preload(["torch._dynamo", "torch.distributed.run", "isonorm.lab.cli"])


class Copy:
    """A process that calls a function of a module, and what it says: much like a ``Popen``."""

    def __init__(self, function: Callable, *arguments: object) -> None:
        pipes = [COPIES.Pipe(duplex=False) for _ in range(2)]
        self._ours = [ours for ours, _ in pipes]
        theirs = [theirs for _, theirs in pipes]
        self._process = COPIES.Process(target=_call, args=(theirs, function, arguments))
        self._process.start()
        for pipe in theirs:
            pipe.close()

    def communicate(self, timeout: float) -> tuple[str, str]:
        """Its output and its errors, when it has ended and with it all who hold these."""
        said: dict[Connection, bytes] = {pipe: b"" for pipe in self._ours}
        pending, deadline = list(said), time.monotonic() + timeout
        while pending:
            ready = wait(pending, max(0.0, deadline - time.monotonic()))
            if not ready:
                raise TimeoutError(f"no end after {timeout} seconds; until then {said.values()}")
            for pipe in ready:
                part = os.read(pipe.fileno(), 2**16)
                said[pipe] += part
                if not part:
                    pending.remove(pipe)
        self._process.join()
        output, errors = (words.decode() for words in said.values())
        return output, errors

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def kill(self) -> None:
        self._process.kill()
        self._process.join()
        for pipe in self._ours:
            pipe.close()


def call(function: Callable, *arguments: object, timeout: float = 100) -> tuple[int, str, str]:
    """How the process ended that called the function, its output and its errors."""
    copy = Copy(function, *arguments)
    try:
        output, errors = copy.communicate(timeout)
        return copy.returncode, output, errors
    finally:
        copy.kill()


def _call(pipes: list[Connection], function: Callable, arguments: tuple[object, ...]) -> None:
    for pipe, standard in zip(pipes, (1, 2), strict=True):
        os.dup2(pipe.fileno(), standard)
        pipe.close()
    function(*arguments)
