"""Trainings of the CIFAR-10 benchmark that last, for the processes they run in: these import this
file alone, and none of what tests need.
"""

from __future__ import annotations

import time

from benchmarks.cifar_training import Course

SECONDS = 1200


class Endless(Course):
    """Trainings that end at once with seed 0, and with others after the test."""

    def trainer(self):
        return lambda task: time.sleep(SECONDS * task.seed)
