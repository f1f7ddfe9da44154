"""The papers' illustrations in the plane, with what they illustrate as claims: IterNorm Figure 1
and Section 3.1, DBN Figure 1, EquiNorm Figure 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

import isonorm
from isonorm.analysis import axis_swaps, condition_number, newton_convergence, plots
from isonorm.analysis.plots.pictures import contributions, equilibrated

from .panels import panels
from .study import Claim


def tilted(samples: int, seed: int) -> Tensor:
    """Points of the plane, correlated and of unequal spread, about zero."""
    draws = torch.randn(samples, 2, generator=torch.Generator().manual_seed(seed))
    x = draws @ torch.tensor([[2.0, 0.9], [0.0, 0.6]])
    return x - x.mean(0)


# --- IterNorm Figure 1 and Section 3.1 ------------------------------------------------------------

MAPS = {
    "data": None,
    "batchnorm": lambda: isonorm.BatchNorm(2, affine=False),
    "dbn": lambda: isonorm.DBN(2, affine=False),
    "iternorm, T = 2": lambda: isonorm.IterNorm(2, num_iters=2, affine=False),
    "iternorm, T = 5": lambda: isonorm.IterNorm(2, num_iters=5, affine=False),
}


def run_plane(*, samples: int = 1000, seed: int = 0) -> dict[str, Any]:
    x = tilted(samples, seed)
    found = {name: condition_number(make()(x) if make else x) for name, make in MAPS.items()}
    return {"config": {"samples": samples, "seed": seed}, "condition_numbers": found}


def claims_of_plane(result: dict[str, Any]) -> list[Claim]:
    order = ("data", "batchnorm", "iternorm, T = 2", "iternorm, T = 5", "dbn")
    values = [result["condition_numbers"][name] for name in order]
    return [
        Claim(f"conditioning improves in the order {', '.join(order)}",
              all(a >= b * (1 - 1e-4) for a, b in pairwise(values))),
        Claim("DBN's condition number is 1", values[-1] < 1.01),
    ]  # fmt: skip


def draw_plane(result: dict[str, Any]) -> Figure:
    x = tilted(result["config"]["samples"], result["config"]["seed"])
    figure, axes = panels(
        len(MAPS), "Two correlated dimensions (arrows: eigenvectors, 2σ)", 2.6, 2.2
    )
    for ax, (name, make) in zip(axes, MAPS.items(), strict=True):
        plots.whitening(make() if make else None, x, ax=ax)
        ax.set_title(f"{name}\nκ = {result['condition_numbers'][name]:.3g}")
        ax.set_xlim(-5, 5)
        ax.set_ylim(-5, 5)
    return figure


def run_convergence(
    *, eigenvalues: Sequence[float] = (8, 4, 2, 1, 0.5, 0.25, 0.1), num_iters: int = 12
) -> dict[str, Any]:
    values = torch.tensor(eigenvalues, dtype=torch.float64)
    steps = newton_convergence(values, num_iters)
    return {
        "config": {"eigenvalues": list(eigenvalues), "num_iters": num_iters},
        "steps": steps.tolist(),
    }


def claims_of_convergence(result: dict[str, Any]) -> list[Claim]:
    steps = torch.tensor(result["steps"], dtype=torch.float64)
    reached = [int((column > 0.9).nonzero()[0]) for column in steps.T]
    return [
        Claim("larger eigenvalues reach 0.9 in fewer steps, or as few", reached == sorted(reached)),
        Claim("no eigenvalue passes 1", bool((steps <= 1 + 1e-12).all())),
    ]


def draw_convergence(result: dict[str, Any]) -> Figure:
    config = result["config"]
    figure, (ax,) = panels(1, "Variance along each eigenvector after T Newton steps", 3.3)
    plots.convergence(torch.tensor(config["eigenvalues"]), config["num_iters"], ax=ax)
    return figure


# --- DBN Figure 1 ---------------------------------------------------------------------------------


def run_swaps(
    *,
    dimensions: Sequence[int] = (2, 8, 16, 32),
    batch_size: int = 256,
    num_batches: int = 10,
    population: int = 10_000,
    seed: int = 0,
) -> dict[str, Any]:
    """The share of axes that change places between batches of N(0, I)."""
    rows = []
    for d in dimensions:
        x = torch.randn(population, d, generator=torch.Generator().manual_seed(seed))
        for method in ("pca", "zca", "cholesky"):
            norm = isonorm.DBN(d, group_size=None, method=method, affine=False)
            found = axis_swaps(norm, x, batch_size=batch_size, num_batches=num_batches,
                               generator=torch.Generator().manual_seed(seed))  # fmt: skip
            rows.append({"dimension": d, "method": method,
                         "swapped": found.swapped.mean().item(),
                         "similarity": found.similarity.mean().item()})  # fmt: skip
    config = {"batch_size": batch_size, "num_shared": batch_size // 2, "num_batches": num_batches,
              "population": population, "seed": seed}  # fmt: skip
    return {"config": config, "rows": rows}


def claims_of_swaps(result: dict[str, Any]) -> list[Claim]:
    of = {(row["dimension"], row["method"]): row for row in result["rows"]}
    dimensions = sorted({d for d, _ in of})
    return [
        Claim("ZCA swaps no axis", all(of[d, "zca"]["swapped"] == 0 for d in dimensions)),
        Claim(
            "PCA swaps axes in every dimension, and more than half of them in 8 and more",
            all(of[d, "pca"]["swapped"] > (0.5 if d >= 8 else 0) for d in dimensions),
        ),
    ]


def draw_swaps(result: dict[str, Any]) -> Figure:
    """The plane: the same points in two batches whose other points lie along different axes."""
    draws = torch.Generator().manual_seed(result["config"]["seed"])
    shared = torch.randn(40, 2, generator=draws) * torch.tensor([1.0, 0.9])
    shared = shared[shared[:, 0].argsort()]
    figure, axes = panels(4, "The same points (blue) in two batches, whitened", 2.8, 2.5)
    for i, method in enumerate(("pca", "zca")):
        for j, stretch in enumerate(((1.6, 0.5), (0.5, 1.6))):
            others = torch.randn(60, 2, generator=draws) * torch.tensor(stretch)
            norm = isonorm.DBN(2, method=method, affine=False)
            ax = plots.axis_swap(norm, shared, others, ax=axes[2 * i + j])
            ax.set_title(f"{method.upper()}, batch {j + 1}")
            ax.set_xlim(-4, 4)
            ax.set_ylim(-4, 4)
    return figure


# --- EquiNorm Figure 1 ----------------------------------------------------------------------------


def run_balance(*, kernels: int = 6, seed: int = 0) -> dict[str, Any]:
    draws = torch.Generator().manual_seed(seed)
    image = torch.rand(3, 3, generator=draws)
    weights = torch.randn(kernels, 3, 3, generator=draws) + 0.2
    return {
        "config": {"kernels": kernels, "seed": seed},
        "image": image.tolist(),
        "weights": weights.tolist(),
        "raw": [contributions(image, w) for w in weights],
        "equilibrated": [contributions(image, equilibrated(image, w)) for w in weights],
    }


def claims_of_balance(result: dict[str, Any]) -> list[Claim]:
    nine = all(
        abs(plus - 9) < 1e-4 and abs(minus + 9) < 1e-4 for plus, minus in result["equilibrated"]
    )
    return [Claim("positive and negative weights contribute 9 and −9 with every kernel", nine)]


def draw_balance(result: dict[str, Any]) -> Figure:
    figure, (ax,) = panels(1, "3 × 3 kernels on a 3 × 3 image, cyclic convolution", 3.3)
    plots.kernel_balance(torch.tensor(result["image"]), torch.tensor(result["weights"]), ax=ax)
    return figure
