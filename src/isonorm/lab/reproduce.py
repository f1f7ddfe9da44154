"""The commands that list the recipes, run one, and judge a run."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from . import options, records, run_files
from .devices import STRATEGIES, resolve_device
from .experiment import Experiment
from .machine import Machine
from .measuring import command as measuring
from .output import console_for_results, fail, say, show
from .perform import perform
from .presentation import print_recipe, print_verdicts, print_verdicts_of_then, recipes_table
from .recipes import all_recipes, find_any, find_recipe

_PLAIN = Machine()


def recipes(
    name: Annotated[str, typer.Argument(metavar="[RECIPE]", help="Tell all about this one.")] = "",
) -> None:
    """List the papers' figures and tables that can be run: their data, their cost, and the papers'
    numbers.
    """
    console = console_for_results()
    try:  # output has no ValueError left: see ``output``
        if name:
            print_recipe(console, find_any(name))
        else:
            show(console, recipes_table(all_recipes().values(), console.width))
    except ValueError as error:
        fail(str(error), code=2)


def run(
    context: typer.Context,
    recipe: Annotated[
        str, typer.Argument(metavar="RECIPE", help="One that 'isonorm recipes' lists.")
    ] = "",
    data: Annotated[
        str,
        options.PLACE,
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
        int,
        typer.Option(
            min=0,
            max=records.MOST_SEEDS,
            help="Runs of each configuration; 0: as many as the paper's.",
        ),
    ] = 0,
    device: options.Device = "auto",
    devices: Annotated[
        int, typer.Option(min=1, help="Processes on this node, each with its share of a batch.")
    ] = _PLAIN.devices,
    nodes: Annotated[
        int, typer.Option(min=1, help="Nodes; start the command on each by torchrun or SLURM.")
    ] = _PLAIN.nodes,
    strategy: Annotated[
        str, typer.Option(metavar="NAME", help=f"Of several processes: {', '.join(STRATEGIES)}.")
    ] = _PLAIN.strategy,
    precision: options.Precision = _PLAIN.precision,
    compile: options.Compile = _PLAIN.compile,
    sync_statistics: Annotated[
        bool,
        typer.Option(
            "--sync-statistics", help="Norms see the whole batch, not a process's share of it."
        ),
    ] = False,
    threads: options.Threads = _PLAIN.threads,
    jobs: options.Jobs = _PLAIN.jobs,
    keep_weights: options.KeepWeights = False,
    no_verify: options.NoVerify = False,
    out: options.Out = Path("runs"),
    resume: options.Resume = None,
) -> None:
    """Run a figure or a table of a paper, and compare the outcome with what the paper claims.

    Every result is on disk as soon as it is there. Ctrl-C stops; --resume goes on, to the same
    weights and curves as if nothing had happened.
    """
    if measuring.concerns(recipe, resume):
        return measuring.run(context)
    try:
        if resume is not None:
            options.refuse_other_words(context, "jobs", "data")
            experiment = options.resumed(context, resume, place="data")
            if experiment.comparison is not None:
                raise ValueError(
                    f"{resume} is a comparison: isonorm compare --resume {resume} goes on with it."
                )
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
                jobs=jobs,
            )
            experiment = _begin(recipe, only or (), scale, seeds, data, machine, out)
            if keep_weights and strategy == "fsdp":
                raise ValueError("--keep-weights cannot put sharded weights together: choose ddp.")
            experiment.keep_weights, experiment.verify = keep_weights, not no_verify
    except ValueError as error:
        fail(str(error), code=2)
    name = f"{experiment.recipe.name}{'-quick' * (experiment.scale == 'quick')}"
    perform(experiment, name=name if resume is None else None)


def check(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")],
) -> None:
    """Say which of the paper's claims hold in a run."""
    console = console_for_results()
    try:
        try:
            run = measuring.found(folder) or run_files.read(folder)
        except run_files.DefinedOtherwise:
            return print_verdicts_of_then(console, folder)
    except ValueError as error:
        fail(str(error), code=2)
    print_verdicts(console, run)
    if isinstance(run, Experiment) and run.comparison is not None:
        say(console, f"{folder} is a comparison: there are no claims to judge.")


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
        data=options.absolute(data),
        machine=machine,
        folder=out,  # until it has its own
        started=datetime.now().astimezone(),
        only=tuple(only),
    )
