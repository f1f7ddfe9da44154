"""Layers side by side as bars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from statistics import mean

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatterSciNotation, LogLocator, NullFormatter

from ...analysis.plots.style import ACCENT, INK, STYLE
from .words import Measured, Measurement


def bars(recipe: Measurement, found: Mapping[str, Sequence[Measured]]) -> Figure:
    """The first measure of every layer, and the paper's number where it has one."""
    key, names = recipe.measures[0], list(found)
    rows = range(len(names))
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(7.2, 1.2 + 0.28 * len(names)), layout="constrained")
        figure.suptitle(
            f"{recipe.name}: {recipe.title}", x=0.01, ha="left", fontsize=8.5, color="0.35"
        )
        axes = figure.subplots()
        means = [mean(one.values[key] for one in found[name]) for name in names]
        axes.barh(rows, means, height=0.6, color=INK, label="here")
        numbers = {row: recipe[name].paper.get(key) for row, name in zip(rows, names, strict=True)}
        told = {row: number for row, number in numbers.items() if number is not None}
        if told:
            axes.plot(list(told.values()), list(told), "D", color=ACCENT, label="paper")
            axes.legend(loc="best")
        axes.set_yticks(rows, names)
        axes.invert_yaxis()
        axes.grid(False, axis="y")
        axes.set_xlabel(key.replace("_", " "))
        if min(means) > 0:
            axes.set_xscale("log")
            _number_ticks(axes)
    return figure


def _number_ticks(axes: Axes) -> None:
    """As many numbers as there is room for: of a few decades their 1, 2 and 5, else their 1."""
    low, high = axes.get_xlim()
    axes.xaxis.set_minor_formatter(NullFormatter())
    if high < 1e2 * low:
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter(LogFormatterSciNotation(minor_thresholds=(inf, inf)))
