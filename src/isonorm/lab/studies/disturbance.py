"""Disturbance and conditioning of normalized Gaussian data (IterNorm Figures 4 and 5, and Figure 2
of its supplement).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from statistics import fmean, stdev
from typing import Any

import torch
from torch import Tensor, nn

import isonorm
from isonorm.analysis import condition_number, snd

from .study import Claim

#: As the papers compare them: all dimensions whitened together, without affine parameters.
NORMS: dict[str, Callable[[int], nn.Module]] = {
    "batchnorm": lambda d: isonorm.BatchNorm(d, affine=False),
    "dbn": lambda d: isonorm.DBN(d, group_size=None, affine=False),
    **{
        f"iternorm:num_iters={t}": lambda d, t=t: isonorm.IterNorm(
            d, group_size=None, num_iters=t, affine=False
        )
        for t in (1, 3, 5, 7, 9)
    },
}
ITERNORM = "iternorm:num_iters=5"
TRIO = ("batchnorm", "dbn", ITERNORM)
STEPS = tuple(name for name in NORMS if name.startswith("iternorm"))
POWERS = tuple(2**k for k in range(1, 10))  # the figures' dimensions
BATCHES = tuple(2**k for k in range(1, 11))


def measure(
    names: Iterable[str],
    points: Iterable[tuple[int, int]],
    *,
    population: int,
    repeats: int,
    num_samples: int,
    num_batches: int,
    conditions: bool,
    seed: int,
) -> list[dict[str, Any]]:
    """SND, and the condition number of a normalized batch, of each norm at each (dimension, batch
    size); in every repeat all norms meet the same data and the same draws.
    """
    rows = []
    for d, batch_size in points:
        found: dict[str, dict[str, list[float]]] = {
            name: {"snd": [], "condition_number": []} for name in names
        }
        for repeat in range(repeats):
            x = gaussian(population, d, seed + repeat)
            for name, numbers in found.items():
                norm = NORMS[name](d)
                draws = torch.Generator().manual_seed(seed + repeat)
                values = snd(norm, x, batch_size=batch_size, num_samples=num_samples,
                             num_batches=num_batches, generator=draws)  # fmt: skip
                numbers["snd"].append(values.mean().item())
                if conditions:
                    numbers["condition_number"].append(condition_number(norm(x[:batch_size])))
        for name, numbers in found.items():
            row: dict[str, Any] = {"norm": name, "dimension": d, "batch_size": batch_size}
            for quantity, values in numbers.items():
                if values:
                    row[quantity] = {"mean": fmean(values), "spread": stdev(values)}
            rows.append(row)
    return rows


def gaussian(population: int, d: int, seed: int) -> Tensor:
    return torch.randn(population, d, generator=torch.Generator().manual_seed(seed))


def curve(
    rows: Sequence[dict[str, Any]], name: str, quantity: str, along: str
) -> tuple[list[int], list[float], list[float]]:
    """One norm's means and spreads along "dimension" or "batch_size"."""
    own = [row for row in rows if row["norm"] == name]
    return (
        [row[along] for row in own],
        [row[quantity]["mean"] for row in own],
        [row[quantity]["spread"] for row in own],
    )


def _falls(values: Sequence[float]) -> bool:
    return all(a > b for a, b in pairwise(values))


# --- Figure 4 and the supplement's Figure 2 -------------------------------------------------------


def run_dimensions(
    names: Sequence[str] = TRIO,
    *,
    dimensions: Sequence[int] = POWERS,
    batch_size: int = 1024,
    population: int = 60_000,
    repeats: int = 10,
    num_samples: int = 2,
    num_batches: int = 16,
    seed: int = 0,
) -> dict[str, Any]:
    rows = measure(names, [(d, batch_size) for d in dimensions], population=population,
                   repeats=repeats, num_samples=num_samples, num_batches=num_batches,
                   conditions=True, seed=seed)  # fmt: skip
    return {
        "config": {
            "batch_size": batch_size, "population": population, "repeats": repeats,
            "num_samples": num_samples, "num_batches": num_batches, "seed": seed,
        },
        "rows": rows,
    }  # fmt: skip


