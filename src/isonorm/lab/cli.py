"""The ``isonorm`` command."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

try:
    import typer
    from rich.table import Table

    from .. import list_norms
    from ..registry import REGISTRY
    from .analyze import analyze
    from .compare import compare
    from .comparison import WEIGHT_NORMS
    from .data import listing, load
    from .options import NoVerify
    from .output import console_for_results, fail
    from .publish import record, report
    from .reproduce import check, recipes, run
except ModuleNotFoundError as missing:
    package = (missing.name or "").partition(".")[0]
    needed = "lightning_fabric matplotlib numpy rich safetensors scipy sklearn typer"
    if package not in needed.split():
        raise
    sys.exit(f"The isonorm command needs {package}: pip install 'isonorm[lab]' brings it.")
except KeyboardInterrupt:  # these imports take seconds
    print("isonorm: stopped before anything was begun.", file=sys.stderr)
    sys.exit(130)  # what a shell expects of a program that Ctrl-C ended

app = typer.Typer(
    help="Compare normalizations of deep networks.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_show_locals=False,
)

for command in (compare, analyze, recipes, run, check, record, report):
    app.command()(command)


@app.command()
def norms(
    pattern: Annotated[str, typer.Argument(help="Shell pattern, such as '*whiten*'.")] = "*",
) -> None:
    """List the normalizations that have names, with their papers."""
    names = list_norms(pattern)
    if not names:
        fail(f"no name matches {pattern!r}: there are {', '.join(list_norms())}.", code=2)
    caption = f"'isonorm compare' also takes normalized weights: {', '.join(WEIGHT_NORMS)}."
    table = Table(caption=caption, caption_justify="left")
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
    no_verify: NoVerify = False,
) -> None:
    """List the data sets and their files, or read one and say what it holds."""
    console = console_for_results()
    if not name:
        if download:
            fail("--download fetches one data set: name it.", code=2)
        if no_verify:
            fail("--no-verify reads one data set: name it.", code=2)
        console.print(listing.overview(folder))
        return
    try:
        found = load(name, folder, download=download, verify=not no_verify)
        console.print(listing.inspection(found))
    except ValueError as error:
        fail(str(error), code=2)
    except OSError as error:
        fail(f"cannot read {error.filename or name}: {error.strerror or error}.", code=1)


if __name__ == "__main__":
    app()
