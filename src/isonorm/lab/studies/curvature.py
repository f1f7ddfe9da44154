"""The Hessian's spectrum in training mode, found by products and by forming the matrix."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from isonorm.analysis import hessian_spectrum, plots
from isonorm.analysis.curvature import Density

from ..data import digits
from ..models import MLP
from ..train import seeded
from .panels import panels
from .study import Claim

NORMS = ("plain", "batchnorm", "dbn", "iternorm")


def dense_hessian(model: nn.Module, x: Tensor, labels: Tensor) -> Tensor:
    """∂²L/∂θ² in training mode, row by row."""
    parameters = list(model.parameters())
    loss = cross_entropy(model(x), labels)
    gradients = torch.autograd.grad(loss, parameters, create_graph=True)
    entries = torch.cat([g.flatten() for g in gradients])
    rows = [
        torch.cat([g.flatten() for g in torch.autograd.grad(e, parameters, retain_graph=True)])
        for e in entries
    ]
    return torch.stack(rows)


def run(
    norms: Sequence[str] = NORMS,
    *,
    hidden: Sequence[int] = (16, 16),
    images: int = 256,
    samples: int = 200,
    runs: int = 5,
    steps: int = 80,
    seed: int = 0,
) -> dict[str, Any]:
    data = digits()
    x, labels = data.train_images[:images].double(), data.train_labels[:images]
    rows = []
    for norm in norms:
        model = seeded(seed, lambda norm=norm: MLP(64, 10, hidden=hidden, norm=norm)).double()
        found = hessian_spectrum(model, [(x, labels)], samples=samples, runs=runs, steps=steps)
        values = torch.linalg.eigvalsh(dense_hessian(model, x, labels))
        rows.append({
            "norm": norm,
            "parameters": found.size,
            "largest": found.extremes.largest.item(),
            "smallest": found.extremes.smallest.item(),
            "converged": found.extremes.converged,
            "trace": found.trace._asdict(),
            "dense": {
                "largest": values[-1].item(),
                "smallest": values[0].item(),
                "trace": values.sum().item(),
            },
            "density": {
                "grid": found.density.grid[::5].tolist(),
                "density": found.density.density[::5].tolist(),
                "sigma": found.density.sigma,
            },
        })  # fmt: skip
    config = {"data": "digits", "images": images, "hidden": list(hidden), "dtype": "float64",
              "samples": samples, "runs": runs, "steps": steps, "seed": seed}  # fmt: skip
    return {"config": config, "rows": rows}


def claims(result: dict[str, Any]) -> list[Claim]:
    found = []
    for row in result["rows"]:
        dense, trace = row["dense"], row["trace"]
        close = all(
            abs(row[end] - dense[end]) <= 1e-3 * abs(dense[end]) for end in ("largest", "smallest")
        )
        norm = row["norm"]
        found += [
            Claim(f"{norm}: extreme eigenvalues agree with the dense Hessian's to 1e-3", close),
            Claim(
                f"{norm}: the trace is the dense Hessian's within two standard errors",
                abs(trace["estimate"] - dense["trace"]) <= 2 * trace["error"],
            ),
        ]
    return found


def draw(result: dict[str, Any]) -> Figure:
    config = result["config"]
    title = (
        f"Hessian at initialization, in training mode; "
        f"{config['images']} digits, MLP {config['hidden']}"
    )
    figure, (ax,) = panels(1, title, width=5.2)
    densities = {
        row["norm"]: Density(
            torch.tensor(row["density"]["grid"]), torch.tensor(row["density"]["density"]),
            row["density"]["sigma"],
        )
        for row in result["rows"]
    }  # fmt: skip
    plots.density(densities, floor=1e-5, ax=ax)
    return figure
