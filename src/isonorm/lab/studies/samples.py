"""The disturbance of single samples by BatchNorm: where one lies in many batches (IterNorm Figure
2), and the estimate of many beside the formula.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Any

import torch

from isonorm.analysis import snd_with_error

from .disturbance import NORMS, gaussian
from .study import Claim


def run_cloud(
    *,
    batch_sizes: Sequence[int] = (16, 64),
    population: int = 3000,
    num_batches: int = 100,
    seed: int = 0,
) -> dict[str, Any]:
    """Where BatchNorm puts one point of the plane in many batches."""
    x = gaussian(population, 2, seed)
    own = int((x - torch.tensor([1.0, 1.0])).square().sum(1).argmin())  # an ordinary point
    rows = []
    for batch_size in batch_sizes:
        draws = torch.Generator().manual_seed(seed)
        outputs = []
        for _ in range(num_batches):
            others = torch.randperm(population, generator=draws)
            batch = torch.cat([x[own : own + 1], x[others[others != own][: batch_size - 1]]])
            outputs.append(NORMS["batchnorm"](2)(batch)[0])
        y = torch.stack(outputs)
        distances = (y - y.mean(0)).norm(dim=1)  # Eq. 10, written out
        rows.append(
            {
                "batch_size": batch_size,
                "outputs": y.tolist(),
                "snd": distances.mean().item(),
                "error": (distances.std() / num_batches**0.5).item(),
            }
        )
    config = {"population": population, "num_batches": num_batches, "seed": seed}
    return {"config": config, "point": x[own].tolist(), "rows": rows}


def claims_of_cloud(result: dict[str, Any]) -> list[Claim]:
    small, large = result["rows"][0], result["rows"][-1]
    sizes = f"{large['batch_size']} than at {small['batch_size']}"
    return [
        Claim(
            f"the point's SND is smaller at batch size {sizes}, by more than three standard errors",
            small["snd"] - large["snd"] > 3 * (small["error"] ** 2 + large["error"] ** 2) ** 0.5,
        )
    ]


def run_direct(
    *,
    batch_sizes: Sequence[int] = (4, 32, 256),
    dimension: int = 16,
    population: int = 60_000,
    num_samples: int = 800,
    num_batches: int = 64,
    direct_batches: int = 400,
    seed: int = 0,
) -> dict[str, Any]:
    """BatchNorm's SND on N(0, I) by ``analysis.snd`` and from its formula with fresh draws, both
    without the factor √((s − 1)/s).
    """
    rows, draws = [], torch.Generator().manual_seed(seed)
    x = gaussian(population, dimension, seed)
    for batch_size in batch_sizes:
        found = snd_with_error(NORMS["batchnorm"](dimension), x, batch_size=batch_size,
                               num_samples=num_samples, num_batches=num_batches,
                               generator=draws)  # fmt: skip
        values = []
        for point in torch.randn(num_samples, dimension, generator=draws):
            shape = (direct_batches, batch_size - 1, dimension)
            others = torch.randn(shape, generator=draws)
            batch = torch.cat([point.expand(direct_batches, 1, dimension), others], dim=1)
            y = (point - batch.mean(1)) / (batch.var(1, unbiased=False) + 1e-5).sqrt()
            values.append((y - y.mean(0)).norm(dim=1).mean().item())
        rows.append({
            "batch_size": batch_size,
            "snd": found.mean / _small_by(num_batches),
            "error": found.error,
            "direct": fmean(values) / _small_by(direct_batches),
            "direct_error": stdev(values) / num_samples**0.5,
        })  # fmt: skip
    config = {"dimension": dimension, "population": population, "num_samples": num_samples,
              "num_batches": num_batches, "direct_batches": direct_batches,
              "seed": seed}  # fmt: skip
    return {"config": config, "rows": rows}


def _small_by(num_batches: int) -> float:
    return ((num_batches - 1) / num_batches) ** 0.5


def claims_of_direct(result: dict[str, Any]) -> list[Claim]:
    return [
        Claim(
            f"batch size {row['batch_size']}: the two agree within three standard errors of their "
            "difference",
            abs(row["snd"] - row["direct"])
            < 3 * (row["error"] ** 2 + row["direct_error"] ** 2) ** 0.5,
        )
        for row in result["rows"]
    ]
