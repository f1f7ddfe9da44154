"""A finished run as a record: what its numbers rest on, and nothing about whose machine it was."""

from __future__ import annotations

import csv
import re
import shlex
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from . import records
from .conduct import draw as draw_curves
from .experiment import Experiment
from .measuring.run import Measuring
from .measuring.run import draw as draw_bars
from .recipes import all_recipes, command_for
from .rejudge import current_run, rejudged
from .run_files import COMPRESSED_CURVES, CURVES, RESULT, read_content

#: A figure with more bytes than this does not go into the repository.
MOST_FIGURE_BYTES = 600_000
#: What stands in a record for a folder of the machine the run was made on.
FOLDER = "DIR"


def file_run(run: Path, to: Path, *, replace: bool = False) -> Path:
    """``to/RECIPE`` with the run's result, judged by what the recipe claims now, its curves and its
    figures, drawn anew: all of it, or nothing.

    ValueError says in a sentence why a run is not a record, or would take the place of another.
    """
    content = _finished(run)
    with records.reading(run / RESULT):
        found = current_run(all_recipes()[content["recipe"]], content, run)
        content = _without_machine(rejudged(content, found))
        summary = records.told_list(content, "summary", dict)
    target = to / content["recipe"]
    if target.exists() and not replace:
        raise ValueError(
            f"there is a record in {target} already: --replace puts this in its place."
        )
    with records.whole_folder(target, replace=replace) as folder:
        records.write_json(folder / RESULT, content)
        for path in run.glob("*.csv"):
            if path.name == CURVES:
                _file_curves(path, summary, folder / COMPRESSED_CURVES)
            else:
                shutil.copyfile(path, folder / path.name)
        _file_figures(run, found, folder)
        for path in folder.iterdir():
            _refuse_traces(path, run)
    return target


def _finished(run: Path) -> dict[str, Any]:
    """The result of a run that can be a record."""
    content = read_content(run)
    name, status, recipes = content["recipe"], content.get("status"), all_recipes()
    if name not in recipes:
        raise ValueError(
            f"{run} is not a run of a recipe: only what 'isonorm recipes' lists can be filed."
        )
    if content["scale"] != "full":
        raise ValueError(
            f"{run} was run at scale {content['scale']}, whose numbers mean nothing: file one of "
            f"'{command_for(recipes[name])}'."
        )
    if status != "finished":
        raise ValueError(
            f"{run} is not finished (it says {status!r}): go on with 'isonorm run --resume {run}', "
            "then file it."
        )
    if not any(run.glob("*.csv")):
        raise ValueError(f"{run} has lost what its numbers rest on: there is no CSV file in it.")
    return content


def _without_machine(content: Mapping[str, Any]) -> dict[str, Any]:
    """The same with ``DIR`` for folders."""
    words = shlex.split(records.told(content, "command", str))
    for i, word in enumerate(words):
        option, equals, _ = word.partition("=")
        if option not in ("--data", "--out"):
            continue
        if equals:
            words[i] = f"{option}={FOLDER}"
        elif i + 1 < len(words):
            words[i + 1] = FOLDER
    clean = {**content, "command": shlex.join(words)}
    return {**clean, "data": FOLDER} if "data" in content else clean


def _file_curves(path: Path, summary: Sequence[Mapping[str, Any]], to: Path) -> None:
    """Every epoch of the trainings that count; of a grid's other points, which may be a hundred
    times as many, the last, by which they were not chosen.
    """
    with records.reading(path):
        points = {row["configuration"]: row["point"] for row in summary}
        chosen = {name: "" if point is None else str(point) for name, point in points.items()}
        with path.open(encoding="utf-8", newline="") as file:
            header, *rows = csv.reader(file)
        name, point, number = (header.index(key) for key in ("configuration", "point", "number"))
        last: dict[tuple[str, ...], str] = {}
        for row in rows:
            last[tuple(row[:number])] = row[number]
        kept = [
            row[: number + 1] + [_shorter(value) for value in row[number + 1 :]]
            for row in rows
            if row[point] == chosen[row[name]] or row[number] == last[tuple(row[:number])]
        ]
    records.write_csv(to, header, kept)


def _shorter(value: str) -> str:
    """A number to seven digits, which is what float32 had."""
    return f"{float(value):.7g}" if "." in value and value[0] in "-0123456789" else value


def _file_figures(run: Path, found: Experiment | Measuring | None, to: Path) -> None:
    """Of the run's own numbers as they are drawn now, whatever was drawn when it was made; where
    the recipe is of other things now, as they were. Large ones stay out.
    """
    if isinstance(found, Measuring):
        draw_bars(found, to)
    elif found is not None:
        draw_curves(found, to)
    else:
        for path in _figures(run):
            shutil.copyfile(path, to / path.name)
    for path in _figures(to):
        if path.stat().st_size > MOST_FIGURE_BYTES:
            path.unlink()


def _figures(folder: Path) -> list[Path]:
    return [*folder.glob("*.svg"), *folder.glob("*.png")]


def _refuse_traces(path: Path, run: Path) -> None:
    """What else names a folder of this machine must be seen by somebody, not published."""
    if path.suffix not in (".json", ".csv", ".svg"):
        return
    text = path.read_text(encoding="utf-8")
    for folder in {Path.home(), Path.cwd(), run.absolute()} - {Path("/")}:
        if re.search(rf"{re.escape(str(folder))}(?![\w-])", text):
            raise ValueError(
                f"{path.name} of {run} names a folder of this machine, {folder}: take it out of "
                "the run, then file it."
            )
