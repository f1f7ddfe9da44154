"""An experiment being run: training after training, each result on disk as soon as it is there."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from . import environment, figures, run_files
from .data import DataSet
from .experiment import Experiment, Trial, do
from .jobs import WorkerLost, side_by_side
from .objective import CompilerFailed
from .pages import run as run_page
from .progress import Progress
from .streams import ImageFolders
from .train import Result

if TYPE_CHECKING:
    from lightning_fabric import Fabric


def conduct(
    experiment: Experiment,
    fabric: Fabric,
    progress: Progress,
    data: DataSet | ImageFolders | None,
) -> Experiment:
    """Do every training that has no result yet: in this process with its ``data``, or without any
    in others, which read their own. Ctrl-C keeps what there is, and its checkpoints.
    """
    experiment.status = "running"
    here = environment.describe(experiment.machine.device)
    if experiment.epochs_left and here not in experiment.environments:
        experiment.environments.append(here)
    run_files.write(experiment, fabric)
    if fabric.is_global_zero:  # an interruption may have come between a result and this
        for trial in experiment.results:
            experiment.checkpoint(trial).unlink(missing_ok=True)
    if data is None:
        trainings = side_by_side(experiment, progress)
    else:
        trainings = one_by_one(experiment, fabric, progress, data)
    try:
        with progress, closing(trainings):
            for trial, result in trainings:
                experiment.add(trial, result)
                run_files.write(experiment, fabric)
                if fabric.is_global_zero:
                    experiment.checkpoint(trial).unlink(missing_ok=True)
        experiment.status = "finished"
    except KeyboardInterrupt:
        experiment.status = "interrupted"
    except (WorkerLost, CompilerFailed):
        experiment.status = "interrupted"
        run_files.write(experiment, fabric)
        raise
    run_files.write(experiment, fabric)
    if experiment.by_configuration() and fabric.is_global_zero:
        draw(experiment, experiment.folder)
        run_page.write(experiment.folder)
    return experiment


def one_by_one(
    experiment: Experiment, fabric: Fabric, progress: Progress, data: DataSet | ImageFolders
) -> Generator[tuple[Trial, Result], None, None]:
    """Each training with its result, in this process."""
    with experiment.machine.settings():
        for trial in experiment.trials():
            if trial in experiment.results:
                continue
            epochs = experiment.recipe[trial.name].at(trial.point).plan.epochs
            bar = progress.start(trial.label(experiment.recipe), epochs)
            result = do(experiment, trial, data, fabric, on_epoch=bar.epoch)
            yield trial, result
            bar.finish(result)


def draw(experiment: Experiment, folder: Path) -> None:
    """The curves as figures, in a folder."""
    figure = figures.curves(
        experiment.by_configuration(),
        experiment.caption,
        threshold=experiment.recipe.threshold,
        spread=experiment.recipe.spread,
    )
    figures.save(figure, folder, "curves")
