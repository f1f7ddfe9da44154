"""Processes that tests start: what they say is read while they run, every wait has a limit, and
they end with all that they started.

A ``Copy`` begins at once: it is copied from a process that imported what takes seconds, and did
nothing else. A ``Command`` is for tests of how a process begins, and of other programs.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, NamedTuple, Self

import pytest

#: Seconds after which a wait counts as endless. A loaded machine is slow, so this is no measure of
#: speed: only a test that fails waits as long.
LIMIT = 1200.0
#: Seconds that processes get to end after another of them has failed.
SECONDS_AFTER_A_FAILURE = 30.0

#: One for each process that runs tests, from its first use to its end. It imports what its copies
#: need: an optimizer alone brings torch's compiler.
COPIES = get_context("forkserver")
COPIES.set_forkserver_preload(["torch._dynamo", "torch.distributed.run", "isonorm.lab.cli"])


class Ended(NamedTuple):
    """How a process ended, and its words."""

    code: int
    output: str
    errors: str


class _Running:
    """A process in a session of its own, whose words are read by threads as they come."""

    def __init__(self, pid: int, pipes: Sequence[IO[bytes]]) -> None:
        self._pid = pid
        self._pipes = pipes
        self._words = [bytearray() for _ in pipes]
        self._readers = [
            threading.Thread(target=_read, args=pair, daemon=True)
            for pair in zip(pipes, self._words, strict=True)
        ]
        for reader in self._readers:
            reader.start()

    @property
    def returncode(self) -> int | None:
        raise NotImplementedError

    def _join(self, timeout: float | None = None) -> None:
        raise NotImplementedError

    def end(self) -> Ended:
        """Wait for the end of the process and of all that hold its pipes."""
        return together(self)[0]

    def until(self, condition: Callable[[], object]) -> None:
        """Wait for a condition that the running process brings about."""
        deadline = time.monotonic() + LIMIT
        while not condition():
            self._join(0.01)
            if self.returncode is not None and not condition():
                pytest.fail(f"the process ended too early:\n{self.account()}", pytrace=False)
            if time.monotonic() > deadline:
                self.abort()
                pytest.fail(f"nothing came in {LIMIT} s:\n{self.account()}", pytrace=False)

    def over(self, patience: float = 0.0) -> bool:
        """Return whether it has ended with all that hold its pipes, if need be soon."""
        deadline = time.monotonic() + patience
        for reader in self._readers:
            reader.join(max(0.0, deadline - time.monotonic()))
        return not any(reader.is_alive() for reader in self._readers)

    def ended(self) -> Ended:
        """Return how it ended, when it is over."""
        self._join()
        assert self.returncode is not None
        output, errors = (words.decode(errors="replace") for words in self._words)
        return Ended(self.returncode, output, errors)

    def account(self) -> str:
        """Return how it stands, and its words."""
        words = b"\n".join(self._words).decode(errors="replace")
        return f"process {self._pid}, exit status {self.returncode}:\n{words}"

    def abort(self) -> None:
        """End it with a last word of every thread, from Python's faulthandler."""
        self._signal(signal.SIGABRT)
        self.over(patience=10)
        self.kill()

    def interrupt(self) -> None:
        """Send Ctrl-C, as a terminal does: to the process and those of its group."""
        os.killpg(self._pid, signal.SIGINT)

    def kill(self) -> None:
        """End the process with all that it started and that still runs."""
        self._signal(signal.SIGKILL)
        self._join()
        self.over(patience=10)

    def _signal(self, number: int) -> None:
        running = set() if self.returncode is not None else {self._pid}
        for pid in _family(self._pid) | running:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()


class Copy(_Running):
    """A process that calls a function of a module."""

    def __init__(self, function: Callable, *arguments: object) -> None:
        pipes = [COPIES.Pipe(duplex=False) for _ in range(2)]
        theirs = [theirs for _, theirs in pipes]
        self._process = COPIES.Process(target=_call, args=(theirs, function, arguments))
        self._process.start()
        for pipe in theirs:
            pipe.close()
        files = [os.fdopen(os.dup(ours.fileno()), "rb", buffering=0) for ours, _ in pipes]
        for ours, _ in pipes:
            ours.close()
        assert self._process.pid is not None
        super().__init__(self._process.pid, files)

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def _join(self, timeout: float | None = None) -> None:
        self._process.join(timeout)


class Command(_Running):
    """A process that runs a program from its beginning, with ``more`` in its environment."""

    def __init__(self, words: Sequence[str], more: Mapping[str, str] | None = None) -> None:
        self._process = subprocess.Popen(
            words,
            env={**os.environ, "PYTHONFAULTHANDLER": "1", **(more or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
        )
        assert self._process.stdout is not None and self._process.stderr is not None
        super().__init__(self._process.pid, [self._process.stdout, self._process.stderr])

    @property
    def returncode(self) -> int | None:
        return self._process.poll()

    def _join(self, timeout: float | None = None) -> None:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout)


def call(function: Callable, *arguments: object) -> Ended:
    """Call a function of a module in a copy, and wait for the end."""
    with Copy(function, *arguments) as copy:
        return copy.end()


def python(*words: str, more: Mapping[str, str] | None = None) -> Ended:
    """Run Python from its beginning, as in ``python("-c", script)``, and wait for the end."""
    paths = os.pathsep.join(filter(None, sys.path))
    environment = {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1", **(more or {})}
    with Command([sys.executable, *words], environment) as command:
        return command.end()


def together(*running: _Running) -> list[Ended]:
    """Wait for the end of processes that need each other.

    Where one has failed, the others get some seconds. Whatever goes on past the limit is aborted,
    and the test fails with the words of all.
    """
    deadline = time.monotonic() + LIMIT
    while pending := [process for process in running if not process.over()]:
        if any(process.returncode for process in running):
            deadline = min(deadline, time.monotonic() + SECONDS_AFTER_A_FAILURE)
        if time.monotonic() > deadline:
            for process in pending:
                process.abort()
            accounts = "\n\n".join(process.account() for process in running)
            pytest.fail(f"processes did not end:\n{accounts}", pytrace=False)
        pending[0].over(patience=0.1)
    return [process.ended() for process in running]


def _call(pipes: list[Connection], function: Callable, arguments: tuple[object, ...]) -> None:
    os.setsid()
    for pipe, standard in zip(pipes, (1, 2), strict=True):
        os.dup2(pipe.fileno(), standard)
        pipe.close()
    faulthandler.enable()
    function(*arguments)


def _read(pipe: IO[bytes], words: bytearray) -> None:
    with pipe:
        while part := pipe.read(2**16):
            words += part


def _family(leader: int) -> set[int]:
    """Return the processes of a leader's session and all that descend from it."""
    parents: dict[int, int] = {}
    found: set[int] = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            _, parent, _, session = path.read_text().rpartition(")")[2].split()[:4]
            pid = int(path.parent.name)
            parents[pid] = int(parent)
            if int(session) == leader:
                found.add(pid)
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found
