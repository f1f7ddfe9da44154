"""What the commands print of layers."""

from __future__ import annotations

from dataclasses import replace

from rich.console import Console
from rich.table import Table

from ..cost import RATES
from ..output import say, show
from ..summary import Estimate
from .meters import build, count
from .run import Measuring, Turn
from .words import MEASURES, Layer, Measured, Measurement


def turn_line(run: Measuring, turn: Turn, measured: Measured) -> str:
    """One turn, as it ends."""
    total = run.seeds * len(run.recipe.configurations)
    number = f"[{len(run.results):>{len(str(total))}}/{total}]"
    key = run.recipe.measures[0]
    value = f"{measured.values[key]:.4g} {key.replace('_', ' ')}"
    return f"{number} {turn[0]}, seed {turn[1]}: {value}, error {measured.error:.0e}"


def results_table(run: Measuring) -> Table:
    """Each layer's numbers beside the paper's, and the formula's."""
    recipe = run.recipe
    kind = "; mean ± standard deviation over inputs" * (recipe.timed and run.seeds > 1)
    table = Table(caption=f"{recipe.name}: {recipe.title}{kind}", caption_justify="left")
    table.add_column("layer", style="bold")
    for heading in (*(key.replace("_", " ") for key in recipe.measures), "paper", "formula"):
        table.add_column(heading, justify="right")
    for name, measured in run.by_configuration().items():
        cells = [_cell(key, [one.values[key] for one in measured]) for key in recipe.measures]
        table.add_row(name, *cells, _paper(recipe, name), _formula(recipe, name))
    return table


def print_measurement(console: Console, recipe: Measurement) -> None:
    """All about a measurement, before it is made."""
    say(console, f"{recipe.name}: {recipe.title}")
    table = Table()
    for heading in ("configuration", "layer", "input", "paper", "formula"):
        table.add_column(heading)
    for layer in recipe.configurations:
        shape = " × ".join(map(str, layer.shape))
        formula = _formula(recipe, layer.name)
        table.add_row(layer.name, layer.layer, shape, _paper(recipe, layer.name), formula)
    show(console, table)
    for heading, lines in (
        ("Measured:", [f"{key}: {MEASURES[key]}" for key in recipe.measures]),
        ("The paper claims:", [claim.text for claim in recipe.claims]),
        ("Where the paper is silent:", recipe.choices),
    ):
        say(console, heading)
        for line in lines:
            say(console, f"  - {line}")
    operations = 2 * recipe.passes * sum(map(_training_operations, recipe.configurations))
    times = ", ".join(f"{operations / rate / 60:,.1f} min on {on}" for on, rate in RATES.items())
    say(
        console,
        f"Cost: no training; {recipe.passes} forward and backward passes of each layer with "
        f"{recipe.seeds} inputs, {operations:.1e} operations; roughly {times}.",
    )


def _training_operations(layer: Layer) -> float:
    small = replace(layer, shape=(2, layer.shape[1], 2, 2))  # its layer is the same
    return count(build(small, seed=0).layer, layer.shape)["training_operations"]


def _cell(key: str, values: list[float]) -> str:
    if key.endswith("operations"):
        values = values[:1]  # a count: it does not vary
    if any(value != value for value in values):
        return "–"
    return Estimate.over(values).text(missing="–")


def _paper(recipe: Measurement, name: str) -> str:
    numbers = recipe[name].paper
    if len(recipe.measures) == 1:
        return ", ".join(f"{number:g}" for number in numbers.values())
    unit = lambda key: key.removeprefix("device_").replace("_", " ")  # noqa: E731
    return ", ".join(f"{number:.4g} {unit(key)}" for key, number in numbers.items())


def _formula(recipe: Measurement, name: str) -> str:
    layer = recipe[name]
    return f"{layer.formula} = {layer.formula.at(layer.shape):.3e}" if layer.formula else ""
