"""Time and memory of whitening's training step on a CPU, beside BatchNorm and the plain algorithm.

    python -m benchmarks.cpu                  every shape and group size; writes records/cpu.json
    python -m benchmarks.cpu --quick --shapes 256x512 --groups 16 full --out runs/cpu.json

Every layer's output and gradients are checked first, on the inputs it is then timed with; where one
is wrong, nothing is timed and the exit status says so. ``--check`` makes a missed target an error
as well.

The rounds are shared out to several processes, one after the other: what malloc gives back to the
system, and has to ask for again, differs from process to process, and the plain algorithm's time
with it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import torch

from isonorm.lab.memory import peak_bytes

from . import report
from .cases import (
    GROUP_SIZES,
    SHAPES,
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

ROUNDS, QUICK_ROUNDS = 55, 5
PROCESSES, QUICK_PROCESSES = 5, 1


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
        "--processes",
        type=positive,
        help=f"that share the repetitions (default: {PROCESSES}, with --quick {QUICK_PROCESSES})",
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
    options.processes = options.processes or (QUICK_PROCESSES if options.quick else PROCESSES)
    options.processes = min(options.processes, options.rounds)
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
    cases: Sequence[Case], with_dbn: bool, rounds: int, threads: int | None = None, seed: int = 0
) -> list[tuple[dict[str, list[float]], dict[str, int]]]:
    """The times and the peak memory of every layer, in every case."""
    if threads:
        torch.set_num_threads(threads)
    found = []
    for case in cases:
        progress(f"measuring {case}")
        inputs = make_inputs(case)
        layers = {c.name: c.layer(case) for c in candidates(case, with_dbn)}
        steps = {name: training_step(layer, inputs) for name, layer in layers.items()}
        peaks = {name: peak_bytes(step) for name, step in steps.items()}
        found.append((take_turns(steps, rounds, seed=seed), peaks))
    return found


def measure_in_processes(
    cases: Sequence[Case],
    options: argparse.Namespace,
    errors: dict[Case, dict[str, dict[str, float]]],
) -> list[Measurement]:
    """The rounds shared out to processes; where one is to measure, this does."""
    shares = [len(range(i, options.rounds, options.processes)) for i in range(options.processes)]
    if options.processes == 1:
        runs = [measure(cases, options.dbn, *shares)]
    else:
        runs = []
        for number, rounds in enumerate(shares, start=1):
            progress(f"process {number} of {options.processes}")
            with ProcessPoolExecutor(1, get_context("spawn")) as alone:
                given = (cases, options.dbn, rounds, options.threads, number)
                runs.append(alone.submit(measure, *given).result())
    measurements = []
    for case, *results in zip(cases, *runs, strict=True):
        times = {name: [t for of, _ in results for t in of[name]] for name in results[0][0]}
        measurements.append(Measurement(case, times, results[0][1], errors[case]))
    return measurements


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

    measurements = measure_in_processes(cases, options, errors)
    verdicts = [
        verdict for measured in measurements for verdict in judge(measured.case, measured.times)
    ]

    report.show(measurements)
    print("\nTargets", *verdicts, sep="\n")
    kept = report.record(measurements, verdicts, arguments, options.rounds, options.processes)
    report.write(kept, options.out)
    print(f"\nrecord: {options.out}")
    return int(options.check and not all(verdict.passed for verdict in verdicts))


def progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
