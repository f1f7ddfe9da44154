"""The numbers of a run as tables: over seeds beside the paper's, and training by training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..tables import tabulate
from . import parts
from .markup import Markup


def results_table(content: Mapping[str, Any]) -> Markup:
    """A row for each configuration, the numbers over seeds."""
    found, seeds = tabulate(content), content.get("seeds") or 1
    kind = (
        "Median and quartiles" if content.get("spread") == "median" else "Mean ± standard deviation"
    )
    caption = f"{kind} over {seeds} seeds" if seeds > 1 else "One seed: no spread"
    return parts.table(caption, found.headings, found.rows, words=found.words)


def runs_table(content: Mapping[str, Any]) -> Markup:
    """All trainings or measurements, searches included."""
    runs = content["runs"]
    numbers = [
        key
        for key in dict.fromkeys(key for run in runs for key in run)
        if any(isinstance(run.get(key), float) for run in runs)
    ]
    others = [
        key
        for key in runs[0]
        if key not in numbers and any(run.get(key) not in (None, False) for run in runs)
    ]
    return parts.table(
        "Each run by itself; errors are fractions",
        [key.replace("_", " ") for key in (*others, *numbers)],
        (
            [
                *(_plain(run.get(key)) for key in others),
                *(_plain(run.get(key)) for key in numbers),
            ]
            for run in runs
        ),
    )


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.5g}"
    return "" if value is None else str(value)
