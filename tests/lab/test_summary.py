from __future__ import annotations

import io
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest
from rich.console import Console

from isonorm.lab.comparison import Comparison
from isonorm.lab.experiment import Experiment, Trial
from isonorm.lab.machine import Machine
from isonorm.lab.presentation import results_table
from isonorm.lab.recipes import find_recipe
from isonorm.lab.summary import Estimate


@pytest.fixture
def experiment(results) -> Experiment:
    """A comparison of the three norms, with 2, 2 and 1 seeds finished."""
    comparison = Comparison(norms=tuple(results), epochs=3)
    found = {
        Trial(norm, seed): result
        for norm, seeds in results.items()
        for seed, result in enumerate(seeds)
    }
    return Experiment(comparison.recipe(), "full", 2, "data", Machine(), Path("runs"),
                      datetime(2020, 1, 1), results=found, comparison=comparison)  # fmt: skip


def shown(experiment: Experiment) -> tuple[str, dict[str, list[str]]]:
    """The text of the table, and its cells by row."""
    console = Console(file=io.StringIO(), width=150)
    console.print(results_table(experiment))
    text = console.file.getvalue()
    rows = [line.split("│")[1:-1] for line in text.splitlines() if "│" in line]
    return text, {name.strip(): [cell.strip() for cell in cells] for name, *cells in rows}


def test_mean_and_spread_are_over_the_seeds_that_have_the_number():
    assert Estimate.over([0.5, None]) == Estimate(0.5, None, count=1, total=2)
    assert Estimate.over([None]) == Estimate(None, None, count=0, total=1)
    two = Estimate.over([0.02, 0.04])
    assert (two.mean, two.spread) == (pytest.approx(0.03), pytest.approx(0.02 / 2**0.5))


def test_table_of_a_comparison_shows_percent_milliseconds_and_what_is_missing(experiment):
    text, cells = shown(experiment)
    for heading in ("norm", "train loss", "test error, %", "epochs to 95%", "ms per step"):
        assert heading in text
    assert cells["plain"] == [
        "0.5000 (1 of 2)", "10.00 (1 of 2)", "not reached", "35.00 ± 7.07",
    ]  # fmt: skip
    assert cells["iternorm"] == ["0.02000 ± 0.01414", "3.00 ± 1.41", "2.5 ± 0.7", "40.00 ± 0.00"]
    assert cells["dbn:group_size=32"] == ["0.02000", "0.00", "2.0", "40.00"]
    assert "batch size 256, 3 epochs, 1 to 2 seeds; mean ± standard deviation" in " ".join(
        text.split()
    )


def test_table_shows_memory_in_megabytes_where_it_was_measured(experiment):
    for trial, result in experiment.results.items():
        peaks = [replace(epoch, peak_bytes=1.5e6 + 1e6 * trial.seed) for epoch in result.epochs]
        experiment.results[trial] = replace(result, epochs=tuple(peaks))
    _, cells = shown(experiment)
    assert [row[-1] for row in cells.values()] == ["2.00 ± 0.71", "2.00 ± 0.71", "1.50"]


def test_table_shows_median_and_quartiles_and_another_threshold_on_demand(experiment):
    experiment.comparison = replace(experiment.comparison, spread="median", threshold=0.9)
    experiment.recipe = experiment.comparison.recipe()
    text, cells = shown(experiment)
    assert "median and quartiles" in text and "epochs to 90%" in text
    loss, error, epochs = cells["iternorm"][:3]
    assert (loss, error) == ("0.02000 [0.01500, 0.02500]", "3.00 [2.50, 3.50]")
    assert epochs == "2.0 [2.0, 2.0]"
    assert cells["plain"][2] == "3.0 (1 of 2)"


def test_table_of_a_recipe_has_the_papers_numbers_beside_its_own(make_result):
    recipe = find_recipe("dbn2018-table2")
    name = recipe.configurations[0].name
    found = {Trial(name, 0): make_result([1.0, 0.5], [0.2, 0.1])}
    run = Experiment(recipe, "full", 5, "data", Machine(), Path("runs"), datetime(2020, 1, 1),
                     results=found)  # fmt: skip
    text, cells = shown(run)
    assert cells[name][0] == "0.5000" and cells[name][-2] == "10.00"
    assert cells[name][-1] == f"{recipe[name].paper['test_error']:g}"
    assert "\ndbn2018-table2: " in text and "chosen" not in text


def test_numbers_that_span_decades_are_powers_of_ten(make_result):
    recipe = find_recipe("dbn2018-fig3")
    numbers = {"DBN": (642.436, 768.437, 890.56), "LN": (5152542.8, 20829560.7, 94844959.0)}
    found = {}
    for name, conditions in numbers.items():
        for seed, condition in enumerate(conditions):
            result = make_result([1.0], [0.1])
            measured = replace(result.epochs[0], condition_number=condition)
            found[Trial(name, seed, 0)] = replace(result, epochs=(measured,))
    run = Experiment(recipe, "full", 3, "data", Machine(), Path("runs"), datetime(2020, 1, 1),
                     results=found)  # fmt: skip
    _, cells = shown(run)
    assert cells["DBN"][-1] == "768.4 [705.4, 829.5]"
    assert cells["LN"][-1] == "2.083e+07 [1.299e+07, 5.784e+07]"


def test_table_of_a_recipe_shows_what_the_paper_speaks_of_beside_its_number(make_result):
    recipe = find_recipe("dbn2018-tableB1")
    found = {Trial("BN", 0): make_result([1.0, 0.5], [0.2, 0.1])}
    run = Experiment(recipe, "full", 1, "data", Machine(), Path("runs"), datetime(2020, 1, 1),
                     results=found)  # fmt: skip
    text, cells = shown(run)
    paper = recipe["BN"].paper
    assert "seconds per epoch ┃  paper ┃" in text
    assert cells["BN"][-1] == f"{paper['seconds_per_epoch']:g}"
    assert "test top5 error" not in text
