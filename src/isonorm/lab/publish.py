"""The commands that file a run as a record, and build the page and the table of all records."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import ledger
from .filing import file_run
from .options import refuse
from .output import console_for_results, fail, say
from .pages import all_records, parts, readme

_RECORDS = typer.Option(metavar="FOLDER", help="The folder of the records.")


def record(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a finished run.")],
    to: Annotated[Path, _RECORDS] = Path("records"),
    replace: Annotated[
        bool, typer.Option("--replace", help="Put it in the place of the recipe's earlier record.")
    ] = False,
) -> None:
    """File a finished run under records/RECIPE: result, curves and figure.

    Folders of this machine do not get into it: the command says DIR for them.
    """
    try:
        target = file_run(run, to, replace=replace)
    except ValueError as error:
        fail(str(error), code=2)
    except OSError as error:
        fail(f"cannot write to {error.filename or to}: {error.strerror or error}.", code=1)
    say(console_for_results(), f"Filed in {target}. 'isonorm report' shows it beside the others.")


def report(
    context: typer.Context,
    records: Annotated[Path, _RECORDS] = Path("records"),
    out: Annotated[Path, typer.Option(metavar="FILE", help="The page to write.")] = Path(
        "runs/records.html"
    ),
    readme_file: Annotated[
        Path | None,
        typer.Option(
            "--readme",
            metavar="FILE",
            help="Write only the table of results, into this file between "
            f"{readme.BEGIN} and {readme.END}.",
        ),
    ] = None,
) -> None:
    """Build one page of all records against the papers, or the README's table of results."""
    try:
        if readme_file is not None:
            refuse(context, {"out"}, "--readme writes the table of results alone")
        found = ledger.read(records)
        if readme_file is not None:
            readme.rewrite(readme_file, found)
        else:
            out.parent.mkdir(parents=True, exist_ok=True)
            parts.write(out, all_records.document(found))
    except ValueError as error:
        fail(str(error), code=2)
    except OSError as error:
        fail(f"cannot read or write {error.filename or out}: {error.strerror or error}.", code=1)
    say(console_for_results(), f"Written: {readme_file or out}")
