"""Equilibrium Normalization: what stride and padding do to the balance, and what a step costs.

    python -m benchmarks.equinorm balance    Section 5.2; records/equinorm-balance.json
    python -m benchmarks.equinorm cost       beside BatchNorm; records/equinorm-cost-cpu.json

``balance`` convolves with the positive and the negative weights apart: their mean contributions to
an output element, which are +1 and −1 under the paper's assumptions. ``cost`` checks output and
gradients against the paper's equations in float64 first; ``--device cuda`` measures on a GPU.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from .cpu import positive
from .equinorm_balance import SIZES, balance
from .equinorm_cost import SHAPES, cost
from .report import origin, write


def shape(text: str) -> tuple[int, int]:
    """
    >>> shape("64x56")
    (64, 56)
    """
    channels, _, size = text.partition("x")
    return positive(channels), positive(size)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.equinorm",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parts = parser.add_subparsers(dest="part", required=True)
    first = parts.add_parser("balance")
    first.add_argument("--sizes", nargs="+", type=positive, default=SIZES)
    first.add_argument("--single-pass", action="store_true", help="the paper's approximation")
    first.set_defaults(measure=balance, out=Path("records/equinorm-balance.json"))
    second = parts.add_parser("cost")
    second.add_argument("--shapes", nargs="+", type=shape, default=SHAPES, metavar="CxSIZE")
    second.add_argument("--batch", type=positive, help="images (default: 16, on a GPU 256)")
    second.add_argument("--rounds", type=positive, default=31)
    second.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    second.set_defaults(measure=cost, out=None)
    for each in (first, second):
        each.add_argument("--threads", type=positive, help="torch's threads (default: its choice)")
        each.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    if options.part == "cost" and options.batch is None:
        options.batch = 256 if options.device == "cuda" else 16
    if options.out is None:
        options.out = Path(f"records/equinorm-cost-{options.device}.json")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    options = parse(arguments)
    if options.threads:
        torch.set_num_threads(options.threads)
    content = origin("benchmarks.equinorm", arguments)
    write(content | options.measure(options), options.out)
    print(f"record: {options.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
