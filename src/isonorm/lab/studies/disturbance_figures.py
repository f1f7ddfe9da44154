"""Figures of the disturbance studies, drawn from their records."""

from __future__ import annotations

from typing import Any

import torch
from matplotlib.figure import Figure

from isonorm.analysis import plots
from isonorm.analysis.plots.style import looks, ramp

from . import disturbance
from .disturbance import ITERNORM, STEPS, TRIO, curve
from .panels import panels

SHORT = {"batchnorm": "batchnorm", "dbn": "dbn", ITERNORM: "iternorm"}


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
    of_steps = {name: (color, "-") for name, color in steps}
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
    population = disturbance.gaussian(config["population"], 2, config["seed"])
    title = f"A point x of the plane in {config['num_batches']} batches, normalized by BatchNorm"
    figure, axes = panels(len(result["rows"]), title, height=3.9)
    for ax, row in zip(axes, result["rows"], strict=True):
        plots.cloud(population, result["point"], torch.tensor(row["outputs"]), ax=ax)
        ax.set_title(f"batch size {row['batch_size']}: SND {row['snd']:.2f}")
    return figure


def draw_direct(result: dict[str, Any]) -> Figure:
    config, rows = result["config"], result["rows"]
    title = f"BatchNorm, N(0, I) in {config['dimension']} dimensions (band: ± 1 standard error)"
    figure, (ax,) = panels(1, title)
    sizes = [row["batch_size"] for row in rows]
    shown = {
        "analysis.snd": (sizes, [r["snd"] for r in rows], [r["error"] for r in rows]),
        "formula": (
            sizes, [r["direct"] for r in rows], [r["direct_error"] for r in rows],
        ),
    }  # fmt: skip
    plots.sweep(shown, xlabel="batch size", ylabel="SND", ax=ax)
    return figure
