"""Whether two implementations of IterNorm give the same curves on CIFAR-10."""

from __future__ import annotations

import argparse
from itertools import product
from pathlib import Path
from statistics import median

import torch

import isonorm
from isonorm import area, operation
from isonorm.kernels import choose
from isonorm.lab.machine import Machine
from isonorm.lab.recipes.common import ITERNORM
from isonorm.lab.train import Result

from .cifar_training import Course, Task, Unusable, curve, record
from .noise import FALSE_ALARMS, Comparison, compare
from .report import write


def curves(options: argparse.Namespace, course: Course) -> int:
    for name in options.backends:
        check_runs(name, course.machine)
    content = record(options, course) | {"how": {
        "verdict": "the largest |t| of all epochs is at most the limit: in all of them together, "
        f"{FALSE_ALARMS:.0%} of false alarms",
        "t": "the difference of the means over seeds in standard errors, pooled over both kinds",
        "noticed": "the difference at the limit, in percent of the loss: median and every epoch's",
        "between": "mean |difference| of losses: kinds of the same seed, seeds of the same kind",
    }}  # fmt: skip
    pairs = product(range(options.seeds), options.backends)
    tasks = [Task(ITERNORM, seed, name) for seed, name in pairs]
    results: dict[Task, Result] = {}
    for task, result in course.trainings(tasks):
        results[task] = result
        print(f"[{len(results)}/{len(tasks)}] {standing(task, result)}", flush=True)
        content["curves"] = [
            {"backend": task.backend, "seed": task.seed, **curve(results[task])}
            for task in tasks
            if task in results
        ]
        write(content | {"complete": False}, options.out)  # nothing is lost if the rest is
    kinds = {
        name: [results[task] for task in tasks if task.backend == name] for name in options.backends
    }
    if any(result.diverged for result in results.values()):
        raise Unusable(f"a training diverged, and no curves are compared; see {options.out}.")
    found = compare(
        *([[epoch.train_loss for epoch in seed.epochs] for seed in kind] for kind in kinds.values())
    )
    write(content | {"complete": True} | found._asdict(), options.out)
    print(verdict(found, *options.backends), f"record: {options.out}", sep="\n")
    draw(kinds, options.out)
    return 0 if found.passed else 1


def standing(task: Task, result: Result) -> str:
    last, seconds = result.epochs[-1], median(epoch.seconds for epoch in result.epochs)
    return (
        f"{task.backend}, seed {task.seed}: loss {last.train_loss:.4f}, test error "
        f"{last.test_error:.2%}, {seconds:.2f} s an epoch"
    )


def verdict(found: Comparison, one: str, other: str) -> str:
    word = "within noise" if found.passed else "DIFFERENT"
    return (
        f"{one} and {other}: {word}, largest |t| of {len(found.t)} epochs {found.largest:.2f}, "
        f"limit {found.limit:.2f}.\n"
        f"A difference of {found.noticed_percent:.2g} % of the loss would have been noticed "
        f"(median of the epochs; at worst {max(found.noticed_by_epoch):.2g} %).\n"
        f"Mean |difference| of one seed, {one} and {other}: {found.between_kinds:.4f}; of two "
        f"seeds of one kind: {found.between_seeds:.4f}."
    )


def check_runs(name: str, machine: Machine) -> None:
    """Asks the library itself whether an implementation can whiten on this machine."""
    x = torch.empty(2, 64, 4, 4, device=machine.device)
    try:
        with isonorm.backend(name):
            choose(x, area=area.batch(64), operation=operation.whiten())
    except RuntimeError as error:
        raise Unusable(
            f"{str(error).rstrip('.')}: use a GPU, or compare what runs here, as with --backends "
            "torch reference."
        ) from None


def draw(results: dict[str, list[Result]], out: Path) -> None:
    """Beside the record, under its name."""
    from isonorm.lab import figures

    labelled = {f"by {name}": kind for name, kind in results.items()}
    title = "VGG on CIFAR-10, IterNorm in groups of 64"
    (path,) = figures.save(figures.curves(labelled, title), out.parent, out.stem, kinds=("png",))
    print(f"figure: {path}")
