"""What becomes of a trained BatchNorm network when its norms are converted.

    python -m benchmarks.warmstart                 # digits, 5 seeds; records/warmstart.json

For each seed a network is trained with BatchNorm on scikit-learn's digits, then converted to
IterNorm and DBN in groups of several sizes. Reported are its test accuracy right after conversion
(which changes nothing in eval), after recalibration (statistics of correlated channels, weights as
they were), and after one epoch of fine-tuning from the conversion and from the recalibration.
"""

from __future__ import annotations

import argparse
import copy
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import mean, stdev

import torch
from torch import nn

import isonorm
from isonorm.lab.data import DataSet, digits
from isonorm.lab.plan import Plan
from isonorm.lab.train import error_on_test_set, seeded, train

from .report import origin, write

BATCH = 64
TARGETS: dict[str, Callable[..., nn.Module]] = {"IterNorm": isonorm.IterNorm, "DBN": isonorm.DBN}
GROUP_SIZES = (1, 4, 16, 64)
STAGES = ("converted", "recalibrated", "fine-tuned", "recalibrated, fine-tuned")


def network() -> nn.Module:
    """Two convolutions and a hidden layer, 64 wide, so that every group size has full groups."""
    return nn.Sequential(
        nn.Conv2d(1, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(64, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.AvgPool2d(2),
        nn.Flatten(), nn.Linear(256, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip


def accuracy(model: nn.Module, data: DataSet) -> float:
    return 1 - error_on_test_set(model, data)


def after_conversion(
    trained: nn.Module, to: Callable[[int], nn.Module], data: DataSet, seed: int, lr: float
) -> dict[str, float]:
    """Accuracies of each stage, and how far eval outputs moved at conversion."""
    model = copy.deepcopy(trained).eval()
    with torch.no_grad():
        expected = model(data.test_images)
        report = isonorm.convert(model, to)
        error = (model(data.test_images) - expected).norm() / expected.norm()
    if not all(change.same for change in report.changed):
        sys.exit(f"a conversion changed the function; nothing is recorded.\n{report}")
    found = {"output_error": error.item(), "converted": accuracy(model, data)}
    tuned = copy.deepcopy(model)
    train(tuned, data, Plan(epochs=1, batch_size=BATCH, lr=lr), seed=seed)
    found["fine-tuned"] = accuracy(tuned, data)
    isonorm.recalibrate(model, data.train_images.split(BATCH), len(data.train_images) // BATCH)
    found["recalibrated"] = accuracy(model, data)
    train(model, data, Plan(epochs=1, batch_size=BATCH, lr=lr), seed=seed)
    found["recalibrated, fine-tuned"] = accuracy(model, data)
    return found


def summary(values: list[float]) -> dict[str, float]:
    return {"mean": mean(values), "std": stdev(values) if len(values) > 1 else 0.0}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=6, help="of training with BatchNorm")
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--out", type=Path, default=Path("records/warmstart.json"))
    args = parser.parse_args(arguments)

    data = digits()
    before: list[float] = []
    again: list[float] = []
    found: dict[str, list[dict[str, float]]] = {}
    for seed in range(args.seeds):
        model = seeded(seed, network)
        plan = Plan(epochs=args.epochs, batch_size=BATCH, lr=args.lr)
        train(model, data, plan, seed=seed)
        before.append(accuracy(model, data))
        for name, kind in TARGETS.items():
            for size in GROUP_SIZES:
                to = partial(kind, group_size=size)
                row = after_conversion(model, to, data, args.epochs + seed, args.lr)
                found.setdefault(f"{name}, groups of {size}", []).append(row)
        train(model, data, plan.shortened(1), seed=args.epochs + seed)
        again.append(accuracy(model, data))
        print(f"seed {seed}: BatchNorm {before[-1]:.2%}", flush=True)

    results = {
        name: {key: summary([row[key] for row in rows]) for key in rows[0]}
        for name, rows in found.items()
    }
    _show(results, before, again)
    content = origin("benchmarks.warmstart", arguments or sys.argv[1:]) | {
        "arguments": {name: value for name, value in vars(args).items() if name != "out"},
        "batch_size": BATCH,
        "n": args.seeds,
        "how": "test accuracy, mean and standard deviation over seeds; output_error relative, "
        "in the norm, right after conversion",
        "batchnorm": summary(before),
        "batchnorm, one more epoch": summary(again),
        "converted": results,
    }
    write(content, args.out)


def _show(results: dict, before: list[float], again: list[float]) -> None:
    print(f"BatchNorm {mean(before):.2%}, after one more epoch {mean(again):.2%}")
    print(f"{'':24}" + "".join(f"{stage:>26}" for stage in STAGES))
    for name, row in results.items():
        cells = (f"{row[stage]['mean']:.2%} ± {row[stage]['std']:.2%}" for stage in STAGES)
        print(f"{name:24}" + "".join(f"{cell:>26}" for cell in cells))


if __name__ == "__main__":
    main()
