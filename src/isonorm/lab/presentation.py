"""What the commands print: tables of recipes and results, verdicts, and a recipe in words."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import NoReturn

import typer
from rich.console import Console
from rich.table import Table

from . import cost, records, run_files
from .claims import in_words
from .experiment import Experiment
from .measuring.presentation import print_measurement
from .measuring.run import Measuring
from .measuring.words import Measurement
from .output import say, show
from .recipe import Recipe
from .tables import tabulate

#: Columns of a terminal that has room for the numbers of recipes beside their names.
_WIDTH_WITH_NUMBERS = 110


def recipes_table(recipes: Iterable[Recipe | Measurement], width: int) -> Table:
    """Return a table of all of them, with numbers where it may be wide."""
    numbers = width >= _WIDTH_WITH_NUMBERS
    table = Table(caption="'isonorm recipes RECIPE' tells the rest.", caption_justify="left")
    for heading in ("recipe", "what", "data", *["paper"] * numbers):
        table.add_column(heading, no_wrap=heading in ("recipe", "data"))
    for heading in ("trainings", "images") * numbers:
        table.add_column(heading, justify="right", no_wrap=True)
    for recipe in recipes:
        row = [recipe.name, recipe.title, recipe.data]
        if numbers:
            images = f"{cost.images_seen(recipe) / 1e6:,.0f} M"
            row += [_papers_numbers(recipe), str(recipe.trainings), images]
        table.add_row(*row)
    return table


def results_table(experiment: Experiment) -> Table:
    """Each configuration's numbers over seeds, as in ``result.json``; beside the paper's, where it
    gives any.
    """
    found = experiment.by_configuration()
    several = any(len(results) > 1 for results in found.values())
    median = experiment.recipe.spread == "median"
    kind = "; median and quartiles" if median else "; mean ± standard deviation"
    table = Table(caption=experiment.caption + kind * several, caption_justify="left")
    headings, rows, words = tabulate(run_files.content(experiment))
    for i, heading in enumerate(headings):
        justify = "left" if i < words else "right"
        table.add_column(heading, justify=justify, style="bold" if i == 0 else None)
    for row in rows:
        table.add_row(*row)
    return table


def print_verdicts(console: Console, experiment: Experiment | Measuring) -> None:
    verdicts = experiment.verdicts()
    if verdicts and experiment.unfinished:
        say(console, f"Not finished ({experiment.unfinished}): the verdicts are on what there is.")
    if experiment.scale == "quick":
        say(console, "At quick scale a run shows that everything works, not what the paper claims:")
    for verdict in verdicts:
        say(console, str(verdict))


def print_verdicts_of_then(console: Console, folder: Path) -> None:
    """Of a run whose recipe is of other things now: what was found when it was made."""
    content = run_files.read_content(folder)
    with records.reading(folder / run_files.RESULT):
        found = [
            f"{claim['answer']}: {claim['claim']} ({claim['evidence']})"
            for claim in records.told_list(content, "claims", dict)
        ]
    say(
        console,
        f"{content['recipe']} is defined otherwise now than when {folder} was begun, and the "
        "verdicts are those of then:",
    )
    for line in found:
        say(console, line)


def stopped(console: Console, state: str, command: str, folder: Path) -> NoReturn:
    """End a command that Ctrl-C has interrupted, with the words that go on with it."""
    resume = shlex.join(["isonorm", command, "--resume", str(folder)])
    say(console, f"Stopped with {state}. Go on with: {resume}")
    raise typer.Exit(130)  # what a shell expects of a program that Ctrl-C ended


def print_recipe(console: Console, recipe: Recipe | Measurement) -> None:
    if isinstance(recipe, Measurement):
        return print_measurement(console, recipe)
    say(console, f"{recipe.name}: {recipe.title}")
    table = Table()
    for heading in ("configuration", "network", "norm", "paper"):
        table.add_column(heading)
    plans: dict[str, list[str]] = {}
    for c in recipe.configurations:
        paper = ", ".join(f"{key} {value:g}" for key, value in c.paper.items())
        words = c.describe()
        table.add_row(c.name, words["network"], words["norm"], paper)
        plans.setdefault(words["training"], []).append(c.name)
    show(console, table)
    for plan, names in plans.items():
        say(console, f"Trained: {plan} ({'all' if len(plans) == 1 else '; '.join(names)}).")
    for heading, lines in (
        ("The paper claims:", [claim.text for claim in recipe.claims]),
        ("Where the paper is silent:", recipe.choices),
    ):
        say(console, heading)
        for line in lines:
            say(console, f"  - {line}")
    works = list(cost.work(recipe))
    times = ", ".join(
        f"{sum(work.hours(on) for work in works):,.1f} h on {on}" for on in cost.RATES
    )
    say(
        console,
        f"Cost with the paper's {recipe.seeds} seed(s): {recipe.trainings} trainings, "
        f"{sum(work.operations for work in works):.1e} operations; roughly {times}.",
    )


def _papers_numbers(recipe: Recipe | Measurement) -> str:
    """The range of its first measure; many figures are curves without numbers."""
    told = [c.paper for c in recipe.configurations if c.paper]
    if not told:
        return "curves"
    first = next(iter(told[0]))
    numbers = [paper[first] for paper in told if first in paper]
    return f"{in_words(first)}: {min(numbers):.4g} to {max(numbers):.4g}"
