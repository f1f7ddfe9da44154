"""An experiment from the command line: from its data to its report."""

from __future__ import annotations

from pathlib import Path

import typer
from rich.console import Console

from . import records
from .comparison import check_fit, count
from .conduct import conduct
from .data import DataSet
from .experiment import Experiment
from .jobs import WorkerLost
from .lock import InUse, sole_use
from .objective import CompilerFailed
from .output import console_for_results, fail, say, show
from .pages.run import REPORT
from .presentation import print_verdicts, results_table, stopped
from .progress import progress_on


def perform(experiment: Experiment, *, name: str | None) -> None:
    """Do what is not done yet, and tell the outcome. A new run gets a folder of this ``name``;
    without one it goes on in its own.
    """
    console = console_for_results()
    try:  # everything that can be wrong, before a folder is made and processes are started
        if name is not None:
            records.check_name(name)
        data = experiment.read_data()
        if experiment.comparison is not None and isinstance(data, DataSet):
            check_fit(experiment.recipe, data)
        if experiment.machine.jobs > 1:
            data = None  # it can be read, and each process will
        fabric = experiment.machine.launch()
    except ValueError as error:
        fail(str(error), code=2)
    except OSError as error:
        fail(f"cannot read {error.filename or 'data'}: {error.strerror or error}.", code=1)
    console.quiet = not fabric.is_global_zero
    progress = progress_on(console, experiment.epochs_left)
    try:
        if name is not None:
            folder = _new_folder(experiment, name) if fabric.is_global_zero else experiment.folder
            experiment.folder = fabric.broadcast(folder)
        with sole_use(experiment.folder, len(experiment.results), fabric):
            conduct(experiment, fabric, progress, data)
    except InUse as error:
        if fabric.is_global_zero:
            fail(str(error), code=1)
        raise typer.Exit(1) from error
    except ValueError as error:
        fail(str(error), code=2)
    except (WorkerLost, CompilerFailed) as error:
        fail(str(error), code=1)
    except OSError as error:
        place = error.filename or experiment.folder
        fail(f"cannot write to {place}: {error.strerror or error}.", code=1)
    _report(console, experiment)


def _new_folder(experiment: Experiment, name: str) -> Path:
    return records.create_run_folder(experiment.folder, name, experiment.started)


def _report(console: Console, experiment: Experiment) -> None:
    if experiment.by_configuration():
        show(console, results_table(experiment))
        print_verdicts(console, experiment)
        where = f"Results, curves and figures are in {experiment.folder}"
        say(console, f"{where}, and {REPORT} shows them")
    if experiment.status == "interrupted":
        done, left = len(experiment.results), len(experiment.epochs_left)
        state = f"{count(done, 'training')} finished and {left} to go"
        command = "compare" if experiment.comparison else "run"
        stopped(console, state, command, experiment.folder)
