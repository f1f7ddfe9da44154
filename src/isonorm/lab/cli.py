"""The ``isonorm`` command."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

try:
    import typer
    from rich.console import Console
    from rich.table import Table

    from .. import list_norms
    from ..registry import REGISTRY
    from . import compare as comparing
    from . import records, summary
    from .analyze import analyze
    from .data import SOURCES, listing, load
    from .devices import resolve_device
    from .norms import ALIASES, parse_list
    from .output import console_for_results, fail, say
    from .progress import progress_on
    from .reproduce import check, recipes, run
except ModuleNotFoundError as missing:
    package = (missing.name or "").partition(".")[0]
    needed = "lightning_fabric matplotlib numpy rich safetensors scipy sklearn typer"
    if package not in needed.split():
        raise
    sys.exit(f"The isonorm command needs {package}: pip install 'isonorm[lab]' brings it.")

app = typer.Typer(
    help="Compare normalizations of deep networks.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_show_locals=False,
)

for command in (analyze, recipes, run, check):
    app.command()(command)

_DEFAULT = comparing.Config()


@app.command()
def compare(
    norms: Annotated[
        str,
        typer.Option(
            metavar="NAMES",
            help="Normalizations, separated by commas: plain (none at all), or names that "
            "'isonorm norms' lists, with options as in dbn:group_size=32. Short names: "
            + ", ".join(f"{short} = {name}" for short, name in ALIASES.items())
            + ".",
        ),
    ] = ",".join(_DEFAULT.norms),
    data: Annotated[
        str,
        typer.Option(metavar="NAME", help=f"Data set: {', '.join(SOURCES)}."),
    ] = _DEFAULT.data,
    depth: Annotated[
        int,
        typer.Option(min=1, help="Linear layers of the MLP; all but the last are normalized."),
    ] = _DEFAULT.depth,
    width: Annotated[
        int,
        typer.Option(min=1, help="Neurons in each hidden layer."),
    ] = _DEFAULT.width,
    epochs: Annotated[
        int,
        typer.Option(min=1, help="Passes over the training set."),
    ] = _DEFAULT.epochs,
    batch_size: Annotated[
        int,
        typer.Option(min=1, help="Images in a batch. An incomplete last batch is left out."),
    ] = _DEFAULT.batch_size,
    lr: Annotated[
        float,
        typer.Option(min=0, help="Learning rate of plain SGD, the same for every normalization."),
    ] = _DEFAULT.lr,
    seeds: Annotated[
        int,
        typer.Option(min=1, help="Runs of each normalization: other initial weights and batches."),
    ] = _DEFAULT.seeds,
    device: Annotated[
        str,
        typer.Option(metavar="NAME", help="cpu, cuda, cuda:1, …; auto prefers cuda."),
    ] = "auto",
    threads: Annotated[
        int,
        typer.Option(min=1, help="Threads for torch. Networks this small are fastest with one."),
    ] = _DEFAULT.threads,
    out: Annotated[
        Path,
        typer.Option(metavar="FOLDER", help="Where the run's own folder, TIME-NAME, is made."),
    ] = Path("runs"),
    name: Annotated[
        str,
        typer.Option(metavar="NAME", help="Name of the run."),
    ] = "compare",
) -> None:
    """Train the same network with several normalizations and compare them.

    Ends with a table, and leaves result.json, curves.csv and a figure (PNG and SVG) in a folder of
    the run's own. The defaults take about a minute on two CPU cores. Ctrl-C keeps finished runs.
    """
    console = console_for_results()
    try:
        config = comparing.Config(
            norms=parse_list(norms),
            data=data,
            depth=depth,
            width=width,
            epochs=epochs,
            batch_size=batch_size,
            lr=lr,
            seeds=seeds,
            device=resolve_device(device),
            threads=threads,
        )
        prepared = comparing.prepare(config)
        records.check_name(name)
    except ValueError as error:
        fail(str(error), code=2)
    progress = progress_on(console, [config.epochs] * len(config.runs))
    try:
        comparison = comparing.compare(config, prepared, out, name, progress)
    except OSError as error:
        fail(f"cannot write to {error.filename or out}: {error.strerror or error}.", code=1)
    _report(console, comparison)


@app.command()
def norms(
    pattern: Annotated[str, typer.Argument(help="Shell pattern, such as '*whiten*'.")] = "*",
) -> None:
    """List the normalizations that have names, with their papers."""
    names = list_norms(pattern)
    if not names:
        fail(f"no name matches {pattern!r}: there are {', '.join(list_norms())}.", code=2)
    table = Table()
    table.add_column("name", style="bold", no_wrap=True)
    table.add_column("paper")
    for name in names:
        table.add_row(name, REGISTRY[name].paper)
    console_for_results().print(table)


@app.command()
def data(
    name: Annotated[str, typer.Argument(help="A data set to read and check; all if none.")] = "",
    folder: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="Where the files are; otherwise $ISONORM_DATA, otherwise data."
        ),
    ] = None,
    download: Annotated[bool, typer.Option("--download", help="Fetch missing files.")] = False,
) -> None:
    """List the data sets and their files, or read one and say what it holds."""
    console = console_for_results()
    if not name:
        if download:
            fail("--download fetches one data set: name it.", code=2)
        console.print(listing.overview(folder))
        return
    try:
        console.print(listing.inspection(load(name, folder, download=download)))
    except ValueError as error:
        fail(str(error), code=2)
    except OSError as error:
        fail(f"cannot read {error.filename or name}: {error.strerror or error}.", code=1)


def _report(console: Console, comparison: comparing.Comparison) -> None:
    finished, planned = len(comparison.results), len(comparison.config.runs)
    if finished:
        console.print(summary.table(comparison.summaries(), comparison.description))
        say(console, f"Results, curves and figures are in {comparison.folder}")
    if comparison.status == "interrupted":
        kept = "the table and the files hold these" if finished else "there is nothing to keep"
        say(console, f"Stopped with {finished} of {planned} runs finished: {kept}.")
        raise typer.Exit(130)  # what a shell expects of a program that Ctrl-C ended


if __name__ == "__main__":
    app()
