"""The commands that list the recipes, run one, and judge a run."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from . import cost, records, run_files
from .claims import PERCENT, judge, measure
from .data.sources import default_folder
from .devices import PRECISIONS, STRATEGIES, resolve_device
from .experiment import Experiment, conduct
from .machine import COMPILE_MODES, Machine
from .output import console_for_results, fail, say
from .progress import progress_on
from .recipe import Recipe
from .recipes import all_recipes, find_recipe
from .summary import Estimate

_PLAIN = Machine()
_SHOWN = ("train_loss", "train_error", "test_error", "test_top5_error")


def recipes(
    name: Annotated[str, typer.Argument(metavar="[RECIPE]", help="Tell all about this one.")] = "",
) -> None:
    """List the papers' figures and tables that can be run: their data, their cost, and the papers'
    numbers.
    """
    console = console_for_results()
    if name:
        try:
            _describe(console, find_recipe(name))
        except ValueError as error:
            fail(str(error), code=2)
        return
    table = Table(caption="'isonorm recipes RECIPE' tells the rest.", caption_justify="left")
    for heading in ("recipe", "what", "data", "paper"):
        table.add_column(heading, no_wrap=heading in ("recipe", "data"))
    for heading in ("trainings", "images"):
        table.add_column(heading, justify="right", no_wrap=True)
    for recipe in all_recipes().values():
        table.add_row(
            recipe.name,
            recipe.title,
            recipe.data,
            _papers_numbers(recipe),
            str(recipe.trainings),
            f"{cost.images_seen(recipe) / 1e6:,.0f} M",
        )
    console.print(table)


def run(
    recipe: Annotated[
        str, typer.Argument(metavar="RECIPE", help="One that 'isonorm recipes' lists.")
    ] = "",
    data: Annotated[
        str,
        typer.Option(
            metavar="FOLDER",
            help="Where the data's files are; otherwise $ISONORM_DATA, otherwise data.",
        ),
    ] = "",
    scale: Annotated[
        str, typer.Option(metavar="full|quick", help="quick shrinks everything to seconds.")
    ] = "full",
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
            folder = data or str(default_folder())
            experiment = _begin(recipe, scale, seeds, folder, machine, out)
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
    _claims(console, experiment)


def _begin(
    name: str,
    scale: str,
    seeds: int,
    data: str,
    machine: Machine,
    out: Path,
) -> Experiment:
    recipe = find_recipe(name)
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
    )


def _new_folder(experiment: Experiment, is_first: bool) -> Path:
    if not is_first:
        return experiment.folder
    name = f"{experiment.recipe.name}{'-quick' * (experiment.scale == 'quick')}"
    return records.create_run_folder(experiment.folder, name, experiment.started)


def _report(console: Console, experiment: Experiment) -> None:
    if experiment.by_configuration():
        console.print(_table(experiment))
        _claims(console, experiment)
    say(console, f"Results, curves and figures are in {experiment.folder}")
    if experiment.status == "interrupted":
        left = len(experiment.epochs_left)
        say(
            console,
            f"Stopped with {len(experiment.results)} trainings finished and {left} to go. Go on "
            f"with: isonorm run --resume {experiment.folder}",
        )
        raise typer.Exit(130)


def _table(experiment: Experiment) -> Table:
    """Each configuration's numbers beside the paper's."""
    recipe, found = experiment.recipe, experiment.by_configuration()
    quartiles = recipe.spread == "median"
    kind = "median and quartiles" if quartiles else "mean ± standard deviation"
    table = Table(caption=f"{recipe.name}: {recipe.title}; {kind}", caption_justify="left")
    table.add_column("configuration", style="bold")
    table.add_column("chosen")
    for name in (*_SHOWN, "paper"):
        table.add_column(_heading(name), justify="right")
    for name, results in found.items():
        configuration = recipe[name]
        point = experiment.chosen_point(configuration)
        search = configuration.search
        cells = [
            Estimate.over(
                None if result.diverged else measure(key, result) * _unit(key) for result in results
            ).text(2 if key in PERCENT else 4, missing="diverged", quartiles=quartiles)
            for key in _SHOWN
        ]
        chosen = search.label(point) if search and point is not None else ""
        paper = ", ".join(f"{value:g}" for value in configuration.paper.values())
        table.add_row(name, chosen, *cells, paper)
    return table


def _claims(console: Console, experiment: Experiment) -> None:
    found = experiment.by_configuration()
    if experiment.scale == "quick":
        say(console, "At quick scale a run shows that everything works, not what the paper claims:")
    for claim in experiment.recipe.claims:
        say(console, str(judge(claim, found)))


def _describe(console: Console, recipe: Recipe) -> None:
    say(console, f"{recipe.name}: {recipe.title}")
    table = Table()
    for heading in ("configuration", "network", "norm", "paper"):
        table.add_column(heading)
    plans: dict[str, list[str]] = {}
    for c in recipe.configurations:
        options = ", ".join(f"{key}={value}" for key, value in c.options.items())
        paper = ", ".join(f"{key} {value:g}" for key, value in c.paper.items())
        norm = c.norm if c.conv == "plain" else c.conv
        table.add_row(c.name, f"{c.model} {options}", norm, paper)
        searched = f"; searched: {dict(c.search.grid)}" if c.search else ""
        plans.setdefault(c.plan.describe() + searched, []).append(c.name)
    console.print(table)
    for plan, names in plans.items():
        say(console, f"Trained: {plan} ({'all' if len(plans) == 1 else '; '.join(names)}).")
    for heading, lines in (
        ("The paper claims:", [claim.text for claim in recipe.claims]),
        ("Where the paper is silent:", recipe.choices),
    ):
        say(console, heading)
        for line in lines:
            say(console, f"  - {line}")
    works = list(cost.work(recipe))
    times = ", ".join(
        f"{sum(work.hours(on) for work in works):,.1f} h on {on}" for on in cost.RATES
    )
    say(
        console,
        f"Cost with the paper's {recipe.seeds} seed(s): {recipe.trainings} trainings, "
        f"{sum(work.operations for work in works):.1e} operations; roughly {times}.",
    )


def _papers_numbers(recipe: Recipe) -> str:
    """The range of its first measure; many figures are curves without numbers."""
    found = [next(iter(c.paper.items())) for c in recipe.configurations if c.paper]
    if not found:
        return "curves"
    numbers = [number for _, number in found]
    return f"{_heading(found[0][0])}: {min(numbers):g} to {max(numbers):g}"


def _heading(measure_: str) -> str:
    return measure_.replace("_", " ") + ", %" * (measure_ in PERCENT)


def _unit(key: str) -> float:
    return 100.0 if key in PERCENT else 1.0
