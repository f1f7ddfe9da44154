"""An experiment: its trainings, their order, and what each of them does."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import isonorm

from . import checkpoints
from .claims import Verdict, judge, measure
from .comparison import Comparison, count
from .data import DataSet
from .ingredients import build, read_data
from .machine import Machine
from .recipe import Configuration, Recipe, Search, trainings
from .streams import ImageFolders
from .train import Epoch, Result, seeded, train

if TYPE_CHECKING:
    from lightning_fabric import Fabric

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
    environments: list[dict[str, Any]] = field(default_factory=list)  # the first, and others since

    def trials(self) -> Iterator[Trial]:
        """All trainings in order, with every configuration once before the next seed. Those at a
        point that a search chooses follow from results, and are left out until these are there.
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
                if (seed > 0 or search.validation) and self._searched(configuration):
                    yield Trial(name, seed, self.chosen_point(configuration))

    def add(self, trial: Trial, result: Result) -> None:
        """Results are in the order of ``trials``, in whatever order they come: among equals, a
        search chooses the first.
        """
        self.results[trial] = result
        names = [configuration.name for configuration in self.recipe.configurations]

        def place(trial: Trial) -> tuple[int, ...]:
            point = -1 if trial.point is None else trial.point
            return trial.seed, names.index(trial.name), not trial.validating, point

        self.results = {trial: self.results[trial] for trial in sorted(self.results, key=place)}

    def _tried(self, configuration: Configuration, search: Search) -> dict[int | None, Result]:
        """The results that a search chooses by, of points of its grid."""
        return {
            trial.point: result
            for trial, result in self.results.items()
            if trial.name == configuration.name and trial.seed == 0
            if trial.validating == (search.validation > 0)
        }

    def _searched(self, configuration: Configuration) -> bool:
        """Whether every point of a grid has been tried."""
        search = configuration.search
        return search is None or len(self._tried(configuration, search)) == len(search.points())

    def chosen_point(self, configuration: Configuration) -> int | None:
        """The best point of a grid so far; a training that diverged is never the best."""
        search = configuration.search
        if search is None:
            return None
        tried = {
            point: measure(search.by, result)
            for point, result in self._tried(configuration, search).items()
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

    def verdicts(self) -> list[Verdict]:
        """On each claim. Of a configuration whose search has points to try there is no result yet,
        whichever was the best so far.
        """
        found = self.by_configuration()
        searched = {name: found[name] for name in found if self._searched(self.recipe[name])}
        return [judge(claim, searched, self.recipe.spread) for claim in self.recipe.claims]

    @property
    def unfinished(self) -> str:
        """How far it has come, in words; "" where it has come to its end."""
        done, left = len(self.results), len(self.epochs_left)
        return f"{done} of {count(done + left, 'training')}" if left else ""

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

    def checkpoint(self, trial: Trial) -> Path:
        """Where a training in the middle is kept."""
        return self.folder / f"{trial.stem(self.recipe)}-{CHECKPOINT}"

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


def do(
    experiment: Experiment,
    trial: Trial,
    data: DataSet | ImageFolders,
    fabric: Fabric,
    on_epoch: Callable[[Epoch], None],
) -> Result:
    """One training, from its checkpoint where there is one, with what it leaves in the folder."""
    recipe, machine, folder = experiment.recipe, experiment.machine, experiment.folder
    configuration = recipe[trial.name].at(trial.point)
    search, its_data = configuration.search, data
    if trial.validating and search is not None and isinstance(data, DataSet):
        its_data = data.hold_out(search.validation)
    model = seeded(trial.seed, lambda: build(configuration, data))
    result = train(
        machine.prepare(model),
        its_data,
        configuration.plan,
        seed=trial.seed,
        fabric=fabric,
        compile_mode=machine.compile_mode,
        checkpoint=experiment.checkpoint(trial),
        seconds_between_checkpoints=SECONDS_BETWEEN_CHECKPOINTS,
        measure_memory=experiment.comparison is not None,
        on_epoch=on_epoch,
    )
    if experiment.keep_weights and fabric.is_global_zero:
        notes = {
            "run": recipe.name,
            "training of": trial.label(recipe),
            **configuration.describe(),
            "isonorm": isonorm.__version__,
        }
        checkpoints.save_weights(folder / f"{trial.stem(recipe)}.safetensors", model, notes)
    return result
