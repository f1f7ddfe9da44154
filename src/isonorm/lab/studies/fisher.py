"""Fisher information of the last layer while an MLP learns (DBN Figure 3a, on digits)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf, isfinite
from statistics import median
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from isonorm.analysis import fisher_spectrum
from isonorm.analysis.conditioning import condition_of
from isonorm.analysis.plots.style import looks

from ..data import digits
from ..models import MLP
from ..train import seeded
from .panels import panels
from .study import Claim

#: DBN Section 4.1: all dimensions of a layer whitened together, on the whole training set.
NORMS = {"plain": "plain", "batchnorm": "batchnorm", "layernorm": "layernorm",
         "dbn": "dbn:group_size=None"}  # fmt: skip
PART = 0.8  # of the eigenvalues: what is left of a network with dead features


def centered_digits() -> tuple[Tensor, Tensor]:
    data = digits()
    images = data.train_images.flatten(1)
    return images - images.mean(0), data.train_labels


def train(
    model: nn.Module, x: Tensor, labels: Tensor, lr: float, steps: int,
    look: Callable[[int], None] = lambda step: None,
) -> float:  # fmt: skip
    """Full-batch gradient descent; the final loss, infinite where it diverges."""
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for step in range(steps):
        look(step)
        loss = cross_entropy(model(x), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    look(steps)
    with torch.no_grad():
        loss = cross_entropy(model(x), labels).item()
    return loss if isfinite(loss) else inf


def run_last_layer(
    *,
    hidden: Sequence[int] = (128, 64, 48, 48),
    lrs: Sequence[float] = (0.1, 0.2, 0.5, 1, 2),
    steps: int = 100,
    every: int = 10,
    seeds: int = 5,
) -> dict[str, Any]:
    """The paper's network and grid of learning rates, each norm at the one of least training
    loss (with seed 0).
    """
    x, labels = centered_digits()
    rows = []
    for name, spec in NORMS.items():

        def build(seed: int, spec: str = spec) -> nn.Module:
            return seeded(seed, lambda: MLP(64, 10, hidden=hidden, norm=spec))

        losses = {lr: train(build(0), x, labels, lr, steps) for lr in lrs}
        best = min(losses, key=losses.__getitem__)
        for seed in range(seeds):
            model = build(seed)
            curve: list[dict[str, Any]] = []

            def look(step: int, model: nn.Module = model, curve: list = curve) -> None:
                if step % every == 0:
                    values = fisher_spectrum(model, x)
                    curve.append({
                        "step": step,
                        "condition_number": condition_of(values),
                        "condition_number_of_80_percent": condition_of(values, PART),
                    })  # fmt: skip

            loss = train(model, x, labels, best, steps, look)
            rows.append({"norm": name, "seed": seed, "lr": best, "loss": loss, "curve": curve})
    config = {
        "data": "digits, mean subtracted, full batch", "hidden": list(hidden), "lrs": list(lrs),
        "steps": steps, "every": every, "seeds": seeds, "norms": NORMS,
    }  # fmt: skip
    return {"config": config, "rows": rows}


def medians(result: dict[str, Any], norm: str, key: str) -> list[float]:
    """Over seeds, at each look; infinite where half of the seeds are."""
    curves = [row["curve"] for row in result["rows"] if row["norm"] == norm]
    return [median(_number(look[key]) for look in looked) for looked in zip(*curves, strict=True)]


def _number(value: float | None) -> float:
    return inf if value is None else value  # a record holds no infinities


def claims_of_last_layer(result: dict[str, Any]) -> list[Claim]:
    whole = {norm: medians(result, norm, "condition_number") for norm in NORMS}
    part = {norm: medians(result, norm, "condition_number_of_80_percent") for norm in NORMS}
    others = [norm for norm in NORMS if norm != "dbn"]
    return [
        Claim(
            "DBN's condition number (median of seeds) is the least at every look",
            all(d < min(o) for d, *o in zip(whole["dbn"], *(whole[n] for n in others),
                                            strict=True)),
        ),
        Claim(
            "BatchNorm's is below the plain network's at every look",
            all(b < p for b, p in zip(whole["batchnorm"], whole["plain"], strict=True)),
        ),
        Claim(
            "over 80 % of the directions DBN's is the least, and the plain network's the largest, "
            "at the end",
            part["dbn"][-1] == min(values[-1] for values in part.values())
            and part["plain"][-1] == max(values[-1] for values in part.values()),
        ),
    ]  # fmt: skip


def draw_last_layer(result: dict[str, Any]) -> Figure:
    config = result["config"]
    title = (
        f"Last layer's Fisher information, digits, MLP {config['hidden']}, median of "
        f"{config['seeds']} seeds; a line that is missing is infinite (dead features)"
    )
    figure, axes = panels(2, title)
    steps = [look["step"] for look in result["rows"][0]["curve"]]
    for ax, key, text in (
        (axes[0], "condition_number", "condition number"),
        (axes[1], "condition_number_of_80_percent", "of the largest 80 % of eigenvalues"),
    ):
        for norm, (color, dashes) in zip(NORMS, looks(list(NORMS)), strict=True):
            values = [v if isfinite(v) else float("nan") for v in medians(result, norm, key)]
            ax.plot(steps, values, label=norm, color=color, linestyle=dashes)
        ax.set_yscale("log")
        ax.set_xlabel("updates")
        ax.set_ylabel(text)
    axes[1].legend(handlelength=3, fontsize=8)
    return figure
