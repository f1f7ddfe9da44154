"""``isonorm analyze``: the studies of the analysis, each with its numbers, claims and figure."""

from __future__ import annotations

import json
import os
import shlex
import tempfile
from datetime import datetime
from pathlib import Path
from time import perf_counter, process_time
from typing import Annotated, Any

import typer
from matplotlib import rc_context
from rich.console import Console
from rich.table import Table

from ..analysis.plots import STYLE
from . import environment, figures, records
from .machine import MOST
from .output import console_for_results, fail, say, show, shown
from .settings import torch_threads
from .studies import STUDIES, Claim, Study


def analyze(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME]...", help="Studies; none: list them. 'all' is every one."),
    ] = None,
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Where NAME.json is written.")] = Path(
        "runs/analysis"
    ),
    figures_in: Annotated[
        Path | None,
        typer.Option("--figures", metavar="FOLDER", help="Where NAME.png goes, if elsewhere."),
    ] = None,
    threads: Annotated[int, typer.Option(min=1, max=MOST, help="Threads for torch.")] = 1,
    redraw: Annotated[
        bool, typer.Option("--redraw", help="Only draw figures, from the records in --out.")
    ] = False,
) -> None:
    """Run studies of what normalizations do: disturbance, conditioning, curvature.

    Each leaves its numbers in NAME.json and its figure in NAME.png, and ends with what the numbers
    must show; the exit status is 1 where one of these does not hold. Some take seconds, some
    minutes.
    """
    console = console_for_results()
    if not names:
        return show(console, _listing())
    unknown = [name for name in names if name not in STUDIES and name != "all"]
    if unknown:
        fail(
            f"there is no study called {unknown[0]!r}: choose from {', '.join(STUDIES)}, all.",
            code=2,
        )
    chosen = list(STUDIES if "all" in names else dict.fromkeys(names))
    drawn = figures_in or out
    try:
        failed = _run_all(console, chosen, out, drawn, threads, redraw)
    except OSError as error:
        fail(f"cannot write to {error.filename or out}: {error.strerror or error}.", code=1)
    except KeyboardInterrupt:
        fail(f"interrupted; studies that had ended are in {out}.", code=130)
    if failed:
        raise typer.Exit(1)


def _run_all(
    console: Console, chosen: list[str], out: Path, figures_in: Path, threads: int, redraw: bool
) -> bool:
    """Whether a claim has failed."""
    for folder in (out, figures_in):  # before minutes of work that could not be kept
        _check_writable(folder)
    failed = False
    for name in chosen:
        if redraw:
            _redraw(STUDIES[name], out, figures_in)
            continue
        spinner = "dots" if console.encoding.startswith("utf") else "line"
        # on a terminal: it takes time
        with console.status(shown(f"{name}: {STUDIES[name].title} …"), spinner=spinner):
            content, claims = carry_out(STUDIES[name], out, figures_in, threads)
        say(console, f"{name}: {content['seconds']:.0f} s, {out / name}.json")
        for claim in claims:
            say(console, f"  {'holds' if claim.holds else 'FAILS'}: {claim.sentence}")
            failed = failed or not claim.holds
    return failed


def _check_writable(folder: Path) -> None:
    """Raises the error that writing there would, and leaves nothing behind."""
    nearest = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    try:
        tempfile.TemporaryFile(dir=nearest).close()
    except OSError as error:
        error.filename = str(folder)  # not the temporary file
        raise


def carry_out(
    study: Study, out: Path, figures_in: Path, threads: int, **sizes: Any
) -> tuple[dict[str, Any], list[Claim]]:
    """Runs one study and writes its record and figure."""
    started, wall, cpu = datetime.now().astimezone(), perf_counter(), process_time()
    with torch_threads(threads):
        result = study.run(**sizes)
    claims = study.claims(result)
    content = {
        "study": study.name,
        "title": study.title,
        "command": shlex.join(["isonorm", "analyze", study.name, "--threads", str(threads)]),
        "made": started.isoformat(timespec="seconds"),
        "environment": environment.describe("cpu"),
        "threads": threads,
        "seconds": perf_counter() - wall,
        "processor_seconds": process_time() - cpu,
        "load_average": list(os.getloadavg()) if hasattr(os, "getloadavg") else None,
        "claims": [claim._asdict() for claim in claims],
        **result,
    }
    out.mkdir(parents=True, exist_ok=True)
    records.write_json(out / f"{study.name}.json", content)
    _draw(study, result, figures_in)
    return content, claims


def _draw(study: Study, result: dict[str, Any], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with rc_context(STYLE):
        figure = study.draw(result)
    figures.save(figure, folder, study.name, kinds=("png",), dpi=110)


def _redraw(study: Study, out: Path, folder: Path) -> None:
    record = out / f"{study.name}.json"
    try:
        _draw(study, json.loads(record.read_text(encoding="utf-8")), folder)
    except FileNotFoundError:
        fail(f"there is no {record}: run the study without --redraw.", code=2)
    except records.NOT_AS_WRITTEN:
        fail(f"this is not a record: {record}: run the study without --redraw.", code=2)


def _listing() -> Table:
    table = Table()
    table.add_column("study", style="bold", no_wrap=True)
    table.add_column("shows")
    for study in STUDIES.values():
        table.add_row(study.name, study.title)
    return table