def claims_of_dimensions(result: dict[str, Any]) -> list[Claim]:
    rows = result["rows"]
    dimensions, bn_condition, _ = curve(rows, "batchnorm", "condition_number", "dimension")
    _, dbn_condition, _ = curve(rows, "dbn", "condition_number", "dimension")
    _, iter_condition, _ = curve(rows, ITERNORM, "condition_number", "dimension")
    _, bn_snd, _ = curve(rows, "batchnorm", "snd", "dimension")
    _, dbn_snd, _ = curve(rows, "dbn", "snd", "dimension")
    _, iter_snd, _ = curve(rows, ITERNORM, "snd", "dimension")
    high = [i for i, d in enumerate(dimensions) if d >= 64]
    return [
        Claim("DBN's condition number is 1 in every dimension", max(dbn_condition) < 1.01),
        Claim(
            "IterNorm's condition number is between DBN's and BatchNorm's in every dimension",
            all(
                dbn <= it * (1 + 1e-4) and it <= bn
                for dbn, it, bn in zip(dbn_condition, iter_condition, bn_condition, strict=True)
            ),
        ),
        Claim(
            "DBN has the largest SND in 64 dimensions and more",
            all(dbn_snd[i] > max(bn_snd[i], iter_snd[i]) for i in high),
        ),
        Claim(
            "IterNorm's SND is below DBN's by more in higher dimensions",
            _falls([iter_snd[i] / dbn_snd[i] for i in high]),
        ),
    ]


def run_steps(**sizes: Any) -> dict[str, Any]:
    return run_dimensions(("batchnorm", "dbn", *STEPS), **sizes)


def claims_of_steps(result: dict[str, Any]) -> list[Claim]:
    rows = result["rows"]
    dimensions = curve(rows, "dbn", "snd", "dimension")[0]
    high = [i for i, d in enumerate(dimensions) if d >= 64]
    snds = [curve(rows, name, "snd", "dimension")[1] for name in STEPS]
    conditions = [curve(rows, name, "condition_number", "dimension")[1] for name in STEPS]
    return [
        *claims_of_dimensions(result),
        Claim(
            "IterNorm's SND grows with T in 64 dimensions and more",
            all(_falls([values[i] for values in reversed(snds)]) for i in high),
        ),
        Claim(
            "IterNorm's condition number falls with T in 64 dimensions and more",
            all(_falls([values[i] for values in conditions]) for i in high),
        ),
    ]


# --- Figure 5 -------------------------------------------------------------------------------------


def run_batches(
    *,
    batch_sizes: Sequence[int] = BATCHES,
    dimension: int = 128,
    dimensions: Sequence[int] = POWERS,
    batch_size: int = 2,
    population: int = 60_000,
    repeats: int = 10,
    num_samples: int = 4,
    num_batches: int = 16,
    seed: int = 0,
) -> dict[str, Any]:
    sizes: dict[str, Any] = dict(
        population=population, repeats=repeats, num_samples=num_samples,
        num_batches=num_batches, conditions=False, seed=seed,
    )  # fmt: skip
    names = ("batchnorm", ITERNORM)
    return {
        "config": {
            "population": population, "repeats": repeats, "num_samples": num_samples,
            "num_batches": num_batches, "seed": seed, "dimension": dimension,
            "batch_size": batch_size,
        },
        "by_batch_size": measure(names, [(dimension, b) for b in batch_sizes], **sizes),
        "by_dimension": measure(names, [(d, batch_size) for d in dimensions], **sizes),
    }  # fmt: skip


def claims_of_batches(result: dict[str, Any]) -> list[Claim]:
    sizes, bn, _ = curve(result["by_batch_size"], "batchnorm", "snd", "batch_size")
    _, it, _ = curve(result["by_batch_size"], ITERNORM, "snd", "batch_size")
    _, bn_by_d, _ = curve(result["by_dimension"], "batchnorm", "snd", "dimension")
    _, it_by_d, _ = curve(result["by_dimension"], ITERNORM, "snd", "dimension")
    d = result["config"]["dimension"]
    return [
        Claim("BatchNorm's SND falls with the batch size", _falls(bn)),
        Claim(
            f"at batch size 2 in {d} dimensions IterNorm's SND is below BatchNorm's",
            it[sizes.index(2)] < bn[sizes.index(2)],
        ),
        Claim("at batch size 2 BatchNorm's SND grows with the dimension", _falls(bn_by_d[::-1])),
        Claim(
            "at batch size 2 IterNorm's SND changes less with the dimension than BatchNorm's",
            max(it_by_d) / min(it_by_d) < max(bn_by_d) / min(bn_by_d),
        ),
    ]
