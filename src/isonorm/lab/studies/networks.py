"""What normalization does to a network's signals: the survey's table of scales, and the singular
values of the input–output Jacobian (DBN Section 3.5).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor, nn

import isonorm
from isonorm.analysis import jacobian_singular_values, plots, scale_invariance
from isonorm.analysis.plots.style import looks

from ..train import seeded
from .panels import panels
from .study import Claim

NORMS: dict[str, Callable[[int], nn.Module]] = {
    "plain": lambda d: nn.Identity(),
    "batchnorm": lambda d: isonorm.BatchNorm(d, affine=False, eps=1e-12),
    "dbn": lambda d: isonorm.DBN(d, group_size=None, affine=False, eps=1e-12),
    "iternorm": lambda d: isonorm.IterNorm(d, affine=False, eps=1e-12),
}


def network(norm: str, depth: int, width: int, act: Callable[[], nn.Module]) -> nn.Sequential:
    """linear → norm → activation, ``depth`` times, without biases, in float64."""
    layers: list[nn.Module] = []
    for _ in range(depth):
        layers += [nn.Linear(width, width, bias=False), NORMS[norm](width), act()]
    return nn.Sequential(*layers).double()


def _inputs(examples: int, width: int, seed: int) -> Tensor:
    draws = torch.Generator().manual_seed(seed)
    return torch.randn(examples, width, generator=draws, dtype=torch.float64)


# --- the table ------------------------------------------------------------------------------------


def run_scales(
    *, depth: int = 4, width: int = 16, examples: int = 64, alpha: float = 2.0, seed: int = 0
) -> dict[str, Any]:
    x, rows = _inputs(examples, width, seed), []
    for norm in NORMS:
        model = seeded(seed, lambda norm=norm: network(norm, depth, width, nn.ReLU))
        for layer, factors in scale_invariance(model, x, alpha).items():
            rows.append({"norm": norm, "layer": layer, **factors._asdict()})
    config = {"depth": depth, "width": width, "examples": examples, "alpha": alpha, "seed": seed}
    return {"config": config, "rows": rows}


def claims_of_scales(result: dict[str, Any]) -> list[Claim]:
    alpha, depth = result["config"]["alpha"], result["config"]["depth"]
    found = []
    for norm in NORMS:
        own = [row for row in result["rows"] if row["norm"] == norm]
        agrees = True
        for k, row in enumerate(own):
            if norm == "plain":
                expected = (alpha**k, alpha ** (depth - 1 - k), alpha ** (depth - 1))
            else:
                expected = (1.0, 1 / alpha, 1 / alpha)
            given = (row["input"], row["output_gradient"], row["weight_gradient"])
            agrees &= all(abs(g / e - 1) < 1e-6 for g, e in zip(given, expected, strict=True))
            agrees &= row["residual"] < 1e-6
        found.append(Claim(f"{norm}: every factor is the survey's", agrees))
    return found


def draw_scales(result: dict[str, Any]) -> Figure:
    config = result["config"]
    title = f"All weights × {config['alpha']:g}: by what each layer's tensors are multiplied"
    figure, axes = panels(3, title)
    keys = {"input": "layer input", "output_gradient": "output gradient",
            "weight_gradient": "weight gradient"}  # fmt: skip
    for ax, (key, text) in zip(axes, keys.items(), strict=True):
        for norm, (color, dashes) in zip(NORMS, looks(list(NORMS)), strict=True):
            own = [row[key] for row in result["rows"] if row["norm"] == norm]
            ax.plot(range(1, len(own) + 1), own, label=norm, color=color, linestyle=dashes,
                    marker="o", markersize=3)  # fmt: skip
        ax.set_yscale("log", base=2)
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        ax.set_xlabel("layer")
        ax.set_title(text)
    axes[0].legend(handlelength=3, fontsize=8)
    return figure


# --- dynamical isometry ---------------------------------------------------------------------------


def run_isometry(
    *, depth: int = 10, width: int = 24, examples: int = 32, seeds: int = 3
) -> dict[str, Any]:
    """Jacobians at initialization, with tanh, torch's initialization of linear layers."""
    rows = []
    for norm in NORMS:
        values = []
        for seed in range(seeds):
            model = seeded(seed, lambda norm=norm: network(norm, depth, width, nn.Tanh))
            x = _inputs(examples, width, seed)
            values.append(jacobian_singular_values(model, x, per_example=False))
        joined = torch.cat(values)
        positive = joined[joined > 1e-9 * joined.max()]  # a norm projects some directions out
        spread = positive.log10().std().item()
        rows.append({
            "norm": norm, "log10_spread": spread, "log10_mean": positive.log10().mean().item(),
            "quantiles": torch.quantile(positive, torch.linspace(0, 1, 101).double()).tolist(),
        })  # fmt: skip
    config = {"depth": depth, "width": width, "examples": examples, "seeds": seeds,
              "activation": "tanh"}  # fmt: skip
    return {"config": config, "rows": rows}


def claims_of_isometry(result: dict[str, Any]) -> list[Claim]:
    of = {row["norm"]: row for row in result["rows"]}
    distance = {norm: abs(row["log10_mean"]) for norm, row in of.items()}
    return [
        Claim(
            "with every norm the singular values lie nearer to 1, in the mean of their logarithms, "
            "than without",
            all(distance[norm] < distance["plain"] for norm in NORMS if norm != "plain"),
        ),
        Claim(
            "DBN's singular values are spread less than BatchNorm's",
            of["dbn"]["log10_spread"] < of["batchnorm"]["log10_spread"],
        ),
    ]


def draw_isometry(result: dict[str, Any]) -> Figure:
    config = result["config"]
    title = f"Jacobians at initialization, {config['depth']} layers of {config['width']}, tanh"
    figure, (ax,) = panels(1, title, 3.3)
    plots.singular_values(
        {row["norm"]: torch.tensor(row["quantiles"]) for row in result["rows"]}, ax=ax
    )
    return figure
