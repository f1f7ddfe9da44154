"""``make fuzz``: the fuzzers of ``tests/fuzz/test_*.py`` for as long as asked, without pytest.

Each job is a process with one torch thread that takes turns: some examples of one fuzzer, with a
seed that follows from ``--seed``, the fuzzer and the round. A fuzzer that has found something
rests; the others go on. A process that dies or hangs has found something, too.
"""

from __future__ import annotations

import argparse
import builtins
import contextlib
import faulthandler
import functools
import hashlib
import importlib
import os
import signal
import sys
import tempfile
import time
import tomllib
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
SPAWN = get_context("spawn")
SECONDS_PER_TURN = 20


class Turn(NamedTuple):
    """Examples of one fuzzer: its name, the seed, the round and their number say which."""

    name: str
    seed: int
    round: int
    examples: int
    log: str | None = None  # a file for every example, before it is tried

    @property
    def command(self) -> str:
        return (
            f'make fuzz ARGS="--only {self.name} --seed {self.seed} --round {self.round} '
            f'--examples {self.examples}"'
        )


class Outcome(NamedTuple):
    """How a turn ended: examples executed, seconds, and the text of what it found."""

    examples: int
    seconds: float
    finding: str | None
    died: bool = False


# --- In a job's process ---------------------------------------------------------------------------


def find_fuzzers(folder: Path) -> dict[str, Callable[..., None]]:
    """Return the functions with ``@given`` in ``folder/test_*.py`` by their names without test_."""
    import torch
    from hypothesis import is_hypothesis_test, settings

    torch.set_num_threads(1)
    sys.path[0] = str(ROOT)  # instead of this file's folder
    sys.path.insert(1, str(folder.parents[1]))
    importlib.import_module("tests.fuzz.conftest")
    settings.load_profile("fuzz")
    found: dict[str, Callable[..., None]] = {}
    for path in sorted(folder.glob("test_*.py")):
        module = importlib.import_module(f"{folder.parent.name}.{folder.name}.{path.stem}")
        for name, value in vars(module).items():
            if not (name.startswith("test_") and is_hypothesis_test(value)):
                continue
            if value.__module__ != module.__name__:
                continue
            name = name.removeprefix("test_")
            if name in found:
                raise ValueError(f"two fuzzers are named {name!r}: rename the one in {path}.")
            marks = {mark.name for mark in getattr(value, "pytestmark", ())}
            if "gpu" not in marks or torch.cuda.is_available():
                found[name] = value
    return found


def pin_constants() -> None:
    """Keep hypothesis to the constants of the modules imported by now. It draws numbers that a
    module mentions; with later imports, a turn's examples would depend on the turns before.
    """
    from hypothesis.internal.conjecture import providers

    constants = providers._get_local_constants()
    providers._get_local_constants = lambda: constants


def turn_warnings_into_errors() -> None:
    """Apply the filters of pytest's configuration, in its order: the last one wins."""
    configuration = tomllib.loads((ROOT / "pyproject.toml").read_text())
    for line in configuration["tool"]["pytest"]["ini_options"]["filterwarnings"]:
        action, message, category, module, *_ = [*line.split(":"), "", "", "", ""]
        kind = getattr(builtins, category or "Warning")
        warnings.filterwarnings(action, message, kind, module)


