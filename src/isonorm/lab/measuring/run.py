"""A measurement being made: layer after layer, each number on disk as soon as it is there."""

from __future__ import annotations

import csv
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from .. import environment, figures, records, run_files
from ..claims import Verdict, judge
from ..comparison import count
from ..machine import Machine
from ..pages import run as run_page
from ..run_files import RESULT
from ..summary import Estimate
from .figure import bars
from .meters import measure
from .words import Measured, Measurement

MEASUREMENTS = "measurements.csv"

#: A layer's name and a seed.
Turn = tuple[str, int]


@dataclass
class Measuring:
    """A run of a measurement as far as it has come, and the folder that holds the same."""

    recipe: Measurement  # at the scale it is run at
    scale: str
    seeds: int
    machine: Machine
    folder: Path
    started: datetime
    status: str = "running"  # then "finished" or "interrupted"; a killed process leaves "running"
    results: dict[Turn, Measured] = field(default_factory=dict)
    only: tuple[str, ...] = ()  # patterns of the configurations; none: all
    begun_on: dict[str, Any] | None = None  # the environment of a run that was read

    def turns(self) -> Iterator[Turn]:
        """All layers once before the next seed: a drift of the machine favours none of them."""
        for seed in range(self.seeds):
            for layer in self.recipe.configurations:
                yield layer.name, seed

    def by_configuration(self) -> dict[str, Sequence[Measured]]:
        found: dict[str, list[Measured]] = {}
        for (name, _), measured in self.results.items():
            found.setdefault(name, []).append(measured)
        return dict(found)

    def verdicts(self) -> list[Verdict]:
        """On each claim."""
        found = self.by_configuration()
        return [judge(claim, found, self.recipe.spread) for claim in self.recipe.claims]

    @property
    def unfinished(self) -> str:
        """How far it has come, in words; "" where it has come to its end."""
        done, total = len(self.results), len(list(self.turns()))
        return f"{done} of {count(total, 'turn')}" if done < total else ""

    @property
    def command(self) -> str:
        """The command line that repeats the run."""
        words = ["isonorm", "run", self.recipe.name, "--scale", self.scale]
        words += ["--seeds", str(self.seeds)]
        for pattern in self.only:
            words += ["--only", pattern]
        return shlex.join([*words, *self.machine.words()])


def conduct(run: Measuring, on_turn: Callable[[Turn, Measured], None]) -> Measuring:
    """Take every turn that has no numbers yet. Ctrl-C keeps what there is."""
    recipe = run.recipe
    if run.begun_on not in (None, environment.describe(run.machine.device)):
        raise ValueError(
            f"{run.folder} was measured on other hardware or with other versions, whose times "
            "cannot stand beside these: begin a new run."
        )
    run.status = "running"
    _write(run)
    try:
        with run.machine.settings():
            for turn in run.turns():
                if turn in run.results:
                    continue
                name, seed = turn
                measured = measure(recipe[name], recipe.measures, seed, recipe.calls, run.machine)
                run.results[turn] = measured
                _write(run)
                on_turn(turn, measured)
        run.status = "finished"
    except KeyboardInterrupt:
        run.status = "interrupted"
    _write(run)
    if run.results:
        draw(run, run.folder)
        run_page.write(run.folder)
    return run


def draw(run: Measuring, folder: Path) -> None:
    """The bars as figures, in a folder."""
    figures.save(bars(run.recipe, run.by_configuration()), folder, "bars")


def _write(run: Measuring) -> None:
    measures = run.recipe.measures
    rows = [
        {"name": name, "seed": seed, "error": measured.error, **measured.values}
        for (name, seed), measured in run.results.items()
    ]
    records.write_csv(
        run.folder / MEASUREMENTS,
        ["configuration", "seed", "error", *measures],
        (list(row.values()) for row in rows),
    )
    recipe = run.recipe
    content = {
        "command": run.command,
        "recipe": recipe.name,
        "title": recipe.title,
        "scale": run.scale,
        "seeds": run.seeds,
        "only": run.only,
        "status": run.status,
        "started": run.started.isoformat(timespec="seconds"),
        "machine": asdict(run.machine),
        "environment": environment.describe(run.machine.device),
        "choices": recipe.choices,
        "configurations": recipe.definition(),
        "summary": [
            {
                "configuration": name,
                **{
                    key: asdict(Estimate.over(one.values[key] for one in measured))
                    for key in measures
                },
                "paper": dict(recipe[name].paper),
                "formula": _formula(recipe, name),
            }
            for name, measured in run.by_configuration().items()
        ],
        "claims": [verdict.content() for verdict in run.verdicts()],
        "runs": rows,
    }
    records.write_json(run.folder / RESULT, content)


def read(folder: Path, find: Callable[[str], Measurement]) -> Measuring:
    """The run in a folder, as far as it has come; its recipe is found by its name."""
    content = run_files.read_content(folder)
    with records.reading(folder / RESULT):
        begun = run_files.begun_with(content)
        begun_on = environment.known(records.told(content, "environment", dict))
    recipe = run_files.as_run(find(content["recipe"]), content)
    run_files.check_definition(recipe, content, folder)
    with records.reading(folder / RESULT):
        turns = [(recipe[run["name"]].name, run["seed"]) for run in content["runs"]]
    with records.reading(folder / MEASUREMENTS):
        measured = _measured(folder / MEASUREMENTS, recipe.measures)
        results = {turn: measured[turn] for turn in turns}
    return Measuring(**begun, recipe=recipe, folder=folder, results=results, begun_on=begun_on)


def _measured(path: Path, measures: Sequence[str]) -> dict[Turn, Measured]:
    """By turn; one more than ``result.json`` names, where a process was killed between the two."""
    with path.open(encoding="utf-8", newline="") as file:
        return {
            (row["configuration"], int(row["seed"])): Measured(
                {key: float(row[key]) for key in measures}, float(row["error"])
            )
            for row in csv.DictReader(file)
        }


def _formula(recipe: Measurement, name: str) -> dict[str, Any] | None:
    layer = recipe[name]
    if layer.formula is None:
        return None
    return {"text": str(layer.formula), "value": layer.formula.at(layer.shape)}
