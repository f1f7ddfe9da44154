"""The studies' figures, drawn from their records."""

from __future__ import annotations

from typing import Any

import matplotlib
import torch
from matplotlib.figure import Figure

from isonorm.analysis import plots
from isonorm.analysis.plots.style import STYLE, looks, ramp

from . import disturbance
from .disturbance import ITERNORM, STEPS, TRIO, curve

SHORT = {"batchnorm": "batchnorm", "dbn": "dbn", ITERNORM: "iternorm"}


def panels(count: int, title: str, height: float = 3.1) -> tuple[Figure, Any]:
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(4.2 * count, height), layout="constrained")
        figure.suptitle(title, x=0.01, ha="left", fontsize=8.5, color="0.35")
        return figure, figure.subplots(1, count, squeeze=False)[0]


def _sizes(config: dict[str, Any]) -> str:
    return (
        f"N(0, I), {config['population']:,} samples; N = {config['num_samples']}, "
        f"s = {config['num_batches']}, {config['repeats']} repeats (band: ± 1 standard deviation)"
    )


def draw_dimensions(result: dict[str, Any], names: tuple[str, ...] = TRIO) -> Figure:
    config, rows = result["config"], result["rows"]
    title = f"Batch size {config['batch_size']}, {_sizes(config)}"
    figure, (left, right) = panels(2, title)
    steps = zip(reversed(STEPS), ramp(len(STEPS)), strict=True)
    of_steps = {name: (colour, "-") for name, colour in steps}
    styles = [
        of_steps[name] if names != TRIO and name in of_steps else looks([SHORT[name]])[0]
        for name in names
    ]
    labels = {
        name: SHORT.get(name, "") if names == TRIO or name not in of_steps
        else f"iternorm, T = {name[-1]}"
        for name in names
    }  # fmt: skip
    for ax, quantity, text in (
        (left, "condition_number", "condition number of the output"),
        (right, "snd", "SND"),
    ):
        shown = {labels[name]: curve(rows, name, quantity, "dimension") for name in names}
        plots.sweep(shown, xlabel="dimension", ylabel=text, styles=styles, ax=ax)
    return figure


def draw_steps(result: dict[str, Any]) -> Figure:
    return draw_dimensions(result, ("batchnorm", "dbn", *STEPS))


def draw_batches(result: dict[str, Any]) -> Figure:
    config = result["config"]
    figure, (left, right) = panels(2, _sizes(config))
    for ax, key, along, text in (
        (left, "by_batch_size", "batch_size", f"batch size, at dimension {config['dimension']}"),
        (right, "by_dimension", "dimension", f"dimension, at batch size {config['batch_size']}"),
    ):
        names = ("batchnorm", ITERNORM)
        shown = {SHORT[name]: curve(result[key], name, "snd", along) for name in names}
        plots.sweep(shown, xlabel=text, ylabel="SND", ax=ax)
    return figure


def draw_cloud(result: dict[str, Any]) -> Figure:
    config = result["config"]
    population = disturbance._gaussian(config["population"], 2, config["seed"])
    title = f"A point x of the plane in {config['num_batches']} batches, normalized by BatchNorm"
    figure, axes = panels(len(result["rows"]), title, height=3.9)
    for ax, row in zip(axes, result["rows"], strict=True):
        plots.cloud(population, result["point"], torch.tensor(row["outputs"]), ax=ax)
        ax.set_title(f"batch size {row['batch_size']}: SND {row['snd']:.2f}")
    return figure