def take_turns(folder: Path, connection: Connection, executed: Any) -> None:
    """Take turns until the other end of the connection closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the runner's
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    faulthandler.enable()
    fuzzers = find_fuzzers(folder)
    pin_constants()
    turn_warnings_into_errors()
    with contextlib.suppress(EOFError, KeyboardInterrupt, ConnectionError):
        connection.send(None)  # all is imported
        while True:
            turn = connection.recv()
            connection.send(take(turn, fuzzers[turn.name], executed))


def take(turn: Turn, fuzzer: Any, executed: Any) -> Outcome:
    """Run the examples of a turn; one that fails is shrunk by hypothesis."""
    from hypothesis import Verbosity, seed, settings

    inner = fuzzer.hypothesis.inner_test

    @functools.wraps(inner)
    def counted(*args: Any, **kwargs: Any) -> Any:
        executed.value += 1
        return inner(*args, **kwargs)

    number = hashlib.sha256(f"{turn.seed}/{turn.name}/{turn.round}".encode()).digest()[:8]
    seed(int.from_bytes(number))(fuzzer)
    verbosity = Verbosity.verbose if turn.log else Verbosity.normal
    fuzzer._hypothesis_internal_use_settings = settings(
        settings.get_profile("fuzz"), max_examples=turn.examples, verbosity=verbosity
    )
    fuzzer.hypothesis.inner_test = counted
    started = time.monotonic()
    try:
        with open(turn.log or os.devnull, "w", buffering=1) as log, contextlib.redirect_stdout(log):
            fuzzer()
        finding = None
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # pytest's outcomes are none of Exception
        finding = "".join(traceback.format_exception(error))
    finally:
        fuzzer.hypothesis.inner_test = inner
    return Outcome(executed.value, time.monotonic() - started, finding)


# --- In the runner --------------------------------------------------------------------------------


class Job:
    """A process that takes one turn at a time."""

    def __init__(self, folder: Path) -> None:
        self._executed = SPAWN.Value("q", 0)
        self.connection, theirs = SPAWN.Pipe()
        self._process = SPAWN.Process(target=take_turns, args=(folder, theirs, self._executed))
        self._process.start()
        theirs.close()
        self.turn: Turn | None = None
        self._is_ready = False
        self._started = time.monotonic()

    def give(self, turn: Turn) -> None:
        self.turn = turn
        self._started = self._last_sign = time.monotonic()
        self._executed.value = self._seen = 0
        self.connection.send(turn)

    def is_stuck(self, patience: float) -> bool:
        """Return whether no example has begun for so many seconds."""
        if self._executed.value != self._seen or not self._is_ready:
            self._seen, self._last_sign = self._executed.value, time.monotonic()
        return time.monotonic() - self._last_sign > patience

    def outcome(self) -> Outcome | None:
        """Return how the turn ended, None if it has only begun; a process that died has found
        something.
        """
        try:
            outcome = self.connection.recv()
            self._is_ready = True
            return outcome
        except (EOFError, ConnectionError):
            self._process.join()
            code = self._process.exitcode or 0
            how = signal.Signals(-code).name if code < 0 else f"exit status {code}"
            return self.cut_short(f"The process ended with {how}")

    def cut_short(self, how: str | None = None) -> Outcome:
        """Return the outcome of a turn that has not reported one."""
        executed = self._executed.value
        finding = how and f"{how} in example {executed} of this turn.\n"
        return Outcome(executed, time.monotonic() - self._started, finding, died=how is not None)

    def stop(self, first: signal.Signals = signal.SIGTERM) -> None:
        """End the process: by a signal that lets it tidy up, then by force."""
        if self._process.is_alive() and self._process.pid is not None:
            os.kill(self._process.pid, first)
            self._process.join(5)
        self._process.kill()
        self._process.join()
        self.connection.close()


@dataclass
class Tally:
    """What a fuzzer has done so far, and how many examples its next turn gets."""

    examples: int = 0
    rounds: int = 0
    findings: int = 0
    seconds: float = 0.0
    in_flight: int = 0
    next_examples: int = 10

    def add(self, outcome: Outcome) -> None:
        self.examples += outcome.examples
        self.seconds += outcome.seconds
        self.findings += outcome.finding is not None
        fitting = SECONDS_PER_TURN * outcome.examples / max(outcome.seconds, 1e-3)
        self.next_examples = max(1, min(round(fitting), 10 * self.next_examples))


@dataclass
class Run:
    """Turns given to jobs until the time is over."""

    options: argparse.Namespace
    tallies: dict[str, Tally]
    jobs: list[Job] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.started = self._reported = time.monotonic()
        self.logs = tempfile.TemporaryDirectory()

    @property
    def is_single(self) -> bool:
        return self.options.round is not None

    def next_turn(self) -> Turn | None:
        """Return the next turn of the fuzzer that has had least time; None at the end."""
        left = 60 * self.options.minutes - (time.monotonic() - self.started)
        awake = {name: t for name, t in self.tallies.items() if not t.findings}
        if self.is_single:
            awake = {name: t for name, t in awake.items() if not t.rounds}
        if not awake or (left <= 0 and not self.is_single):
            return None
        name, tally = min(
            awake.items(), key=lambda item: item[1].seconds + SECONDS_PER_TURN * item[1].in_flight
        )
        tally.rounds += 1
        tally.in_flight += 1
        if self.is_single:
            return Turn(name, self.options.seed, self.options.round, self.options.examples)
        examples = max(1, round(tally.next_examples * min(1.0, left / SECONDS_PER_TURN)))
        return Turn(name, self.options.seed, tally.rounds - 1, examples)

    def go(self) -> None:
        for _ in range(self.options.jobs):
            self.jobs.append(Job(self.options.folder))
        while True:
            for job in self.jobs:
                if job.turn is None and (turn := self.next_turn()) is not None:
                    job.give(turn)
            busy = {job.connection: job for job in self.jobs if job.turn is not None}
            if not busy:
                return
            for connection in wait(list(busy), timeout=1):
                job = busy[connection]  # type: ignore[index]
                if (outcome := job.outcome()) is not None:
                    self.settle(job, outcome)
            for job in self.jobs:
                if job.turn is not None and job.is_stuck(self.options.patience):
                    how = f"Nothing happened for {self.options.patience:g} seconds"
                    self.settle(job, job.cut_short(how))
            self.report_progress()

    def settle(self, job: Job, outcome: Outcome) -> None:
        """Count a turn, print its finding, and replace a process that died or hangs."""
        turn, job.turn = job.turn, None
        assert turn is not None
        if outcome.died:
            job.stop(signal.SIGABRT)  # faulthandler says where it hangs
            self.jobs[self.jobs.index(job)] = replacement = Job(self.options.folder)
            if turn.log is None:  # once more, with every example written down
                log = os.path.join(self.logs.name, f"{turn.name}-{turn.round}")
                self.print_finding(turn, outcome)
                self.count(turn, outcome)
                self.tallies[turn.name].in_flight += 1
                replacement.give(turn._replace(log=log))
                return
        if turn.log is None:
            self.count(turn, outcome)
            if outcome.finding:
                self.print_finding(turn, outcome)
        else:
            self.tallies[turn.name].in_flight -= 1
            self.print_last_example(turn, outcome)

    def count(self, turn: Turn, outcome: Outcome) -> None:
        tally = self.tallies[turn.name]
        tally.in_flight -= 1
        tally.add(outcome)

    def print_finding(self, turn: Turn, outcome: Outcome) -> None:
        where = f"found in round {turn.round}, {outcome.examples} examples with shrinking"
        print(f"\n=== {turn.name}: {where} ===\n{outcome.finding}", flush=True)
        print(f"Again by: {turn.command}\n", flush=True)

    def print_last_example(self, turn: Turn, outcome: Outcome) -> None:
        """Print the example with which a repeated turn died."""
        if not outcome.died:
            print(f"{turn.name}: the same turn did not end its process when repeated.", flush=True)
            return
        with open(turn.log or os.devnull) as log:
            _, call, rest = log.read().rpartition(f"test_{turn.name}(")
        print(f"{turn.name}: the example at which it ended: {call}{rest}", flush=True)

    def report_progress(self) -> None:
        now = time.monotonic()
        if now - self._reported > 60 and not self.is_single:
            self._reported = now
            examples = sum(t.examples for t in self.tallies.values())
            findings = sum(t.findings for t in self.tallies.values())
            minutes = (now - self.started) / 60
            print(f"{minutes:.0f} min: {examples} examples, {findings} findings", flush=True)

    def stop(self) -> None:
        """Stop all jobs, and count what unfinished turns have executed."""
        for job in self.jobs:
            if job.turn is not None:
                self.count(job.turn, job.cut_short())
            job.stop()
        self.logs.cleanup()


def print_table(tallies: dict[str, Tally]) -> None:
    width = max(map(len, tallies))
    print(f"\n{'fuzzer':{width}}  {'examples':>9} {'rounds':>7} {'findings':>9} {'seconds':>8}")
    for name, t in tallies.items():
        print(
            f"{name:{width}}  {t.examples:9} {t.rounds:7} {t.findings:9} {t.seconds:8.0f}",
            flush=True,
        )


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog='make fuzz ARGS="…"', description=__doc__)
    add = parser.add_argument
    add("--minutes", type=float, default=5, help="how long (default: 5)")
    add("--seed", type=int, default=0, help="another seed tries other examples (default: 0)")
    add("--jobs", type=int, default=os.cpu_count(), help="processes (default: one a core)")
    add("--only", action="append", help="a fuzzer's name; may be repeated (default: all)")
    add("--round", type=int, help="take one turn of the one fuzzer of --only: this one")
    add("--examples", type=int, default=1000, help="of the turn of --round (default: 1000)")
    add("--patience", type=float, default=300, help="seconds until an example hangs (default: 300)")
    add("--folder", type=Path, default=Path(__file__).parent, help="where test_*.py are")
    options = parser.parse_args(arguments)
    if options.round is not None:
        if len(options.only or ()) != 1:
            parser.error("--round repeats a turn of one fuzzer: name it with one --only.")
        options.jobs = 1
    for name in ("minutes", "jobs", "examples", "patience"):
        if not getattr(options, name) > 0:
            parser.error(f"--{name} must be positive; got {getattr(options, name)}.")
    options.folder = options.folder.resolve()
    return options


def main() -> int:
    options = parse()
    os.environ["OMP_NUM_THREADS"] = "1"
    for number in (signal.SIGINT, signal.SIGTERM):  # a script's background ignores Ctrl-C
        signal.signal(number, signal.default_int_handler)
    names = list(find_fuzzers(options.folder))
    for name in options.only or ():
        if name not in names:
            sys.exit(f"there is no fuzzer {name!r}; there are: {', '.join(names)}.")
    run = Run(options, {name: Tally() for name in options.only or names})
    interrupted = False
    try:
        run.go()
    except KeyboardInterrupt:
        interrupted = True
    finally:
        run.stop()
    print_table(run.tallies)
    if any(tally.findings for tally in run.tallies.values()):
        return 1
    return 130 if interrupted else 0


if __name__ == "__main__":
    sys.exit(main())
