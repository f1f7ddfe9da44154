"""The disturbance of single samples by BatchNorm: where one lies in many batches (IterNorm Figure
2), and the estimate of many beside the formula.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Any

import numpy
import torch
from torch import Tensor

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
    """BatchNorm's SND on samples of N(0, I), by ``analysis.snd`` and from its formula, with numpy's
    draws; both without the factor √((s − 1)/s).

    Both draw batches without repetition from the same samples. Fresh ones would answer another
    question: endless data disturbs more, by √((M − 2)/(M − B)), 0.2 % at B = 256.
    """
    rows, draws = [], torch.Generator().manual_seed(seed)
    own_draws = numpy.random.default_rng(seed)
    x = gaussian(population, dimension, seed)
    for batch_size in batch_sizes:
        found = snd_with_error(NORMS["batchnorm"](dimension), x, batch_size=batch_size,
                               num_samples=num_samples, num_batches=num_batches,
                               generator=draws)  # fmt: skip
        values = [
            _direct(x, sample, batch_size, direct_batches, own_draws)
            for sample in own_draws.choice(population, num_samples, replace=False)
        ]
        rows.append({
            "batch_size": batch_size,
            "snd": found.mean / _small_by(num_batches),
            "error": found.error / _small_by(num_batches),
            "direct": fmean(values) / _small_by(direct_batches),
            "direct_error": stdev(values) / num_samples**0.5 / _small_by(direct_batches),
        })  # fmt: skip
    config = {"dimension": dimension, "population": population, "num_samples": num_samples,
              "num_batches": num_batches, "direct_batches": direct_batches,
              "seed": seed}  # fmt: skip
    return {"config": config, "rows": rows}


def _direct(
    x: Tensor, sample: int, batch_size: int, num_batches: int, draws: numpy.random.Generator
) -> float:
    """Δ̂(x) of one sample, Eq. 10 with BatchNorm written out."""
    others = numpy.stack([
        draws.choice(len(x) - 1, batch_size - 1, replace=False, shuffle=False)
        for _ in range(num_batches)
    ])  # fmt: skip
    others += others >= sample
    own = x[sample].expand(num_batches, 1, -1)
    batch = torch.cat([own, x[torch.from_numpy(others)]], dim=1)
    y = (x[sample] - batch.mean(1)) / (batch.var(1, unbiased=False) + 1e-5).sqrt()
    return (y - y.mean(0)).norm(dim=1).mean().item()


def _small_by(num_batches: int) -> float:
    return ((num_batches - 1) / num_batches) ** 0.5


def claims_of_direct(result: dict[str, Any]) -> list[Claim]:
    return [
        Claim(
            f"batch size {row['batch_size']}: the two agree within two standard errors of their "
            "difference",
            abs(row["snd"] - row["direct"])
            < 2 * (row["error"] ** 2 + row["direct_error"] ** 2) ** 0.5,
        )
        for row in result["rows"]
    ]
