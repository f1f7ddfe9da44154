"""A run judged anew, by its own numbers and by what the recipe claims now."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from . import records, run_files
from .experiment import Experiment
from .measuring import run as measuring
from .measuring.run import Measuring
from .measuring.words import Measurement
from .recipe import Recipe


def rejudged(content: Mapping[str, Any], run: Experiment | Measuring | None) -> dict[str, Any]:
    """What ``result.json`` of a run or a record says, with today's claims and their verdicts. Where
    there is no ``current_run`` the claims are of other things, and the verdicts stay those of then.
    """
    if run is None:
        return dict(content)
    verdicts = [verdict.content() for verdict in run.verdicts()]
    return {**content, "spread": run.recipe.spread, "claims": verdicts}


def current_run(
    recipe: Recipe | Measurement, content: Mapping[str, Any], folder: Path
) -> Experiment | Measuring | None:
    """The run or the record in a folder; None where the recipe is of other things now."""
    if not is_current(recipe, content):
        return None
    if isinstance(recipe, Measurement):
        return measuring.read(folder, lambda name: recipe)
    return run_files.read(folder)


def is_current(recipe: Recipe | Measurement, content: Mapping[str, Any]) -> bool:
    """Whether the recipe trains or measures now what it did in a run."""
    try:
        some = run_files.as_run(recipe, content)
    except ValueError:  # the patterns that chose its configurations choose nothing now
        return False
    records.told(content, "configurations", dict)  # something else is damage
    return run_files.is_as_defined(some, content)
