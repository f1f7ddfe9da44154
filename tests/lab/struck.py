"""A run whose trainings strike, each in its process: ``work`` takes the place of ``jobs._work``.

As a script it is the command ``isonorm`` so changed. The environment says which training strikes,
and how: processes that are spawned inherit nothing else.
"""

from __future__ import annotations

import os
import signal
import time
from multiprocessing.connection import Connection
from pathlib import Path

from isonorm.lab import checkpoints, experiment, jobs

STRIKES = {
    "itself": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "the command": lambda: os.kill(os.getppid(), signal.SIGKILL),
    "Ctrl-C": lambda: os.killpg(0, signal.SIGINT),
}


def environment(training: str, strike: str, later: str = "none") -> dict[str, str]:
    """Strikes when a training has saved its first epoch, and what was saved before it is finished;
    a ``later`` one has saved nothing by then, or it would not be struck in its turn. Trainings are
    named by a part of their files' names.
    """
    return {"STRUCK_TRAINING": training, "STRUCK_LATER": later, "STRUCK_HOW": strike}


def work(task: experiment.Experiment, pipe: Connection) -> None:
    training, later = os.environ["STRUCK_TRAINING"], os.environ["STRUCK_LATER"]
    save = checkpoints.save

    def save_then_strike(path: Path, *arguments, **options) -> None:
        if later in path.name:
            time.sleep(60)
        save(path, *arguments, **options)
        if training in path.name:
            while [p for p in path.parent.glob("*checkpoint*") if training not in p.name]:
                time.sleep(0.01)
            STRIKES[os.environ["STRUCK_HOW"]]()
            time.sleep(60)

    checkpoints.save = save_then_strike
    experiment.SECONDS_BETWEEN_CHECKPOINTS = 0.0
    jobs._work(task, pipe)


if __name__ == "__main__":  # the processes that train import this file, too, but no command
    from isonorm.lab import cli, figures

    jobs._work, figures.save = work, lambda *arguments: []
    # as at a terminal: whoever runs the tests may ignore Ctrl-C, as a shell does with what it
    # starts in the background, and everything below inherits that
    signal.signal(signal.SIGINT, signal.default_int_handler)
    cli.app()
