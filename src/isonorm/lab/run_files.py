"""The folder of a run: written after each training, read to go on or to judge."""

from __future__ import annotations

import csv
import gzip
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from . import environment, records
from .claims import MEASURES, measure
from .comparison import Comparison
from .machine import Machine
from .measuring.words import Measurement
from .recipe import Recipe
from .recipes import find_recipe
from .summary import Estimate
from .train import Epoch, Result

if TYPE_CHECKING:
    from lightning_fabric import Fabric

    from .experiment import Experiment, Trial

RESULT, CURVES = "result.json", "curves.csv"
COMPRESSED_CURVES = f"{CURVES}.gz"  # of a record
_EPOCH = tuple(Epoch.__dataclass_fields__)


def write(experiment: Experiment, fabric: Fabric) -> None:
    """``curves.csv`` and ``result.json``, by one process; the latter names what counts."""
    if not fabric.is_global_zero:
        return
    folder, results = experiment.folder, experiment.results
    records.write_csv(
        folder / CURVES,
        ["configuration", "seed", "point", "validating", *_EPOCH],
        (
            (*trial, *asdict(epoch).values())
            for trial, result in results.items()
            for epoch in result.epochs
        ),
    )
    records.write_json(folder / RESULT, content(experiment))


def content(experiment: Experiment) -> dict[str, Any]:
    """What ``result.json`` says of a run."""
    recipe = experiment.recipe
    found = experiment.by_configuration()
    begun_in, *resumed_in = experiment.environments or [{}]  # none: nothing was trained yet
    return {
        "command": experiment.command,
        "recipe": recipe.name,
        "title": recipe.title,
        "spread": recipe.spread,
        "scale": experiment.scale,
        "seeds": experiment.seeds,
        "data": experiment.data,
        "keep_weights": experiment.keep_weights,
        "verify": experiment.verify,
        "only": experiment.only,
        "comparison": experiment.comparison and asdict(experiment.comparison),
        "status": experiment.status,
        "started": experiment.started.isoformat(timespec="seconds"),
        "machine": asdict(experiment.machine),
        "environment": begun_in,
        "resumed_in": resumed_in,
        "choices": recipe.choices,
        "trained": [configuration.describe() for configuration in recipe.configurations],
        "configurations": recipe.definition(),
        "summary": [
            {
                "configuration": name,
                "point": experiment.chosen_point(recipe[name]),
                "setting": _setting(experiment, name),
                **{key: asdict(_estimate(key, results)) for key in MEASURES},
                **_epochs_to_threshold(recipe, results),
                "paper": dict(recipe[name].paper),
            }
            for name, results in found.items()
        ],
        "claims": [verdict.content() for verdict in experiment.verdicts()],
        "runs": [
            {
                **trial._asdict(),
                "diverged": result.diverged,
                "steps_per_epoch": result.steps_per_epoch,
                **{key: measure(key, result) for key in MEASURES},
            }
            for trial, result in experiment.results.items()
        ],
    }


def read(folder: Path) -> Experiment:
    """The run in a folder, as far as it has come."""
    from .experiment import Experiment

    content = read_content(folder)
    with records.reading(folder / RESULT):
        begun = begun_with(content)
        found = content.get("comparison")
        comparison = Comparison(**found) if found else None
        compared = comparison and comparison.recipe()
        for run in content["runs"]:
            records.told_count(run, "steps_per_epoch")
    recipe = as_run(compared or find_recipe(content["recipe"]), content)
    check_definition(recipe, content, folder)
    curves = folder / COMPRESSED_CURVES
    if not curves.exists():
        curves = folder / CURVES
    with records.reading(curves):
        results = _results(curves, content["runs"])
        for trial in results:
            trial.stem(recipe)  # of a configuration that is there
    with records.reading(folder / RESULT):
        return Experiment(
            **begun,
            recipe=recipe,
            data=records.told(content, "data", str),
            folder=folder,
            results=results,
            keep_weights=records.told(content, "keep_weights", bool),
            verify=records.told(content, "verify", bool),
            comparison=comparison,
            environments=[
                environment.known(described)
                for described in (
                    records.told(content, "environment", dict),
                    *records.told_list(content, "resumed_in", dict),
                )
            ],
        )


