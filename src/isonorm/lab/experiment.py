"""An experiment being run: training after training, each result on disk as soon as it is there."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from lightning_fabric import Fabric

from . import checkpoints, figures, run_files
from .claims import measure
from .comparison import Comparison, count
from .data import DataSet
from .ingredients import build, read_data
from .machine import Machine
from .pages import run as run_page
from .progress import Progress
from .recipe import Configuration, Recipe, trainings
from .streams import ImageFolders
from .threads import torch_threads
from .train import Result, seeded, train

CHECKPOINT = "checkpoint.safetensors"
SECONDS_BETWEEN_CHECKPOINTS = 30.0


class Trial(NamedTuple):
    """One training: a configuration with a seed, at a point of its grid where it has one."""

    name: str
    seed: int
    point: int | None = None
    validating: bool = False  # on images held out of the training set, to choose the point

    def label(self, recipe: Recipe) -> str:
        """For progress and tables: "IterNorm, lr=0.5, seed 0"."""
        search = recipe[self.name].search
        setting = f", {search.label(self.point)}" if search and self.point is not None else ""
        return f"{self.name}{setting}, seed {self.seed}" + ", validating" * self.validating

    def stem(self, recipe: Recipe) -> str:
        """For names of files."""
        number = [configuration.name for configuration in recipe.configurations].index(self.name)
        point = "" if self.point is None else f"-point{self.point}"
        return f"{number + 1:02}{point}-seed{self.seed}" + "-validating" * self.validating


@dataclass
class Experiment:
    """A run of a recipe, or of a comparison, as far as it has come, and the folder that holds the
    same.
    """

    recipe: Recipe  # at the scale it is run at
    scale: str
    seeds: int
    data: str  # folder
    machine: Machine
    folder: Path
    started: datetime
    status: str = "running"  # then "finished" or "interrupted"; a killed process leaves "running"
    results: dict[Trial, Result] = field(default_factory=dict)
    keep_weights: bool = False
    verify: bool = True  # the checksums of the data's archives
    only: tuple[str, ...] = ()  # patterns of the configurations; none: all
    comparison: Comparison | None = None  # where the recipe is no paper's

    def trials(self) -> Iterator[Trial]:
        """All trainings in order, with every configuration once before the next seed; the points
        that searches choose follow from the results there are by then.
        """
        for seed in range(self.seeds):
            for configuration in self.recipe.configurations:
                name, search = configuration.name, configuration.search
                if search is None:
                    yield Trial(name, seed)
                    continue
                if seed == 0:
                    validating = search.validation > 0
                    for point in range(len(search.points())):
                        yield Trial(name, seed, point, validating)
                if seed > 0 or search.validation:
                    yield Trial(name, seed, self.chosen_point(configuration))

    def chosen_point(self, configuration: Configuration) -> int | None:
        """The best point of a grid so far; a training that diverged is never the best."""
        if configuration.search is None:
            return None
        tried = {
            trial.point: measure(configuration.search.by, result)
            for trial, result in self.results.items()
            if trial.name == configuration.name and trial.seed == 0
            if trial.validating == (configuration.search.validation > 0)
        }
        return min(tried, key=lambda point: tried[point]) if tried else None

    def by_configuration(self) -> dict[str, Sequence[Result]]:
        """The results that count, those of chosen points, by configuration."""
        found: dict[str, Sequence[Result]] = {}
        for configuration in self.recipe.configurations:
            point = self.chosen_point(configuration)
            chosen = [
                result
                for trial, result in self.results.items()
                if trial.name == configuration.name
                and trial.point == point
                and not trial.validating
            ]
            if chosen:
                found[configuration.name] = chosen
        return found

    @property
    def epochs_left(self) -> list[int]:
        """The epochs of each training that is not finished."""
        left: list[int] = []
        for configuration in self.recipe.configurations:
            finished = sum(trial.name == configuration.name for trial in self.results)
            open_ = trainings(configuration, self.seeds) - finished
            left += [configuration.plan.epochs] * open_
        return left

    @property
    def caption(self) -> str:
        """One line for tables and figures: what is run, with as many seeds as have results."""
        title = self.recipe.title
        if self.comparison is None:
            title = f"{self.recipe.name}: {title}"
        counts = sorted({len(results) for results in self.by_configuration().values()})
        if not counts:
            return title
        fewer = f"{counts[0]} to " if len(counts) > 1 else ""
        return f"{title}, {fewer}{count(counts[-1], 'seed')}"

    def read_data(self) -> DataSet | ImageFolders:
        quick = self.scale == "quick"
        return read_data(self.recipe, self.data, quick=quick, verify=self.verify)

    @property
    def command(self) -> str:
        """The command line that repeats the run."""
        if self.comparison is not None:
            words = ["isonorm", *self.comparison.words(), "--folder", self.data]
        else:
            words = ["isonorm", "run", self.recipe.name, "--data", self.data]
            words += ["--scale", self.scale]
        words += ["--seeds", str(self.seeds)]
        for pattern in self.only:
            words += ["--only", pattern]
        words += ["--keep-weights"] * self.keep_weights + ["--no-verify"] * (not self.verify)
        return shlex.join([*words, *self.machine.words()])


def conduct(experiment: Experiment, fabric: Fabric, progress: Progress) -> Experiment:
    """Do every training that has no result yet. Ctrl-C keeps what there is, and its checkpoint."""
    recipe, machine, folder = experiment.recipe, experiment.machine, experiment.folder
    data = experiment.read_data()
    experiment.status = "running"
    run_files.write(experiment, fabric)
    try:
        with progress, torch_threads(machine.threads):
            for trial in experiment.trials():
                if trial in experiment.results:
                    continue
                configuration = recipe[trial.name].at(trial.point)
                plan, search, its_data = configuration.plan, configuration.search, data
                if trial.validating and search is not None and isinstance(data, DataSet):
                    its_data = data.hold_out(search.validation)
                progress.start(trial.label(recipe), plan.epochs)
                model = seeded(trial.seed, lambda c=configuration: build(c, data))
                stem = trial.stem(recipe)
                checkpoint = folder / f"{stem}-{CHECKPOINT}"
                result = train(
                    machine.prepare(model),
                    its_data,
                    plan,
                    seed=trial.seed,
                    fabric=fabric,
                    compile_mode=machine.compile_mode,
                    checkpoint=checkpoint,
                    seconds_between_checkpoints=SECONDS_BETWEEN_CHECKPOINTS,
                    measure_memory=experiment.comparison is not None,
                    on_epoch=progress.epoch,
                )
                experiment.results[trial] = result
                if experiment.keep_weights and fabric.is_global_zero:
                    checkpoints.save_weights(folder / f"{stem}.safetensors", model)
                run_files.write(experiment, fabric)
                if fabric.is_global_zero:
                    checkpoint.unlink(missing_ok=True)
                progress.finish(result)
        experiment.status = "finished"
    except KeyboardInterrupt:
        experiment.status = "interrupted"
    run_files.write(experiment, fabric)
    if experiment.by_configuration() and fabric.is_global_zero:
        draw(experiment)
        run_page.write(folder)
    return experiment


def draw(experiment: Experiment) -> None:
    """The curves as figures, in the run's folder."""
    figure = figures.curves(
        experiment.by_configuration(), experiment.caption, threshold=experiment.recipe.threshold
    )
    figures.save(figure, experiment.folder, "curves")
