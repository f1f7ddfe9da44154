"""What an epoch on CIFAR-10 takes with each norm, one after the other, alone on the device."""

from __future__ import annotations

import argparse

from torch import nn

from isonorm.lab.recipes.common import BN, DBN, ITERNORM, ITERNORM_ALL

from .cifar_training import Course, Task, Unusable, curve, record
from .measure import spread
from .report import write

BATCHNORM, ITERNORM_64 = "BatchNorm, torch's", "IterNorm, groups of 64"
NORMS: dict[str, str | type[nn.Module]] = {
    BATCHNORM: nn.BatchNorm2d,
    "BatchNorm, isonorm's": BN,
    ITERNORM_64: ITERNORM,
    "IterNorm, all channels": ITERNORM_ALL,
    "DBN, groups of 16": DBN,
}
#: For one data-center GPU.
MOST_SECONDS, MOST_RATIO = 1.25, 1.3


def epochs(options: argparse.Namespace, course: Course) -> int:
    names = {Task(norm): name for name, norm in NORMS.items()}
    content = record(options, course) | {"how": {
        "seconds": "of training in an epoch, testing left out: all epochs but the first",
        "ratio": "of the median to that of torch's BatchNorm",
    }}  # fmt: skip
    results: dict[str, dict] = {}
    content["results"] = results
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
        write(content | {"complete": False}, options.out)  # nothing is lost if the rest is
    content |= {"complete": True}
    if course.machine.device.startswith("cuda") and not options.quick:
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