def begun_with(content: Mapping[str, Any]) -> dict[str, Any]:
    """What a run of either kind, of trainings or of measurements, was begun with; inside
    ``records.reading``.
    """
    plain, machine = asdict(Machine()), records.told(content, "machine", dict)
    for key in machine:
        records.told(machine, key, type(plain[key]))
    if content["scale"] not in ("full", "quick"):
        raise ValueError(f"scale is {content['scale']!r}")
    return {
        "scale": content["scale"],
        "seeds": records.told_count(content, "seeds", records.MOST_SEEDS),
        "machine": Machine(**machine),
        "started": datetime.fromisoformat(content["started"]),
        "status": records.told(content, "status", str),
        "only": tuple(records.told_list(content, "only", str)),
    }


@overload
def as_run(recipe: Recipe, content: Mapping[str, Any]) -> Recipe: ...
@overload
def as_run(recipe: Measurement, content: Mapping[str, Any]) -> Measurement: ...
def as_run(recipe: Recipe | Measurement, content: Mapping[str, Any]) -> Recipe | Measurement:
    """A recipe with the configurations, and at the scale, of a run."""
    some = recipe.only(records.told_list(content, "only", str))
    return some.shrunk() if content["scale"] == "quick" else some


def read_content(folder: Path) -> dict[str, Any]:
    """What ``result.json`` of a run says, be it a run of a recipe or a comparison."""
    try:
        content = json.loads((folder / RESULT).read_text(encoding="utf-8"))
        if isinstance(content["recipe"], str) and isinstance(content["scale"], str):
            return content
        whole = " whole"
    except FileNotFoundError:
        whole = ""
    except (OSError, RecursionError, ValueError, KeyError, TypeError):
        whole = " whole"  # whatever it is, it is not that
    raise ValueError(
        f"{folder} is not the folder of a run: there is no{whole} {RESULT} of 'isonorm run' or "
        "'isonorm compare' in it."
    )


class DefinedOtherwise(ValueError):
    """A run is of what its recipe was once."""


def check_definition(
    recipe: Recipe | Measurement, content: Mapping[str, Any], folder: Path
) -> None:
    """Results of one definition cannot stand beside those of another."""
    if not is_as_defined(recipe, content):
        raise DefinedOtherwise(
            f"{recipe.name} is defined otherwise now than when {folder} was begun: begin a new run."
        )


def is_as_defined(recipe: Recipe | Measurement, content: Mapping[str, Any]) -> bool:
    """Whether a run, as it was begun, is of what these configurations are now."""
    revised = datetime.fromisoformat(recipe.revised) if recipe.revised else None
    if revised is not None and datetime.fromisoformat(content["started"]) < revised:
        return False
    return recipe.definition() == content.get("configurations")


def _results(path: Path, runs: Sequence[Mapping[str, Any]]) -> dict[Trial, Result]:
    """The trainings that are finished, with every epoch."""
    from .experiment import Trial

    curves: dict[Trial, list[Epoch]] = {}
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            point = int(row["point"]) if row["point"] else None
            trial = Trial(
                row["configuration"], int(row["seed"]), point, row["validating"] == "True"
            )
            numbers = {key: float(row[key]) for key in _EPOCH if key != "number"}
            curves.setdefault(trial, []).append(Epoch(int(row["number"]), **numbers))
    results: dict[Trial, Result] = {}
    for run in runs:
        trial = Trial(run["name"], run["seed"], run["point"], run["validating"])
        results[trial] = Result(tuple(curves[trial]), run["steps_per_epoch"])
    return results


def _estimate(key: str, results: Sequence[Result]) -> Estimate:
    """Over the seeds that did not diverge and have the number."""
    values = [measure(key, result) for result in results]
    return Estimate.over(value if math.isfinite(value) else None for value in values)


def _epochs_to_threshold(recipe: Recipe, results: Sequence[Result]) -> dict[str, Any]:
    """Where the recipe has a threshold."""
    if recipe.threshold is None:
        return {}
    epochs = Estimate.over(result.epochs_to(recipe.threshold) for result in results)
    return {"threshold": recipe.threshold, "epochs_to_threshold": asdict(epochs)}


def _setting(experiment: Experiment, name: str) -> str:
    """What a grid search chose."""
    configuration = experiment.recipe[name]
    point = experiment.chosen_point(configuration)
    return configuration.search.label(point) if configuration.search and point is not None else ""
