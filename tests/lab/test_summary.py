from __future__ import annotations

import io

import pytest
from rich.console import Console

from isonorm.lab.summary import Estimate, summarize, table


def test_mean_and_spread_are_over_the_seeds_that_have_the_number(results):
    plain, iternorm, dbn = summarize(results)
    assert plain.train_loss == Estimate(0.5, None, count=1, total=2)
    assert plain.epochs_to_target == Estimate(None, None, count=0, total=2)
    assert iternorm.test_error.mean == pytest.approx(0.03)
    assert iternorm.test_error.spread == pytest.approx(0.02 / 2**0.5)
    assert iternorm.epochs_to_target.mean == 2.5
    assert dbn.seconds_per_step == Estimate(pytest.approx(0.04), None, count=1, total=1)


def test_table_shows_percent_milliseconds_and_what_is_missing(results):
    console = Console(file=io.StringIO(), width=120)
    console.print(table(summarize(results), "digits"))
    text = console.file.getvalue()
    rows = {
        line.split("│")[1].strip(): line.split("│")[2:-1]
        for line in text.splitlines()
        if "│" in line
    }
    cells = {norm: [cell.strip() for cell in row] for norm, row in rows.items()}
    assert cells["plain"] == ["0.5000 (1 of 2)", "10.00 (1 of 2)", "not reached", "35.00 ± 7.07"]
    assert cells["iternorm"] == ["0.0200 ± 0.0141", "3.00 ± 1.41", "2.5 ± 0.7", "40.00 ± 0.00"]
    assert cells["dbn:group_size=32"] == ["0.0200", "0.00", "2.0", "40.00"]
    assert "digits; mean ± standard deviation" in text
