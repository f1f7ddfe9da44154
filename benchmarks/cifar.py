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
import math
import sys
from collections.abc import Sequence
from concurrent.futures.process import BrokenProcessPool
from itertools import product
from pathlib import Path
from statistics import median

import torch
from torch import nn

import isonorm
from isonorm import area, operation
from isonorm.kernels import BACKENDS, choose
from isonorm.lab.devices import PRECISIONS, resolve_device
from isonorm.lab.machine import COMPILE_MODES, Machine
from isonorm.lab.recipes.common import BN, DBN, ITERNORM, ITERNORM_ALL
from isonorm.lab.train import Result

from .cifar_curves import FALSE_ALARMS, compare
from .cifar_training import Course, Task
from .cpu import positive
from .measure import spread
from .report import origin, write

BATCHNORM, ITERNORM_64 = "BatchNorm, torch's", "IterNorm, groups of 64"
NORMS: dict[str, str | type[nn.Module]] = {
    BATCHNORM: nn.BatchNorm2d,
    "BatchNorm, isonorm's": BN,
    ITERNORM_64: ITERNORM,
    "IterNorm, all channels": ITERNORM_ALL,
    "DBN, groups of 16": DBN,
}
#: For one data-centre GPU.
MOST_SECONDS, MOST_RATIO = 1.25, 1.3


# --- epochs ---------------------------------------------------------------------------------------


def epochs(options: argparse.Namespace, course: Course) -> int:
    tasks = {name: Task(norm) for name, norm in NORMS.items()}
    names = {task: name for name, task in tasks.items()}
    content = record(options, course) | {"how": {
        "seconds": "of training in an epoch, testing left out: all epochs but the first",
        "ratio": "of the median to that of torch's BatchNorm",
    }}  # fmt: skip
    results: dict[str, dict] = {}
    for task, result in course.trainings(list(names)):
        name = names[task]
        if result.diverged:
            raise Unusable(f"{name} diverged; its speed does not count.")
        seconds = [epoch.seconds for epoch in result.epochs]
        found = spread(seconds[1:])
        ratio = found.median / results[BATCHNORM]["seconds"]["median"] if results else 1.0
        results[name] = {
            "seconds": found._asdict(),
            "ratio": ratio,
            "every_epoch": seconds,
            **curve(result),
        }
        last = result.epochs[-1]
        print(
            f"{name:22}  {found.median:7.3f} s an epoch, {ratio:5.2f} × BatchNorm; the first "
            f"{seconds[0]:.1f} s; loss {last.train_loss:.3f}, test error {last.test_error:.2%}",
            flush=True,
        )
        # nothing is lost if the rest is
        write(content | {"complete": False, "results": results}, options.out)
    content |= {"complete": True, "results": results}
    if options.device.startswith("cuda") and not options.quick:
        content |= bars(results)
    write(content, options.out)
    print(f"record: {options.out}")
    return 0


def bars(results: dict[str, dict]) -> dict:
    """The figures that are held to something, and whether they hold."""
    targets = [
        {"what": what, "measured": measured, "most": most, "passed": measured <= most}
        for what, measured, most in (
            (f"{BATCHNORM}: seconds", results[BATCHNORM]["seconds"]["median"], MOST_SECONDS),
            (f"{ITERNORM_64}: × BatchNorm", results[ITERNORM_64]["ratio"], MOST_RATIO),
        )
    ]
    for bar in targets:
        word = "met" if bar["passed"] else "MISSED"
        print(f"{word:6}  {bar['what']} {bar['measured']:.3f}, at most {bar['most']:g} wanted")
    return {"targets": targets, "passed": all(bar["passed"] for bar in targets)}


# --- curves ---------------------------------------------------------------------------------------


