"""``isonorm run`` and ``check`` for recipes that measure layers."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from .. import options, presentation, records
from ..comparison import count
from ..devices import resolve_device
from ..lock import InUse, sole_use
from ..machine import Machine
from ..output import console_for_results, fail, say, show
from ..pages.run import REPORT
from ..recipes import all_recipes
from ..run_files import read_content
from .presentation import results_table, turn_line
from .run import Measuring, conduct, read
from .words import Measurement

#: Options that only a training can heed.
_OF_TRAINING = {
    *("data", "no_verify", "keep_weights"),
    *("devices", "nodes", "strategy", "precision", "sync_statistics", "jobs"),
}


def concerns(name: str, folder: Path | None) -> bool:
    """Whether the recipe of this name, or of the run in a folder, measures layers."""
    if folder is not None:
        try:
            name = read_content(folder)["recipe"]
        except ValueError:
            return False  # no run at all, as whoever reads it will say
    return isinstance(all_recipes().get(name), Measurement)


def run(context: typer.Context) -> None:
    """Measures what the command line asks for, in this process alone."""
    console = console_for_results()
    try:
        measuring = _begin(context)
        with sole_use(measuring.folder, len(measuring.results)):
            conduct(measuring, lambda turn, found: say(console, turn_line(measuring, turn, found)))
    except InUse as error:
        fail(str(error), code=1)
    except ValueError as error:
        fail(str(error), code=2)
    except OSError as error:
        place = error.filename or context.params["out"]
        fail(f"cannot write to {place}: {error.strerror or error}.", code=1)
    _report(console, measuring)


def found(folder: Path) -> Measuring | None:
    """The run in a folder, if it is one of layers."""
    return read(folder, _find) if concerns("", folder) else None


def _begin(context: typer.Context) -> Measuring:
    words = context.params
    out = Path(words["out"])  # some versions of typer leave it a string here
    if words["resume"] is not None:
        options.refuse_other_words(context)
        measuring = read(Path(words["resume"]), _find)
        if words["recipe"] not in ("", measuring.recipe.name):
            raise ValueError(
                f"{words['resume']} is a run of {measuring.recipe.name}, not of {words['recipe']}."
            )
        resolve_device(measuring.machine.device)  # of the machine it was begun on
        return measuring
    reason = f"{words['recipe']} measures layers, without data, in float32 and in one process"
    options.refuse(context, _OF_TRAINING, reason)
    recipe, scale = _find(words["recipe"]).only(words["only"] or ()), words["scale"]
    if scale not in ("full", "quick"):
        raise ValueError(f"scale must be full or quick; got {scale!r}.")
    quick, started = scale == "quick", datetime.now().astimezone()
    machine = Machine(
        device=resolve_device(words["device"]), compile=words["compile"], threads=words["threads"]
    )
    if machine.compile == "graphs" and "device_milliseconds" in recipe.measures:
        raise ValueError(
            f"{recipe.name} replays passes as CUDA graphs by itself, which cannot hold compiled "
            "ones: --compile yes compiles what these replay."
        )
    return Measuring(
        recipe=recipe.shrunk() if quick else recipe,
        scale=scale,
        seeds=words["seeds"] or (1 if quick else recipe.seeds),
        machine=machine,
        folder=records.create_run_folder(out, recipe.name + "-quick" * quick, started),
        started=started,
        only=tuple(words["only"] or ()),
    )


def _find(name: str) -> Measurement:
    recipe: Any = all_recipes()[name]
    return recipe


def _report(console: Console, measuring: Measuring) -> None:
    if measuring.results:
        show(console, results_table(measuring))
        presentation.print_verdicts(console, measuring)
        say(console, f"Results and figures are in {measuring.folder}, and {REPORT} shows them")
    if measuring.status == "interrupted":
        done, total = len(measuring.results), len(list(measuring.turns()))
        state = f"{count(done, 'turn')} taken and {total - done} to go"
        presentation.stopped(console, state, "run", measuring.folder)
