"""IterNorm's VGG on CIFAR-10, as Figure 6 trains it: what an epoch takes, and whether the Triton
kernels learn what plain torch learns. DIR holds CIFAR-10's official files.

    python -m benchmarks.cifar epochs --data DIR            records/cifar10-epochs.json
    python -m benchmarks.cifar curves --data DIR --jobs 4   records/cifar10-curves.json, .png

``epochs`` trains a few epochs with BatchNorm (torch's and isonorm's), IterNorm in groups of 64 and
over all channels, and DBN in groups of 16, one after the other, alone on the device: the median of
all epochs but the first, which compiles, and its ratio to torch's BatchNorm. On a GPU, at full
scale, it is held to two bars: BatchNorm about a second an epoch, IterNorm 64 at most 1.3 × that.

``curves`` trains IterNorm in groups of 64 by two implementations, with the same seeds. "Within
noise" means: in no epoch do the two means over seeds of the training loss differ by more standard
errors (pooled over both kinds) than Student's two-sided quantile with 2 (seeds - 1) degrees of
freedom, at 1 % divided by the number of epochs (Bonferroni): two equal implementations are called
different in at most one such comparison of a hundred. What it could have seen is told beside it:
the difference at that limit, in percent of the loss. More seeds see smaller ones.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import torch

from isonorm.kernels.choice import BACKENDS
from isonorm.lab.devices import PRECISIONS, resolve_device
from isonorm.lab.machine import COMPILE_MODES, Machine

from .cifar_curves import curves
from .cifar_epochs import epochs
from .cifar_training import Course, Unusable
from .cpu import positive


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    shared = argparse.ArgumentParser(add_help=False)
    add = shared.add_argument
    add("--data", required=True, help="folder of CIFAR-10's files")
    add("--device", default="cuda", help="default: %(default)s")
    add("--precision", choices=tuple(PRECISIONS), default="bf16", help="default: %(default)s")
    add("--compile", choices=tuple(COMPILE_MODES), default="graphs", help="default: %(default)s")
    add("--batch", type=positive, help="images a step (default: the recipe's)")
    add("--quick", action="store_true", help="narrow networks, a few images: a look, in seconds")
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cifar",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    words = parser.add_subparsers(dest="word", required=True)
    for word, help, count in (
        ("epochs", "seconds an epoch of each norm", 4),
        ("curves", "the losses of two implementations", 12),
    ):
        one = words.add_parser(word, parents=[shared], help=help)
        one.add_argument("--epochs", type=positive, default=count, help="default: %(default)s")
        out = Path(f"records/cifar10-{word}.json")
        one.add_argument("--out", type=Path, default=out, help="default: %(default)s")
    one.add_argument("--seeds", type=positive, default=4, help="how many (default: %(default)s)")
    one.add_argument("--jobs", type=positive, default=1, help="trainings at once (default: 1)")
    one.add_argument(
        "--backends",
        nargs=2,
        choices=[name for name in BACKENDS if name != "auto"],
        default=["triton", "torch"],
        help="the two implementations (default: triton torch)",
    )
    options = parser.parse_args(arguments)
    if options.word == "epochs" and options.epochs < 2:
        parser.error("--epochs must be at least 2: the first compiles, and is left out.")
    if options.word == "curves" and options.seeds < 2:
        parser.error("--seeds must be at least 2: one training says nothing about chance.")
    if options.word == "curves" and len(set(options.backends)) < 2:
        parser.error(f"--backends must be two different ones; got {options.backends[0]} twice.")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(sys.argv[1:] if arguments is None else arguments)
    try:
        machine = Machine(
            device=resolve_device(options.device),
            precision=options.precision,
            compile=options.compile,
            jobs=getattr(options, "jobs", 1),
        )
        course = Course(options.data, machine, options.epochs, options.batch, options.quick)
        _ = course.data  # what is wrong with the files is told here, not by a process of its own
        return {"epochs": epochs, "curves": curves}[options.word](options, course)
    except (BrokenProcessPool, torch.OutOfMemoryError) as error:
        reason = str(error).partition(". ")[0].rstrip(".")
        print(
            f"error: memory may have run out ({reason}): fewer --jobs take less.", file=sys.stderr
        )
    except (Unusable, OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
    except KeyboardInterrupt:
        print(f"interrupted: {options.out} has the trainings that ended, if any.", file=sys.stderr)
        return 130
    return 1


if __name__ == "__main__":
    sys.exit(main())