def curves(options: argparse.Namespace, course: Course) -> int:
    for name in options.backends:
        check_runs(name, course.machine)
    tasks = [
        Task(ITERNORM, seed, name) for seed in range(options.seeds) for name in options.backends
    ]
    content = record(options, course) | {"how": {
        "passed": "the largest |t| of all epochs is at most the limit",
        "limit": f"{FALSE_ALARMS:.0%} of false alarms, in all epochs together",
        "t": "the difference of the means over seeds in standard errors, pooled over both kinds",
        "noticed_percent": "the difference at the limit, in percent of the loss",
        "between_kinds": "mean |difference| of the losses of the same seed",
        "between_seeds": "mean |difference| of the losses of the same kind",
    }}  # fmt: skip
    results: dict[Task, Result] = {}
    for task, result in course.trainings(tasks):
        results[task] = result
        last, done = result.epochs[-1], f"[{len(results)}/{len(tasks)}]"
        seconds = median(epoch.seconds for epoch in result.epochs)
        print(
            f"{done} {task.backend}, seed {task.seed}: loss {last.train_loss:.4f}, test error "
            f"{last.test_error:.2%}, {seconds:.2f} s an epoch",
            flush=True,
        )
        content["curves"] = [
            {"backend": task.backend, "seed": task.seed, **curve(results[task])}
            for task in tasks
            if task in results
        ]
        write(content | {"complete": False}, options.out)
    by_kind = {
        name: [results[task] for task in tasks if task.backend == name] for name in options.backends
    }
    draw(by_kind, options.out)
    if any(result.diverged for result in results.values()):
        raise Unusable(f"a training diverged, and no curves are compared; see {options.out}.")
    found = compare(
        *([[e.train_loss for e in result.epochs] for result in kind] for kind in by_kind.values())
    )
    write(content | {"complete": True} | found._asdict(), options.out)
    one, other = options.backends
    verdict = "within noise" if found.passed else "DIFFERENT"
    print(
        f"{one} and {other}: {verdict}, largest |t| {found.largest:.2f} of {options.epochs} "
        f"epochs, limit {found.limit:.2f}.\n"
        f"A difference of {median(found.noticed_percent):.2g} % of the loss would have been "
        f"noticed (median of the epochs; at worst {max(found.noticed_percent):.2g} %).\n"
        f"Mean |difference| between {one} and {other} of one seed {found.between_kinds:.4f}, "
        f"between seeds {found.between_seeds:.4f}.\n"
        f"record: {options.out}, figure: {options.out.with_suffix('.png')}"
    )
    return 0 if found.passed else 1


def check_runs(name: str, machine: Machine) -> None:
    """Asks the library itself whether an implementation can whiten on this machine."""
    x = torch.empty(2, 64, 4, 4, device=machine.device)
    try:
        with isonorm.backend(name):
            choose(operation.whiten(), area.batch(64), x)
    except RuntimeError as error:
        raise Unusable(
            f"{str(error).rstrip('.')}: use a GPU, or compare what runs here, as with --backends "
            "torch reference."
        ) from None


def draw(results: dict[str, list[Result]], out: Path) -> None:
    from isonorm.lab import figures

    labelled = {f"{ITERNORM_64}, by {name}": kind for name, kind in results.items()}
    title = f"VGG on CIFAR-10, {len(next(iter(results.values())))} seeds"
    figures.save(figures.curves(labelled, title), out.parent, out.stem, kinds=("png",))


# --- both -----------------------------------------------------------------------------------------


class Unusable(Exception):
    """Why there is no result; a sentence for the user."""


def curve(result: Result) -> dict[str, list[float | None]]:
    """Losses and errors of all epochs; None where they are no numbers, which JSON cannot write."""
    return {
        name: [value if math.isfinite(value) else None for value in values]
        for name, values in {
            "train_loss": [epoch.train_loss for epoch in result.epochs],
            "test_error": [epoch.test_error for epoch in result.epochs],
        }.items()
    }


def record(options: argparse.Namespace, course: Course) -> dict:
    """Where a record comes from, and what is trained."""
    words = [options.word, "--data", "DIR"]
    for name in ("epochs", "batch", "seeds", "jobs", "device", "precision", "compile"):
        value = getattr(options, name, None)
        words += [] if value is None else [f"--{name}", str(value)]
    words += ["--backends", *options.backends] if options.word == "curves" else []
    words += ["--quick"] if options.quick else []
    content = origin("benchmarks.cifar", words)
    if course.machine.device.startswith("cuda"):
        content["hardware"]["gpu"] = torch.cuda.get_device_name(course.machine.device)
    about = course.configuration(ITERNORM).describe()
    return content | {"trained": f"{about['network']}, {about['training']}"}


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
        course.read()  # what is wrong with the files is told here, not by a process of its own
        return {"epochs": epochs, "curves": curves}[options.word](options, course)
    except BrokenProcessPool:
        print(
            "error: a process ended before its training did, as where memory runs out; "
            f"--jobs {max(1, options.jobs // 2)} asks for less.",
            file=sys.stderr,
        )
    except (Unusable, OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
