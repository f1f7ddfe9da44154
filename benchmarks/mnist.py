"""A small convolutional network on MNIST: EquiConv beside BatchNorm, and EquiConv in large batches.

    python -m benchmarks.mnist normalizations --data DIR    records/mnist-normalizations.json
    python -m benchmarks.mnist large-batch --data DIR       records/mnist-large-batch.json

``normalizations`` has the settings of EquiNorm's Section 6.1, at batch 128: epochs and steps to a
training loss of 0.05, and the test error, over seeds. ``large-batch`` trains EquiConv at batch 4096
with LARS, LAMB and LANS and the schedules of their papers. DIR holds MNIST's official files.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from isonorm.lab.data import load

from .cpu import positive
from .measure import spread
from .mnist_training import BLOCKS, LARGE_BATCH, SECTION_6_1, Curve, equiconv, train
from .report import origin, write

TARGET_LOSS = 0.05
WINDOW = 100  # steps over which the loss of ``steps_to_target`` is averaged
EPOCHS = {"normalizations": 3, "large-batch": 6}


def summary(curves: Sequence[Curve]) -> dict:
    """Each seed's figures, with their median and quartiles where every seed has one."""
    figures: dict[str, list] = {
        "epochs_to_target": [curve.epochs_to(TARGET_LOSS) for curve in curves],
        "steps_to_target": [curve.steps_to(TARGET_LOSS, WINDOW) for curve in curves],
        "final_train_loss": [curve.epoch_losses[-1] for curve in curves],
        "final_test_error": [curve.errors[-1] for curve in curves],
    }
    return {
        name: {"seeds": values, "spread": None if None in values else spread(values)._asdict()}
        for name, values in figures.items()
    } | {
        "train_loss": [curve.epoch_losses for curve in curves],
        "test_error": [curve.errors for curve in curves],
    }


def line(name: str, results: dict) -> str:
    """Median and range of each figure over the seeds."""
    cells = []
    for key, unit, scale in (
        ("epochs_to_target", "epochs", 1),
        ("steps_to_target", "steps", 1),
        ("final_train_loss", "loss", 1),
        ("final_test_error", "% test error", 100),
    ):
        found = results[key]["spread"]
        if found is None:
            cells.append(f"loss {TARGET_LOSS} not always reached, in {unit}")
            continue
        least, most = min(results[key]["seeds"]), max(results[key]["seeds"])
        middle, least, most = (scale * value for value in (found["median"], least, most))
        cells.append(f"{middle:.3g} ({least:.3g}–{most:.3g}) {unit}")
    return f"{name:17}  " + ", ".join(cells)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.mnist",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("part", choices=tuple(EPOCHS))
    parser.add_argument("--data", type=Path, required=True, help="folder of MNIST's files")
    parser.add_argument("--seeds", type=positive, default=5, help="how many (default: 5)")
    parser.add_argument("--epochs", type=positive, help=f"default: {EPOCHS}")
    parser.add_argument("--threads", type=positive, help="torch's threads (default: its choice)")
    parser.add_argument("--out", type=Path, help="default: records/mnist-PART.json")
    options = parser.parse_args(arguments)
    options.epochs = options.epochs or EPOCHS[options.part]
    options.out = options.out or Path(f"records/mnist-{options.part}.json")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(sys.argv[1:] if arguments is None else arguments)
    if options.threads:
        torch.set_num_threads(options.threads)
    try:
        data = load("mnist", options.data).scaled()
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if options.part == "normalizations":
        runs = {name: (block, SECTION_6_1) for name, block in BLOCKS.items()}
    else:
        runs = {name: (equiconv, training) for name, training in LARGE_BATCH.items()}
    results = {}
    for name, (block, training) in runs.items():
        curves = [
            train(block, training, data, options.epochs, seed) for seed in range(options.seeds)
        ]
        results[name] = summary(curves) | {"training": training.describe(options.epochs)}
        print(line(name, results[name]), flush=True)
    write(record(results, options), options.out)
    print(f"record: {options.out}")
    return 0


def record(results: dict, options: argparse.Namespace) -> dict:
    given = f"{options.part} --data DIR --seeds {options.seeds} --epochs {options.epochs}"
    return origin("benchmarks.mnist", given.split()) | {
        "seeds": options.seeds,
        "epochs": options.epochs,
        "target_loss": TARGET_LOSS,
        "how": {
            "epochs_to_target": "first epoch whose mean training loss is at most the target",
            "steps_to_target": f"first step where the mean of the last {WINDOW} losses is",
            "train_loss": "of each epoch, the mean over its batches as the optimizer met them",
            "test_error": "after each epoch: fraction of the 10000 test images, in eval mode",
            "spread": "median, quartiles and least over seeds",
        },
        "results": results,
    }


if __name__ == "__main__":
    sys.exit(main())
