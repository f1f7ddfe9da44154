"""What ``isonorm.analysis.Monitor`` costs a training: python -m benchmarks.monitor

Three steps of the same ResNet-20 take turns: without a monitor, between two looks of one, and
during a look. From their ratios follows the cost at a look every 100 steps.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy

from isonorm.analysis import Monitor
from isonorm.lab.models import CifarResNet

from .measure import Spread, Step, ratio, take_turns
from .report import origin, write

EVERY = 100
LIMIT = 0.03  # of the training time


def training_step(batch_size: int, norm: str, every: int | None, **options: object) -> Step:
    """One step of SGD with momentum on 32 × 32 images; a monitor looks every so many steps."""
    torch.manual_seed(0)
    model = CifarResNet(20, norm=norm)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    images, labels = torch.randn(batch_size, 3, 32, 32), torch.randint(10, (batch_size,))
    monitor = Monitor(model, every=every, optimizer=optimizer, **options) if every else None

    def step() -> None:
        loss = cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if monitor is not None:
            monitor.step()

    return step


def cost(look: float, between: float, every: int = EVERY) -> float:
    """The share of time added, from a step's time over a plain step's, during and between looks.

    >>> round(cost(look=2.0, between=1.0), 4)
    0.01
    """
    return (look + (every - 1) * between) / every - 1


def measure(batch_size: int, norm: str, rounds: int) -> dict[str, Spread]:
    rare = 10**9  # after the first step, which warms up, never again
    steps = {
        "plain": training_step(batch_size, norm, None),
        "between": training_step(batch_size, norm, rare),
        "look": training_step(batch_size, norm, 1),
        "look with disturbance": training_step(batch_size, norm, 1, disturbance=True),
    }
    times = take_turns(steps, rounds)
    return {name: ratio(found, times["plain"]) for name, found in times.items()}


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.monitor", description=__doc__)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--norm", default="iternorm")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--out", type=Path, help="a file for the record")
    given = parser.parse_args(arguments)
    torch.set_num_threads(given.threads)
    ratios = measure(given.batch_size, given.norm, given.rounds)
    # Between looks a step differs by one comparison: what its ratio differs from 1 by is noise,
    # which is shown, not counted.
    costs = {name: cost(ratios[name].median, 1.0) for name in ("look", "look with disturbance")}
    for name, found in ratios.items():
        print(f"{name:22} {found.median:.3f} × a plain step ({found.lower:.3f}–{found.upper:.3f})")
    for name, share in costs.items():
        print(f"a {name} every {EVERY} steps costs {share:.2%} of the training time")
    passed = costs["look"] < LIMIT
    if given.out is not None:
        content = origin("benchmarks.monitor", arguments) | {
            "network": f"CifarResNet(20, norm={given.norm!r})",
            "batch_size": given.batch_size,
            "rounds": given.rounds,
            "every": EVERY,
            "limit": LIMIT,
            "step_over_plain": {name: found._asdict() for name, found in ratios.items()},
            "cost": costs,
            "passed": passed,
        }
        write(content, given.out)
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
