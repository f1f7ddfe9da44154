"""What the commands around recipes print."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.table import Table

from . import cost
from .claims import PERCENT, judge, measure
from .experiment import Experiment
from .output import say
from .recipe import Recipe
from .summary import Estimate

_SHOWN = ("train_loss", "train_error", "test_error", "test_top5_error")


def recipes_table(recipes: Iterable[Recipe]) -> Table:
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
    """Each configuration's numbers beside the paper's."""
    recipe, found = experiment.recipe, experiment.by_configuration()
    quartiles = recipe.spread == "median"
    kind = "median and quartiles" if quartiles else "mean ± standard deviation"
    table = Table(caption=f"{recipe.name}: {recipe.title}; {kind}", caption_justify="left")
    table.add_column("configuration", style="bold")
    table.add_column("chosen")
    for name in (*_SHOWN, "paper"):
        table.add_column(_heading(name), justify="right")
    for name, results in found.items():
        configuration = recipe[name]
        point = experiment.chosen_point(configuration)
        search = configuration.search
        cells = [
            Estimate.over(
                None if result.diverged else measure(key, result) * _unit(key) for result in results
            ).text(2 if key in PERCENT else 4, missing="diverged", quartiles=quartiles)
            for key in _SHOWN
        ]
        chosen = search.label(point) if search and point is not None else ""
        paper = ", ".join(f"{value:g}" for value in configuration.paper.values())
        table.add_row(name, chosen, *cells, paper)
    return table


def print_verdicts(console: Console, experiment: Experiment) -> None:
    found = experiment.by_configuration()
    if experiment.scale == "quick":
        say(console, "At quick scale a run shows that everything works, not what the paper claims:")
    for claim in experiment.recipe.claims:
        say(console, str(judge(claim, found)))


def print_recipe(console: Console, recipe: Recipe) -> None:
    say(console, f"{recipe.name}: {recipe.title}")
    table = Table()
    for heading in ("configuration", "network", "norm", "paper"):
        table.add_column(heading)
    plans: dict[str, list[str]] = {}
    for c in recipe.configurations:
        options = ", ".join(f"{key}={value}" for key, value in c.options.items())
        paper = ", ".join(f"{key} {value:g}" for key, value in c.paper.items())
        norm = c.norm if c.conv == "plain" else c.conv
        table.add_row(c.name, f"{c.model} {options}", norm, paper)
        searched = f"; searched: {dict(c.search.grid)}" if c.search else ""
        plans.setdefault(c.plan.describe() + searched, []).append(c.name)
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


def _papers_numbers(recipe: Recipe) -> str:
    """The range of its first measure; many figures are curves without numbers."""
    found = [next(iter(c.paper.items())) for c in recipe.configurations if c.paper]
    if not found:
        return "curves"
    numbers = [number for _, number in found]
    return f"{_heading(found[0][0])}: {min(numbers):g} to {max(numbers):g}"


def _heading(measure_: str) -> str:
    return measure_.replace("_", " ") + ", %" * (measure_ in PERCENT)


def _unit(key: str) -> float:
    return 100.0 if key in PERCENT else 1.0
