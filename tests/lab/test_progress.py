from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from isonorm.lab.progress import LineProgress, LiveProgress, Progress, progress_on

RUNS = ["plain, seed 0", "iternorm, seed 0"]


@pytest.fixture
def follow(make_result):
    """Shows a run that learns for three epochs, then one that diverges in its second."""

    def show(progress: Progress) -> None:
        with progress:
            for run, losses in zip(RUNS, ([1.0, 0.5, 0.25], [9.0, float("nan")]), strict=True):
                result = make_result(losses, [0.125] * len(losses))
                bar = progress.start(run, epochs=3)
                for epoch in result.epochs:
                    bar.epoch(epoch)
                bar.finish(result)

    return show


def terminal(**size: int) -> Console:
    return Console(file=io.StringIO(), force_terminal=True, color_system=None, **size)


def test_without_a_terminal_there_is_one_plain_line_for_each_run(follow):
    console = Console(file=io.StringIO(), width=20)
    follow(progress_on(console, epochs=[3, 3]))
    lines = console.file.getvalue().splitlines()
    assert lines[0].startswith("[1/2] plain, seed 0: loss 0.2500, error 12.50%, ")
    assert lines[1].startswith("[2/2] iternorm, seed 0: diverged, ")
    assert len(lines) == 2 and "\x1b" not in console.file.getvalue()


def test_long_runs_without_a_terminal_give_signs_of_life(follow, monkeypatch):
    monkeypatch.setattr(LineProgress, "SECONDS_BETWEEN_SIGNS", 0)
    console = Console(file=io.StringIO())
    follow(progress_on(console, epochs=[3, 3]))
    assert "[1/2] plain, seed 0: epoch 2/3, loss 0.5000, error 12.50%\n" in console.file.getvalue()


def test_on_a_terminal_every_run_has_a_bar(follow):
    console = terminal(width=100, height=30)
    progress = progress_on(console, epochs=[3, 3])
    assert isinstance(progress, LiveProgress)
    follow(progress)
    text = re.sub(r"\x1b\[[0-9?]*[A-Za-z]", "", console.file.getvalue())  # cursor movements
    everything, plain, iternorm = (line.split() for line in text.strip().splitlines()[-3:])
    assert everything[:2] == ["all", "runs"] and "6/6" in everything
    assert plain[:3] == ["plain,", "seed", "0"] and {"3/3", "0.2500,", "12.50%"} <= set(plain)
    assert iternorm[:3] == ["iternorm,", "seed", "0"] and {"2/2", "diverged"} <= set(iternorm)


def test_a_dumb_terminal_gets_lines(monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(progress_on(terminal(), epochs=[3, 3]), LineProgress)


@pytest.mark.parametrize(("height", "shown"), [(30, 9), (5, 3)])
def test_bars_of_the_past_make_room_on_a_small_terminal(make_result, height, shown):
    runs = [f"dbn, seed {seed}" for seed in range(9)]
    console = terminal(width=100, height=height)
    with LiveProgress(console, epochs=[1] * 9) as progress:
        for run in runs:
            bar = progress.start(run, epochs=1)
            bar.epoch(make_result([1.0], [0.5]).epochs[0])
            bar.finish(make_result([1.0], [0.5]))
        visible = [task.description for task in progress._bars.tasks if task.visible]
    assert visible == ["[bold]all runs[/bold]", *runs[-shown:]]


@pytest.mark.parametrize("kind", [LiveProgress, LineProgress])
def test_runs_at_once_are_told_apart(make_result, kind):
    console = terminal(width=100, height=30)
    slow, fast = make_result([1.0, 0.5, 0.25], [0.5] * 3), make_result([2.0, 1.5, 1.25], [0.25] * 3)
    with kind(console, epochs=[3, 3]) as progress:
        first, second = (progress.start(run, epochs=3) for run in RUNS)
        first.epoch(slow.epochs[0])
        for epoch in fast.epochs:
            second.epoch(epoch)
        second.finish(fast)
        first.epoch(slow.epochs[1])
        if kind is LiveProgress:
            tasks = [(task.completed, task.fields["standing"]) for task in progress._bars.tasks]
            assert tasks == [
                (5, ""), (2, "loss 0.5000, error 50.00%"), (3, "loss 1.2500, error 25.00%"),
            ]  # fmt: skip
        first.epoch(slow.epochs[2])
        first.finish(slow)
    if kind is LineProgress:
        lines = console.file.getvalue().splitlines()
        assert lines[0].startswith("[2/2] iternorm, seed 0: loss 1.2500, error 25.00%, ")
        assert lines[1].startswith("[1/2] plain, seed 0: loss 0.2500, error 50.00%, ")
