"""The command ``isonorm`` and its trainings, struck in the middle: functions for processes of
their own.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

from isonorm.lab import checkpoints, experiment, jobs

STRIKES = {
    "itself": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "the command": lambda: os.kill(os.getppid(), signal.SIGKILL),
    "Ctrl-C": lambda: os.killpg(0, signal.SIGINT),
}


def work(
    training: str, strike: str, later: str, task: experiment.Experiment, pipe: Connection
) -> None:
    """Takes the place of ``jobs._work``, and strikes when a training has saved its first epoch,
    and what was saved before it is finished; a ``later`` one has saved nothing by then, or it would
    not be struck in its turn. Trainings are named by a part of their files' names.
    """
    save = checkpoints.save

    def save_then_strike(path: Path, *arguments, **options) -> None:
        if later in path.name:
            _wait()
        save(path, *arguments, **options)
        if training in path.name:
            while [p for p in path.parent.glob("*checkpoint*") if training not in p.name]:
                time.sleep(0.01)
            STRIKES[strike]()
            _wait()

    checkpoints.save = save_then_strike
    experiment.SECONDS_BETWEEN_CHECKPOINTS = 0.0
    jobs._work(task, pipe)


def run_side_by_side(training: str, strike: str, words: list[str]) -> None:
    """The command, one of whose trainings strikes, in the session of a ``Copy``."""
    # as at a terminal: whoever runs the tests may ignore Ctrl-C, as a shell does with what it
    # starts in the background, and everything below inherits that
    signal.signal(signal.SIGINT, signal.default_int_handler)
    jobs._work = partial(work, training, strike, "none")
    _run(words)


def run_and_be_killed(checkpoint: str, words: list[str]) -> None:
    """The command, killed without warning as soon as it has saved this file."""
    save = checkpoints.save

    def save_then_die(path: Path, *arguments, **options) -> None:
        save(path, *arguments, **options)
        if path.name == checkpoint:
            STRIKES["itself"]()

    checkpoints.save = save_then_die
    experiment.SECONDS_BETWEEN_CHECKPOINTS = 0.0
    _run(words)


def run_and_stop_there(checkpoint: str, words: list[str]) -> None:
    """The command, which hangs as soon as it has saved this file."""
    save = checkpoints.save

    def save_then_hang(path: Path, *arguments, **options) -> None:
        save(path, *arguments, **options)
        if path.name == checkpoint:
            _wait()

    checkpoints.save = save_then_hang
    experiment.SECONDS_BETWEEN_CHECKPOINTS = 0.0
    _run(words)


def _wait() -> None:
    """Wait to be ended."""
    while True:
        signal.pause()


def _run(words: list[str]) -> None:
    from isonorm.lab import cli, figures  # which the processes that train do without

    figures.curves = lambda *arguments, **options: None
    figures.save = lambda *arguments: []
    sys.argv = ["isonorm", *words]
    cli.app()
