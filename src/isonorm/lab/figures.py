"""Curves as figures in one style: for the screen, for print, and without relying on color."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil, isfinite, isinf
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from ..analysis.plots.style import STYLE, looks
from . import records
from .recipe import Spread
from .summary import quantile
from .train import Epoch, Result

#: What lines and bands are, by what stands for several seeds in tables.
_KINDS: dict[Spread, str] = {
    "mean": "line: mean, band: range",
    "median": "line: median, band: quartiles",
}


def curves(
    results: dict[str, Sequence[Result]],
    title: str,
    *,
    threshold: float | None = None,
    spread: Spread = "mean",
) -> Figure:
    """Train loss and test error against epochs, and the condition number where it was measured; a
    line marks the test accuracy ``threshold``.

    A line is the mean over seeds, and its band holds all of them; or it is their median with the
    quartiles. Unlike in tables, which leave it out, a seed that diverged is the worst. Where that
    makes a line infinite, it ends; the legend says who diverged. Configurations named "BN, batch 2"
    have a row for each second part of their names.
    """
    parts = _parts(results)
    norms = list(dict.fromkeys(norm for part in parts.values() for norm in part))
    labels = [_label(norm, parts) for norm in norms]
    columns = max(1, min(len(labels), 100 // (9 + max(map(len, labels)))))
    extra_rows = ceil(len(labels) / columns) - 1
    several_seeds = any(len(seeds) > 1 for seeds in results.values())
    note = f" ({_KINDS[spread]})" if several_seeds else ""
    panels = 3 if _has_conditions(results) else 2
    size = (4.2 * panels, 0.6 + 3.2 * len(parts) + 0.2 * extra_rows)
    lines: dict[str, Line2D] = {}
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=size, layout="constrained")
        figure.suptitle(title + note, x=0.01, ha="left", fontsize=8.5, color="0.35")
        grid = figure.subplots(len(parts), panels, sharex="row", squeeze=False)
        looks_of = dict(zip(norms, looks(norms), strict=True))
        for axes, (part, drawn) in zip(grid, parts.items(), strict=True):
            _draw_row(axes, drawn, looks_of, f", {part}" if part else "", threshold, spread)
            lines = dict(zip(drawn, axes[0].lines, strict=True)) | lines
        handles = [lines[norm] for norm in norms]
        figure.legend(handles, labels, loc="outside lower center", ncols=columns, handlelength=3)
    return figure


def _parts(results: dict[str, Sequence[Result]]) -> dict[str, dict[str, Sequence[Result]]]:
    """What belongs into one row of panels, by norm: "BN, batch 2" is beside "DBN, batch 2", and
    "BN, full batch" below. Where names are not of this kind, all of them, in a part without a name.
    """
    parts: dict[str, dict[str, Sequence[Result]]] = {}
    for name, seeds in results.items():
        norm, _, part = name.rpartition(", ")
        parts.setdefault(part, {})[norm] = seeds
    if len(parts) == 1 or "" in parts or any(len(part) == 1 for part in parts.values()):
        return {"": results}
    return parts


def _draw_row(
    row: Sequence[Axes],
    results: dict[str, Sequence[Result]],
    looks_of: dict[str, tuple[str, Any]],
    suffix: str,
    threshold: float | None,
    spread: Spread,
) -> None:
    loss_axes, error_axes, *more = row
    _dress(loss_axes, "Train loss" + suffix, "{:g}")
    _dress(error_axes, "Test error" + suffix, "{:g}%")
    for norm, seeds in results.items():
        look = looks_of[norm]
        _draw(loss_axes, seeds, lambda epoch: epoch.train_loss, spread, *look)
        _draw(error_axes, seeds, lambda epoch: 100 * epoch.test_error, spread, *look)
        for axes in more:
            _draw(axes, seeds, lambda epoch: epoch.condition_number, spread, *look)
    if threshold is not None and threshold < 1:
        _mark(error_axes, threshold)
    for axes in more:
        _dress(axes, "Condition number" + suffix, "{:g}")
        _tell_infinite(axes, results)
    _cut_explosions(loss_axes, results)
    for axes in row:
        _thin_out_ticks(axes)
    longest = max(len(result.epochs) for seeds in results.values() for result in seeds)
    margin = max(0.02 * longest, 0.2 if longest > 2 else 0.05)
    loss_axes.set_xlim(1 - margin, longest + margin)


def save(
    figure: Figure,
    folder: Path,
    name: str,
    kinds: Sequence[str] = ("png", "svg"),
    dpi: float | None = None,
) -> list[Path]:
    """The figure as PNG and SVG, or some of them."""
    paths = []
    for kind in kinds:
        metadata = {"Date": None} if kind == "svg" else None  # a date would differ each time
        path = folder / f"{name}.{kind}"
        with matplotlib.rc_context(STYLE), records.whole_file(path) as temporary:
            figure.savefig(temporary, format=kind, metadata=metadata, dpi=dpi)
        paths.append(path)
    return paths


def _dress(axes: Axes, title: str, numbers: str) -> None:
    axes.set_title(title)
    axes.set_xlabel("epoch")
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, position: numbers.format(value)))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_major_locator(
        MaxNLocator("auto", steps=[1, 2, 5, 10], integer=True, min_n_ticks=1)
    )


def _has_conditions(results: dict[str, Sequence[Result]]) -> bool:
    return any(
        isfinite(epoch.condition_number)
        for seeds in results.values()
        for result in seeds
        for epoch in result.epochs
    )


def _cut_explosions(axes: Axes, results: dict[str, Sequence[Result]]) -> None:
    """A loss on its way to infinity leaves the picture, rather than press the others flat."""
    first = (result.epochs[0].train_loss for seeds in results.values() for result in seeds)
    top = 10 * max((loss for loss in first if isfinite(loss)), default=1.0)
    if axes.get_ylim()[1] > top > axes.get_ylim()[0]:
        axes.set_ylim(top=top)


def _thin_out_ticks(axes: Axes) -> None:
    """Over many decades, only their beginnings have numbers."""
    low, high = axes.get_ylim()
    if high > 1e4 * low:
        axes.yaxis.set_major_locator(LogLocator(numticks=9))


def _tell_infinite(axes: Axes, results: dict[str, Sequence[Result]]) -> None:
    """Names those whose condition numbers were measured, but leave no line to be seen."""
    names = [
        norm
        for (norm, seeds), line in zip(results.items(), axes.lines, strict=True)
        if not np.isfinite(np.asarray(line.get_ydata(), dtype=float)).any()
        and any(isinf(epoch.condition_number) for result in seeds for epoch in result.epochs)
    ]
    if names:
        text = f"∞: {', '.join(names)}"
        axes.text(0.02, 0.98, text, transform=axes.transAxes, va="top", fontsize=8, color="0.35")


def _mark(axes: Axes, threshold: float) -> None:
    error = 100 * (1 - threshold)
    axes.axhline(error, color="0.45", linewidth=0.7, zorder=1)
    axes.annotate(
        f"{100 * threshold:g}%\ncorrect",
        xy=(1, error),
        xycoords=("axes fraction", "data"),
        xytext=(3, 0),
        textcoords="offset points",
        va="center",
        fontsize=7.5,
        color="0.35",
    )


def _draw(
    axes: Axes,
    seeds: Sequence[Result],
    quantity: Callable[[Epoch], float],
    spread: Spread,
    color: str,
    dashes: Any,
) -> None:
    longest = max(len(result.epochs) for result in seeds)
    values = np.full((len(seeds), longest), np.nan)
    for row, result in zip(values, seeds, strict=True):
        row[: len(result.epochs)] = [quantity(epoch) for epoch in result.epochs]
    measured = ~np.isnan(values).all(axis=0)  # some quantities are, every hundredth epoch
    values, epochs = values[:, measured], np.arange(1, longest + 1)[measured]
    values[np.isinf(values)] = np.nan  # a gap, not a line from one side of it to the other
    low, middle, high = _over_seeds(values, spread)
    alone = _without_neighbors(middle)  # a line through one point cannot be seen
    marker = "o" if alone.any() else ""
    axes.plot(epochs, middle, color=color, linestyle=dashes, marker=marker, markevery=alone)
    axes.fill_between(epochs, low, high, color=color, alpha=0.15, linewidth=0)


def _without_neighbors(line: np.ndarray) -> np.ndarray:
    """Which of its points stand between gaps.

    >>> _without_neighbors(np.array([1, np.nan, 1, 1])).tolist()
    [True, False, False, False]
    """
    there = np.pad(np.isfinite(line), 1)
    return there[1:-1] & ~there[:-2] & ~there[2:]


def _over_seeds(values: np.ndarray, spread: Spread) -> Sequence[np.ndarray]:
    """The lower edge of the band, the line and the upper edge, by epoch; NaN where one ends."""
    if spread == "mean":
        return values.min(axis=0), values.mean(axis=0), values.max(axis=0)
    values = np.where(np.isnan(values), np.inf, values)  # diverged, or infinite itself
    edges = [[quantile(seeds, share) for seeds in values.T] for share in (0.25, 0.5, 0.75)]
    return [np.where(np.isfinite(edge), edge, np.nan) for edge in edges]


def _label(norm: str, parts: dict[str, dict[str, Sequence[Result]]]) -> str:
    """A norm's name, and where it diverged."""
    told = []
    for part, results in parts.items():
        seeds = results.get(norm, ())
        diverged = sum(result.diverged for result in seeds)
        if diverged:
            told.append(f"{part}: " * bool(part) + f"{diverged} of {len(seeds)} diverged")
    return f"{norm} ({', '.join(told)})" if told else norm
