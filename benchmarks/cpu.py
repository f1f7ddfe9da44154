"""Time and memory of whitening's training step on a CPU, beside BatchNorm and the plain algorithm.

    python -m benchmarks.cpu                  every shape and group size; writes records/cpu.json
    python -m benchmarks.cpu --quick --shapes 256x512 --groups 16 full --out runs/cpu.json

Every layer's output and gradients are checked first, on the inputs it is then timed with; where one
is wrong, nothing is timed and the exit status says so. ``--check`` makes a missed target an error
as well.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from isonorm.lab.memory import peak_bytes

from . import report
from .cases import (
    GROUP_SIZES,
    SHAPES,
    Candidate,
    Case,
    all_cases,
    candidates,
    make_inputs,
    training_step,
)
from .check import Checker, Disagreement
from .measure import take_turns
from .report import Measurement
from .targets import judge

ROUNDS, QUICK_ROUNDS = 51, 5


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    name_of = lambda shape: "x".join(map(str, shape))  # noqa: E731
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cpu", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument(
        "--shapes", nargs="+", type=shape, default=SHAPES, metavar="NxCxHxW",
        help=f"input shapes (default: {' '.join(map(name_of, SHAPES))})",
    )  # fmt: skip
    parser.add_argument(
        "--groups", nargs="+", type=group_size, default=GROUP_SIZES, metavar="G",
        help="group sizes, 'full' for all channels (default: 16 64 full)",
    )  # fmt: skip
    parser.add_argument(
        "--rounds",
        type=positive,
        help=f"repetitions (default: {ROUNDS}, with --quick {QUICK_ROUNDS})",
    )
    parser.add_argument(
        "--quick", action="store_true", help="few repetitions: a look, not a measurement"
    )
    parser.add_argument("--dbn", action="store_true", help="also measure DBN's exact whitening")
    parser.add_argument(
        "--threads", type=positive, help="torch's threads (default: as torch chooses)"
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("records/cpu.json"),
        help="the record (default: %(default)s)",
    )
    parser.add_argument(
        "--check", action="store_true", help="exit with status 1 where a target is missed"
    )
    options = parser.parse_args(arguments)
    options.rounds = options.rounds or (QUICK_ROUNDS if options.quick else ROUNDS)
    return options


def shape(text: str) -> tuple[int, ...]:
    """
    >>> shape("8x48x17x17")
    (8, 48, 17, 17)
    """
    sizes = tuple(positive(part) for part in text.split("x"))
    if not 2 <= len(sizes) <= 5:
        raise argparse.ArgumentTypeError(
            f"{text!r} has {len(sizes)} dimensions; expected 2 to 5, such as 32x64x56x56"
        )
    return sizes


def group_size(text: str) -> int | None:
    return None if text == "full" else positive(text)


def positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a positive integer; got {text!r}")
    return int(text)


def measure(
    case: Case, layers: Sequence[Candidate], rounds: int, errors: dict[str, dict[str, float]]
) -> Measurement:
    inputs = make_inputs(case)
    steps = {candidate.name: training_step(candidate.layer(case), inputs) for candidate in layers}
    peaks = {name: peak_bytes(step) for name, step in steps.items()}
    return Measurement(case, take_turns(steps, rounds), peaks, errors)


def main(arguments: Sequence[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    options = parse(arguments)
    if options.threads:
        torch.set_num_threads(options.threads)
    cases = all_cases(options.shapes, options.groups)

    errors: dict[Case, dict[str, dict[str, float]]] = {}
    for case in cases:
        progress(f"checking {case}")
        checker = Checker(case, make_inputs(case))
        try:
            errors[case] = {c.name: checker.errors(c) for c in candidates(case, options.dbn)}
        except Disagreement as disagreement:
            print(f"error: {disagreement}", file=sys.stderr)
            return 1

    measurements = []
    for case in cases:
        progress(f"measuring {case}")
        measurements.append(
            measure(case, candidates(case, options.dbn), options.rounds, errors[case])
        )
    verdicts = [
        verdict for measured in measurements for verdict in judge(measured.case, measured.times)
    ]

    report.show(measurements)
    print("\nTargets", *verdicts, sep="\n")
    report.write(report.record(measurements, verdicts, arguments, options.rounds), options.out)
    print(f"\nrecord: {options.out}")
    return int(options.check and not all(verdict.passed for verdict in verdicts))


def progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
