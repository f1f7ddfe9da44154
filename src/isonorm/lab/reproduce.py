"""The commands that list the recipes, run one, and judge a run."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from . import records, run_files
from .devices import PRECISIONS, STRATEGIES, resolve_device
from .experiment import Experiment, conduct
from .machine import COMPILE_MODES, Machine
from .output import console_for_results, fail, say
from .presentation import print_recipe, print_verdicts, recipes_table, results_table
from .progress import progress_on
from .recipes import all_recipes, find_recipe

_PLAIN = Machine()


def recipes(
    name: Annotated[str, typer.Argument(metavar="[RECIPE]", help="Tell all about this one.")] = "",
) -> None:
    """List the papers' figures and tables that can be run: their data, their cost, and the papers'
    numbers.
    """
    console = console_for_results()
    if name:
        try:
            print_recipe(console, find_recipe(name))
        except ValueError as error:
            fail(str(error), code=2)
        return
    console.print(recipes_table(all_recipes().values()))


def run(
    context: typer.Context,
    recipe: Annotated[
        str, typer.Argument(metavar="RECIPE", help="One that 'isonorm recipes' lists.")
    ] = "",
    data: Annotated[
        str,
        typer.Option(metavar="FOLDER", envvar="ISONORM_DATA", help="Where the data's files are."),
    ] = "data",
    scale: Annotated[
        str, typer.Option(metavar="full|quick", help="quick shrinks everything to seconds.")
    ] = "full",
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATTERN",
            help="Configurations by name, such as '*, base'; may be given several times.",
        ),
    ] = None,
    seeds: Annotated[
        int, typer.Option(min=0, help="Runs of each configuration; 0: as many as the paper's.")
    ] = 0,
    device: Annotated[
        str, typer.Option(metavar="NAME", help="cpu, cuda, cuda:1, …; auto prefers cuda.")
    ] = "auto",
    devices: Annotated[
        int, typer.Option(min=1, help="Processes on this node, each with its share of a batch.")
    ] = _PLAIN.devices,
    nodes: Annotated[
        int, typer.Option(min=1, help="Nodes; start the command on each by torchrun or SLURM.")
    ] = _PLAIN.nodes,
    strategy: Annotated[
        str, typer.Option(metavar="NAME", help=f"Of several processes: {', '.join(STRATEGIES)}.")
    ] = _PLAIN.strategy,
    precision: Annotated[
        str, typer.Option(metavar="NAME", help=f"One of {', '.join(PRECISIONS)}.")
    ] = _PLAIN.precision,
    compile: Annotated[
        str,
        typer.Option(
            metavar="WORD",
            help=f"{', '.join(COMPILE_MODES)}: torch.compile, or with CUDA graphs, too.",
        ),
    ] = _PLAIN.compile,
    sync_statistics: Annotated[
        bool,
        typer.Option(
            "--sync-statistics", help="Norms see the whole batch, not a process's share of it."
        ),
    ] = False,
    threads: Annotated[int, typer.Option(min=1, help="Threads for torch on a CPU.")] = 1,
    keep_weights: Annotated[
        bool, typer.Option("--keep-weights", help="Keep each training's final weights.")
    ] = False,
    no_verify: Annotated[
        bool, typer.Option("--no-verify", help="Take data whose checksum is not the published one.")
    ] = False,
    out: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Where the run's own folder is made.")
    ] = Path("runs"),
    resume: Annotated[
        Path | None,
        typer.Option(metavar="RUN", help="Go on with the run in this folder, as it was begun."),
    ] = None,
) -> None:
    """Run a figure or a table of a paper, and compare the outcome with what the paper claims.

    Every result is on disk as soon as it is there. Ctrl-C stops; --resume goes on, to the same
    weights and curves as if nothing had happened.
    """
    console = console_for_results()
    try:
        if resume is not None:
            _refuse_other_words(context)
            experiment = run_files.read(resume)
            if recipe not in ("", experiment.recipe.name):
                raise ValueError(f"{resume} is a run of {experiment.recipe.name}, not of {recipe}.")
        else:
            machine = Machine(
                device=resolve_device(device),
                devices=devices,
                nodes=nodes,
                strategy=strategy,
                precision=precision,
                compile=compile,
                sync_statistics=sync_statistics,
                threads=threads,
            )
            experiment = _begin(recipe, only or (), scale, seeds, data, machine, out)
            if keep_weights and strategy == "fsdp":
                raise ValueError("--keep-weights cannot put sharded weights together: choose ddp.")
            experiment.keep_weights, experiment.verify = keep_weights, not no_verify
        experiment.read_data()  # before a folder is made, and processes are started
        fabric = experiment.machine.launch()
    except ValueError as error:
        fail(str(error), code=2)
    console.quiet = not fabric.is_global_zero
    progress = progress_on(console, experiment.epochs_left)
    try:
        if resume is None:
            experiment.folder = fabric.broadcast(_new_folder(experiment, fabric.is_global_zero))
        conduct(experiment, fabric, progress)
    except ValueError as error:
        fail(str(error), code=2)
    except OSError as error:
        fail(f"cannot write to {error.filename or out}: {error.strerror or error}.", code=1)
    _report(console, experiment)


def check(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")],
) -> None:
    """Say which of the paper's claims hold in a run."""
    try:
        experiment = run_files.read(folder)
    except ValueError as error:
        fail(str(error), code=2)
    console = console_for_results()
    print_verdicts(console, experiment)


def _refuse_other_words(context: typer.Context) -> None:
    """A run goes on as it was begun: what else is on the command line would be ignored."""
    for name in context.params:
        source = context.get_parameter_source(name)
        if name not in ("resume", "recipe") and source is not None and source.name == "COMMANDLINE":
            option = "--" + name.replace("_", "-")
            raise ValueError(f"--resume goes on with a run as it was begun: leave out {option}.")


def _begin(
    name: str,
    only: Sequence[str],
    scale: str,
    seeds: int,
    data: str,
    machine: Machine,
    out: Path,
) -> Experiment:
    recipe = find_recipe(name).only(only)
    if scale not in ("full", "quick"):
        raise ValueError(f"scale must be full or quick; got {scale!r}.")
    processes = machine.devices * machine.nodes
    for configuration in recipe.configurations:
        if (configuration.plan.batch_size or processes) % processes:
            raise ValueError(
                f"{configuration.name} has batches of {configuration.plan.batch_size}, which "
                f"{processes} processes cannot share equally: choose another number of devices."
            )
    return Experiment(
        recipe=recipe.shrunk() if scale == "quick" else recipe,
        scale=scale,
        seeds=seeds or (1 if scale == "quick" else recipe.seeds),
        data=data,
        machine=machine,
        folder=out,  # until it has its own
        started=datetime.now().astimezone(),
        only=tuple(only),
    )


def _new_folder(experiment: Experiment, is_first: bool) -> Path:
    if not is_first:
        return experiment.folder
    name = f"{experiment.recipe.name}{'-quick' * (experiment.scale == 'quick')}"
    return records.create_run_folder(experiment.folder, name, experiment.started)


def _report(console: Console, experiment: Experiment) -> None:
    if experiment.by_configuration():
        console.print(results_table(experiment))
        print_verdicts(console, experiment)
    say(console, f"Results, curves and figures are in {experiment.folder}")
    if experiment.status == "interrupted":
        left = len(experiment.epochs_left)
        say(
            console,
            f"Stopped with {len(experiment.results)} trainings finished and {left} to go. Go on "
            f"with: isonorm run --resume {experiment.folder}",
        )
        raise typer.Exit(130)
