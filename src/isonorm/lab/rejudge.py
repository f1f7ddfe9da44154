"""A run judged anew, by its own numbers and by what the recipe claims now."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from . import records, run_files
from .measuring import run as measuring
from .measuring.words import Measurement
from .recipe import Recipe


def rejudged(
    recipe: Recipe | Measurement, content: Mapping[str, Any], folder: Path
) -> dict[str, Any]:
    """What ``result.json`` of a run or a record says, with today's claims and their verdicts. Where
    the recipe is of other things now its claims are, too, and the verdicts stay those of then.
    """
    if not is_current(recipe, content):
        return dict(content)
    if isinstance(recipe, Measurement):
        run = measuring.read(folder, lambda name: recipe)
    else:
        run = run_files.read(folder)
    verdicts = [verdict.content() for verdict in run.verdicts()]
    return {**content, "spread": recipe.spread, "claims": verdicts}


def is_current(recipe: Recipe | Measurement, content: Mapping[str, Any]) -> bool:
    """Whether the recipe trains or measures now what it did in a run."""
    try:
        some = run_files.as_run(recipe, content)
    except ValueError:  # the patterns that chose its configurations choose nothing now
        return False
    records.told(content, "configurations", dict)  # something else is damage
    return run_files.is_as_defined(some, content)
