"""Progress of trainings: live bars on a terminal, plain lines in a file or a CI log."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Protocol, Self

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress

from .output import say, shown
from .train import Epoch, Result


class Bar(Protocol):
    """One run being shown."""

    def epoch(self, epoch: Epoch) -> None: ...
    def finish(self, result: Result) -> None: ...


class Progress(Protocol):
    """Told what happens, shows it. Used as a context manager around all runs, of which several may
    be on their way at once.
    """

    def __enter__(self) -> Self: ...
    def __exit__(self, *exception: object) -> None: ...
    def start(self, run: str, epochs: int) -> Bar: ...


def progress_on(console: Console, epochs: Sequence[int]) -> Progress:
    """Bars where they can be redrawn, lines elsewhere, for runs of so many epochs each."""
    redrawn = console.is_terminal and not console.is_dumb_terminal
    return (LiveProgress if redrawn else LineProgress)(console, epochs)


class LiveProgress:
    """A bar for each run, with its loss, error and time left, below one for all of them."""

    def __init__(self, console: Console, epochs: Sequence[int]) -> None:
        self._console = console
        self._bars = RichProgress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=16),
            TextColumn("{task.completed:.0f}/{task.total:.0f}", justify="right"),
            TextColumn("{task.fields[standing]}"),
            TimeRemainingColumn(compact=True, elapsed_when_finished=True),
            console=console,
            # Norms differ in speed: a long memory keeps the time left of all runs from jumping.
            speed_estimate_period=120,
        )
        self._all = self._bars.add_task("[bold]all runs[/bold]", total=sum(epochs), standing="")
        self._running = 0
        self._finished: deque[TaskID] = deque()

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bars.stop()

    def start(self, run: str, epochs: int) -> _LiveBar:
        self._running += 1
        lines_besides_finished = self._running + 2  # that of all runs, and the cursor's
        while (
            self._finished and len(self._finished) + lines_besides_finished > self._console.height
        ):
            self._bars.update(self._finished.popleft(), visible=False)
        task = self._bars.add_task(escape(shown(run)), total=epochs, standing="")
        return _LiveBar(self._bars, task, epochs, all_runs=self._all, on_finish=self._finish)

    def _finish(self, task: TaskID) -> None:
        self._running -= 1
        self._finished.append(task)


@dataclass
class _LiveBar:
    bars: RichProgress
    task: TaskID
    epochs: int
    all_runs: TaskID
    on_finish: Callable[[TaskID], None]
    shown: int = 0

    def epoch(self, epoch: Epoch) -> None:
        self.shown += 1
        self.bars.update(self.task, completed=epoch.number, standing=_standing(epoch))
        self.bars.advance(self.all_runs)

    def finish(self, result: Result) -> None:
        if result.diverged:
            self.bars.update(self.task, total=len(result.epochs), standing="[red]diverged[/red]")
        self.bars.advance(
            self.all_runs, self.epochs - self.shown
        )  # of a resumed run, or a lost one
        self.on_finish(self.task)


class LineProgress:
    """A line for each finished run, and a sign of life from time to time in long ones."""

    SECONDS_BETWEEN_SIGNS = 30

    def __init__(self, console: Console, epochs: Sequence[int]) -> None:
        self._console, self._total, self._number = console, len(epochs), 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def start(self, run: str, epochs: int) -> _Line:
        self._number += 1
        prefix = f"[{self._number:>{len(str(self._total))}}/{self._total}] {run}:"
        return _Line(self._console, prefix, epochs, self.SECONDS_BETWEEN_SIGNS)


class _Line:
    def __init__(self, console: Console, prefix: str, epochs: int, between_signs: float) -> None:
        self._console, self._prefix, self._epochs = console, prefix, epochs
        self._between_signs = between_signs
        self._began = self._last_sign = monotonic()

    def epoch(self, epoch: Epoch) -> None:
        if monotonic() - self._last_sign >= self._between_signs:
            self._last_sign = monotonic()
            self._say(f"epoch {epoch.number}/{self._epochs}, {_standing(epoch)}")

    def finish(self, result: Result) -> None:
        standing = "diverged" if result.diverged else _standing(result.epochs[-1])
        self._say(f"{standing}, {monotonic() - self._began:.1f} s")

    def _say(self, text: str) -> None:
        say(self._console, f"{self._prefix} {text}")


def _standing(epoch: Epoch) -> str:
    return f"loss {epoch.train_loss:.4f}, error {epoch.test_error:6.2%}"
