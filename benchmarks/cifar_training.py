"""What the CIFAR-10 benchmark trains: the VGG of IterNorm's Figure 6 with any norm, one network
after the other or several at once.
"""

from __future__ import annotations

import argparse
import math
import signal
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from functools import cache
from multiprocessing import active_children, get_context
from typing import Any, NamedTuple

import torch
from torch import nn

import isonorm
from isonorm.lab.data import DataSet
from isonorm.lab.ingredients import build, read_data
from isonorm.lab.machine import Machine
from isonorm.lab.recipe import Configuration
from isonorm.lab.recipes import find_recipe
from isonorm.lab.recipes.common import ITERNORM
from isonorm.lab.train import Result, seeded, train

from .report import origin

RECIPE, CONFIGURATION = "iternorm2019-fig6", "BN, base"


class Unusable(Exception):
    """Why there is no result; a sentence for the user."""


class Task(NamedTuple):
    """One training: which norm, by the lab's name or as a class, which seed, which kernels."""

    norm: str | type[nn.Module]
    seed: int = 0
    backend: str = "auto"


@dataclass(frozen=True)
class Course:
    """What all trainings of a run share: the first epochs of the recipe, on a machine."""

    folder: str  # of CIFAR-10's files
    machine: Machine
    epochs: int
    batch_size: int | None = None  # None: the recipe's
    quick: bool = False  # the recipe's quick scale: a narrow network, a few images

    @property
    def data(self) -> DataSet:
        return _read(self.folder, self.quick)

    def configuration(self, norm: str | type[nn.Module]) -> Configuration:
        recipe = find_recipe(RECIPE)
        base = (recipe.shrunk() if self.quick else recipe)[CONFIGURATION]
        plan = replace(  # the beginning of the whole course, at quick scale too
            recipe[CONFIGURATION].plan,
            epochs=self.epochs,
            batch_size=self.batch_size or base.plan.batch_size,
        )
        return replace(base, norm=norm, plan=plan)  # networks take a class like a name

    def trainer(self) -> Callable[[Task], Result]:
        """What does a training, in this process."""
        data, fabric, machine = self.data, self.machine.launch(), self.machine

        def do(task: Task) -> Result:
            configuration = self.configuration(task.norm)
            model = seeded(task.seed, lambda: build(configuration, data))
            try:
                with machine.settings(), isonorm.backend(task.backend):
                    return train(
                        machine.prepare(model),
                        data,
                        configuration.plan,
                        seed=task.seed,
                        fabric=fabric,
                        compile_mode=machine.compile_mode,
                    )
            finally:  # the next one finds the device as this one did
                del model
                if machine.compile_mode is not None:
                    torch.compiler.reset()
                torch.cuda.empty_cache()

        return do

    def trainings(self, tasks: Sequence[Task]) -> Generator[tuple[Task, Result], None, None]:
        """Each training with its result as it ends, ``machine.jobs`` of them at once.

        Not by ``lab.jobs``, whose processes run a recipe's configurations with one backend, and
        tell how to resume.
        """
        if self.machine.jobs == 1:
            do = self.trainer()
            for task in tasks:
                yield task, do(task)
            return
        processes = min(self.machine.jobs, len(tasks))
        spawn = get_context("spawn")  # CUDA does not survive a fork
        others = active_children()
        with ProcessPoolExecutor(processes, spawn, _enter, (self,)) as pool:
            running = {pool.submit(_run, task): task for task in tasks}
            try:
                for future in as_completed(running):
                    yield running[future], future.result()
            except BaseException:  # the pool would wait for what trains, and begin what is next
                for process in active_children():
                    if process not in others:
                        process.terminate()
                raise


def curve(result: Result) -> dict[str, Any]:
    """Losses and errors, the last and all; None for what is not finite, which JSON cannot say."""
    found: dict[str, Any] = {}
    for name in ("train_loss", "test_error"):
        values = [getattr(epoch, name) for epoch in result.epochs]
        finite = [value if math.isfinite(value) else None for value in values]
        found |= {f"final_{name}": finite[-1], name: finite}
    return found


def record(options: argparse.Namespace, course: Course) -> dict:
    """Where a record comes from, and what is trained."""
    words = [options.word, "--data", "DIR"]
    for name in ("epochs", "batch", "seeds", "jobs", "device", "precision", "compile"):
        value = getattr(options, name, None)
        words += [] if value is None else [f"--{name}", str(value)]
    words += ["--backends", *options.backends] if options.word == "curves" else []
    words += ["--quick"] if options.quick else []
    device = course.machine.device
    content = origin("benchmarks.cifar", words, gpu=device if device.startswith("cuda") else None)
    about = course.configuration(ITERNORM).describe()
    train, test = len(course.data.train_labels), len(course.data.test_labels)
    images = f"{train} to train on, {test} to test on"
    return content | {"trained": f"{about['network']}, {about['training']}", "images": images}


@cache
def _read(folder: str, quick: bool) -> DataSet:
    """Once in a process."""
    data = read_data(find_recipe(RECIPE), folder, quick=quick)
    assert isinstance(data, DataSet)
    return data


_do: Callable[[Task], Result]  # in a process of a pool, where it is made once


def _enter(course: Course) -> None:
    global _do
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that ends this one
    _do = course.trainer()


def _run(task: Task) -> Result:
    return _do(task)
