"""Fisher factors layer by layer, for three initializations (the survey's two criteria)."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, log10
from statistics import fmean
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from isonorm.analysis import fisher_factors
from isonorm.analysis.plots.style import looks

from ..models import MLP
from ..train import seeded
from .fisher import centered_digits, train
from .panels import panels
from .study import Claim

INITS: dict[str, Callable[[Tensor], Any]] = {
    "xavier": nn.init.xavier_normal_,
    "he": lambda w: nn.init.kaiming_normal_(w, nonlinearity="relu"),
    "orthogonal": lambda w: nn.init.orthogonal_(w, gain=2**0.5),
}
LAYERWISE = {"plain": "plain", "batchnorm": "batchnorm", "dbn": "dbn", "iternorm": "iternorm"}


def run_layers(
    *, depth: int = 12, width: int = 64, lr: float = 0.05, steps: int = 40, seed: int = 0
) -> dict[str, Any]:
    """Σ_x and Σ_∇h of every layer of a deep MLP, before training and after some of it."""
    x, labels = centered_digits()
    rows = []
    for init, fill in INITS.items():
        for norm, spec in LAYERWISE.items():

            def build(fill: Callable = fill, spec: str = spec) -> nn.Module:
                model = MLP(64, 10, hidden=(width,) * (depth - 1), norm=spec)
                for module in model.modules():
                    if isinstance(module, nn.Linear):
                        fill(module.weight)
                        nn.init.zeros_(module.bias)
                return model

            model = seeded(seed, build)
            for step in (0, steps):
                if step:
                    train(model, x, labels, lr, steps)
                draws = torch.Generator().manual_seed(seed)
                found = fisher_factors(model, x, generator=draws)
                rows.append({
                    "init": init, "norm": norm, "step": step,
                    "layers": [
                        {"layer": name, "input": factors.input._asdict(),
                         "gradient": factors.gradient._asdict()}
                        for name, factors in found.items()
                    ],
                })  # fmt: skip
    config = {"data": "digits, mean subtracted, full batch", "depth": depth, "width": width,
              "lr": lr, "steps": steps, "seed": seed}  # fmt: skip
    return {"config": config, "rows": rows}


def evenness(row: dict[str, Any], factor: str) -> float:
    """log₁₀ of the largest over the smallest λ₁ among hidden layers: criterion 1 is where it is 0.
    The first layer's input is the data, the last one's gradient the loss's: neither is a choice.
    """
    inner = row["layers"][1:-1]
    sizes = [layer[factor]["largest"] for layer in inner]
    return log10(max(sizes) / min(sizes)) if min(sizes) > 0 else inf


def mean_rank(row: dict[str, Any], factor: str) -> float:
    """Mean effective rank over hidden layers: criterion 2 is where it is large."""
    return fmean(layer[factor]["effective_rank"] for layer in row["layers"][1:-1])


def claims_of_layers(result: dict[str, Any]) -> list[Claim]:
    def row(init: str, norm: str, step: int) -> dict[str, Any]:
        return next(
            r for r in result["rows"] if (r["init"], r["norm"], r["step"]) == (init, norm, step)
        )

    before = {(i, n): row(i, n, 0) for i in INITS for n in LAYERWISE}
    return [
        Claim(
            "before training, every norm holds the size of layer inputs within a factor of 3 of "
            "each other, for each initialization",
            all(evenness(before[i, n], "input") < log10(3)
                for i in INITS for n in LAYERWISE if n != "plain"),
        ),
        Claim(
            "without normalization Xavier's initialization loses the inputs' size layer by layer, "
            "as it does not count ReLUs: by more than a factor of 30",
            evenness(before["xavier", "plain"], "input") > log10(30),
        ),
        Claim(
            "whitening, DBN's and IterNorm's, gives layer inputs a larger effective rank than "
            "BatchNorm, and BatchNorm than no norm, for each initialization",
            all(
                mean_rank(before[i, "plain"], "input")
                < mean_rank(before[i, "batchnorm"], "input")
                < min(mean_rank(before[i, n], "input") for n in ("dbn", "iternorm"))
                for i in INITS
            ),
        ),
    ]  # fmt: skip


def draw_layers(result: dict[str, Any]) -> Figure:
    config = result["config"]
    title = (
        f"Largest eigenvalues by layer before training; digits, {config['depth']}-layer MLP of "
        f"width {config['width']} (circles: Xavier, squares: He, triangles: orthogonal)"
    )
    figure, axes = panels(2, title)
    marks = dict(zip(INITS, "os^", strict=True))
    for ax, factor, text in ((axes[0], "input", "λ₁ of Σ_x"), (axes[1], "gradient", "λ₁ of Σ_∇h")):
        for norm, (color, dashes) in zip(LAYERWISE, looks(list(LAYERWISE)), strict=True):
            for row in result["rows"]:
                if row["norm"] == norm and row["step"] == 0:
                    sizes = [layer[factor]["largest"] for layer in row["layers"]]
                    label = norm if row["init"] == "xavier" else None
                    ax.plot(range(1, len(sizes) + 1), sizes, color=color, linestyle=dashes,
                            marker=marks[row["init"]], markersize=3, linewidth=1.1,
                            label=label)  # fmt: skip
        ax.set_yscale("log")
        ax.set_xlabel("layer")
        ax.set_ylabel(text)
    axes[1].legend(handlelength=3, fontsize=8)
    return figure
