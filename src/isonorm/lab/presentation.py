"""What the commands print: tables of recipes and results, verdicts, and a recipe in words."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import NoReturn

import typer
from rich.console import Console
from rich.table import Table

from . import cost
from .claims import MEASURES, PERCENT, in_words, judge, measure
from .experiment import Experiment
from .measuring.presentation import print_measurement
from .measuring.run import Measuring
from .measuring.words import Measurement
from .output import say
from .recipe import Recipe
from .summary import Column

_SHOWN = ("train_loss", "train_error", "test_error", "test_top5_error")


def recipes_table(recipes: Iterable[Recipe | Measurement]) -> Table:
    """All of them, a line each."""
    table = Table(caption="'isonorm recipes RECIPE' tells the rest.", caption_justify="left")
    for heading in ("recipe", "what", "data", "paper"):
        table.add_column(heading, no_wrap=heading in ("recipe", "data"))
    for heading in ("trainings", "images"):
        table.add_column(heading, justify="right", no_wrap=True)
    for recipe in recipes:
        table.add_row(
            recipe.name,
            recipe.title,
            recipe.data,
            _papers_numbers(recipe),
            str(recipe.trainings),
            f"{cost.images_seen(recipe) / 1e6:,.0f} M",
        )
    return table


def results_table(experiment: Experiment) -> Table:
    """Each configuration's numbers over seeds; beside the paper's, where it gives any."""
    recipe, found = experiment.recipe, experiment.by_configuration()
    quartiles = recipe.spread == "median"
    several = any(len(results) > 1 for results in found.values())
    kind = "median and quartiles" if quartiles else "mean ± standard deviation"
    caption = f"{experiment.caption}; {kind}" if several else experiment.caption
    table = Table(caption=caption, caption_justify="left")
    searched = any(c.search for c in recipe.configurations)
    in_paper = any(c.paper for c in recipe.configurations)
    columns = _columns(experiment)
    table.add_column("norm" if experiment.comparison else "configuration", style="bold")
    if searched:
        table.add_column("chosen")
    for heading in [column.heading for column in columns] + ["paper"] * in_paper:
        table.add_column(heading, justify="right")
    for name, results in found.items():
        configuration = recipe[name]
        point, search = experiment.chosen_point(configuration), configuration.search
        cells = [column.cell(results, quartiles=quartiles) for column in columns]
        if searched:
            cells.insert(0, search.label(point) if search and point is not None else "")
        if in_paper:
            cells.append(", ".join(f"{value:g}" for value in configuration.paper.values()))
        table.add_row(name, *cells)
    return table


def _columns(experiment: Experiment) -> list[Column]:
    threshold = experiment.recipe.threshold
    if experiment.comparison is None or threshold is None:
        return [_column(name) for name in _SHOWN]
    return [
        _column("train_loss"),
        _column("test_error"),
        Column(
            f"epochs to {100 * threshold:g}%",
            lambda result: result.epochs_to(threshold),
            1,
            missing="not reached",
        ),
        Column("ms per step", lambda result: result.seconds_per_step, 2, unit=1e-3),
        Column("peak MB", lambda result: MEASURES["peak_bytes"](result), 2, unit=1e6, missing="–"),
    ]


def _column(name: str) -> Column:
    percent = name in PERCENT
    decimals, unit = (2, 0.01) if percent else (4, 1.0)
    return Column(in_words(name), lambda result: measure(name, result), decimals, unit)


def print_verdicts(console: Console, experiment: Experiment | Measuring) -> None:
    found = experiment.by_configuration()
    if experiment.scale == "quick":
        say(console, "At quick scale a run shows that everything works, not what the paper claims:")
    for claim in experiment.recipe.claims:
        say(console, str(judge(claim, found)))


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
    console.print(table)
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
