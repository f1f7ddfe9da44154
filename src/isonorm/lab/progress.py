"""Progress of trainings: live bars on a terminal, plain lines in a file or a CI log."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from time import monotonic
from typing import Protocol, Self

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress

from .train import Epoch, Result


class Progress(Protocol):
    """Told what happens, shows it. Used as a context manager around all runs."""

    def __enter__(self) -> Self: ...
    def __exit__(self, *exception: object) -> None: ...
    def start(self, run: str, epochs: int) -> None: ...
    def epoch(self, epoch: Epoch) -> None: ...
    def finish(self, result: Result) -> None: ...


def progress_on(console: Console, epochs: Sequence[int]) -> Progress:
    """Bars where they can be redrawn, lines elsewhere, for runs of so many epochs each."""
    redrawn = console.is_terminal and not console.is_dumb_terminal
    return (LiveProgress if redrawn else LineProgress)(console, epochs)


class LiveProgress:
    """A bar for each run, with its loss, error and time left, below one for all of them."""

    def __init__(self, console: Console, epochs: Sequence[int]) -> None:
        self._console, self._epochs, self._shown = console, 0, 0
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
        self._current: TaskID = self._all
        self._finished: deque[TaskID] = deque()

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bars.stop()

    def start(self, run: str, epochs: int) -> None:
        self._epochs, self._shown = epochs, 0
        lines_besides_finished = 3  # this run's, that of all runs, and the cursor's
        while (
            self._finished and len(self._finished) + lines_besides_finished > self._console.height
        ):
            self._bars.update(self._finished.popleft(), visible=False)
        self._current = self._bars.add_task(escape(run), total=epochs, standing="")

    def epoch(self, epoch: Epoch) -> None:
        self._shown += 1
        self._bars.update(self._current, completed=epoch.number, standing=_standing(epoch))
        self._bars.advance(self._all)

    def finish(self, result: Result) -> None:
        if result.diverged:
            self._bars.update(
                self._current, total=len(result.epochs), standing="[red]diverged[/red]"
            )
        self._bars.advance(self._all, self._epochs - self._shown)  # of a resumed run, or a lost one
        self._finished.append(self._current)


class LineProgress:
    """A line for each finished run, and a sign of life from time to time in long ones."""

    SECONDS_BETWEEN_SIGNS = 30

    def __init__(self, console: Console, epochs: Sequence[int]) -> None:
        self._console, self._epochs = console, 0
        self._total, self._number = len(epochs), 0
        self._prefix = ""
        self._began = self._last_sign = monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def start(self, run: str, epochs: int) -> None:
        self._number, self._epochs = self._number + 1, epochs
        self._prefix = f"[{self._number:>{len(str(self._total))}}/{self._total}] {run}:"
        self._began = self._last_sign = monotonic()

    def epoch(self, epoch: Epoch) -> None:
        if monotonic() - self._last_sign >= self.SECONDS_BETWEEN_SIGNS:
            self._last_sign = monotonic()
            self._say(f"epoch {epoch.number}/{self._epochs}, {_standing(epoch)}")

    def finish(self, result: Result) -> None:
        standing = "diverged" if result.diverged else _standing(result.epochs[-1])
        self._say(f"{standing}, {monotonic() - self._began:.1f} s")

    def _say(self, text: str) -> None:
        self._console.print(f"{self._prefix} {text}", markup=False, highlight=False, soft_wrap=True)


def _standing(epoch: Epoch) -> str:
    return f"loss {epoch.train_loss:.4f}, error {epoch.test_error:6.2%}"
