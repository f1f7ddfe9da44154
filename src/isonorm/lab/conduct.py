"""An experiment being run: training after training, each result on disk as soon as it is there."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing
from typing import TYPE_CHECKING

from . import figures, run_files
from .experiment import Experiment, Trial, do
from .jobs import WorkerLost, side_by_side
from .objective import CompilerFailed
from .pages import run as run_page
from .progress import Progress
from .train import Result

if TYPE_CHECKING:
    from lightning_fabric import Fabric


def conduct(experiment: Experiment, fabric: Fabric, progress: Progress) -> Experiment:
    """Do every training that has no result yet. Ctrl-C keeps what there is, and its checkpoints."""
    experiment.status = "running"
    run_files.write(experiment, fabric)
    if fabric.is_global_zero:  # an interruption may have come between a result and this
        for trial in experiment.results:
            experiment.checkpoint(trial).unlink(missing_ok=True)
    if experiment.machine.jobs > 1:
        trainings = side_by_side(experiment, progress)
    else:
        trainings = one_by_one(experiment, fabric, progress)
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
        draw(experiment)
        run_page.write(experiment.folder)
    return experiment


def one_by_one(
    experiment: Experiment, fabric: Fabric, progress: Progress
) -> Generator[tuple[Trial, Result], None, None]:
    """Each training with its result, in this process."""
    data = experiment.read_data()
    with experiment.machine.settings():
        for trial in experiment.trials():
            if trial in experiment.results:
                continue
            epochs = experiment.recipe[trial.name].at(trial.point).plan.epochs
            bar = progress.start(trial.label(experiment.recipe), epochs)
            result = do(experiment, trial, data, fabric, on_epoch=bar.epoch)
            yield trial, result
            bar.finish(result)


def draw(experiment: Experiment) -> None:
    """The curves as figures, in the run's folder."""
    figure = figures.curves(
        experiment.by_configuration(), experiment.caption, threshold=experiment.recipe.threshold
    )
    figures.save(figure, experiment.folder, "curves")
