"""Learning rates over the course of a training: values of time alone, so that there is no state to
keep and a resumed training goes on with the same rates.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol, Self

from torch.optim import Optimizer


class Rates(NamedTuple):
    """What multiplies the learning rate, and the momentum where the schedule decides on it."""

    factor: float
    momentum: float | None = None


class Schedule(Protocol):
    """Rates as a function of the epochs that have passed, fractions included, or of steps."""

    def at(self, epoch: float, step: int) -> Rates: ...

    def shortened(self, ratio: float) -> Self:
        """The same course in a training ``ratio`` times as long."""
        ...


@dataclass(frozen=True)
class Constant:
    """The same rate from beginning to end."""

    def at(self, epoch: float, step: int) -> Rates:
        return Rates(1.0)

    def shortened(self, ratio: float) -> Self:
        return self


CONSTANT = Constant()


@dataclass(frozen=True)
class Steps:
    """Multiplied by ``factor`` when each of the ``milestones``, in epochs, has passed.

    >>> schedule = Steps((60, 120), 0.2)
    >>> [round(schedule.at(epoch, 0).factor, 3) for epoch in (0, 59.9, 60, 150)]
    [1.0, 1.0, 0.2, 0.04]
    """

    milestones: tuple[float, ...]
    factor: float

    def at(self, epoch: float, step: int) -> Rates:
        return Rates(self.factor ** sum(epoch >= milestone for milestone in self.milestones))

    def shortened(self, ratio: float) -> Self:
        return replace(self, milestones=tuple(ratio * epoch for epoch in self.milestones))


@dataclass(frozen=True)
class Halving:
    """Half the rate every T iterations (DBN Section 4.2.1).

    >>> [Halving(1000).at(0, step).factor for step in (0, 999, 1000, 2500)]
    [1.0, 1.0, 0.5, 0.25]
    """

    every: int

    def at(self, epoch: float, step: int) -> Rates:
        return Rates(0.5 ** (step // self.every))

    def shortened(self, ratio: float) -> Self:
        return replace(self, every=max(1, round(ratio * self.every)))


@dataclass(frozen=True)
class SuperConvergence:
    """Up ``peak``-fold until epoch ``up``, back until epoch ``down``, then to 1/``anneal`` at epoch
    ``end``, all linearly, and momentum the other way round (Smith & Topin 2017). The numbers are
    EquiNorm's (Section 6.2), which fixes momentum at the lower value after ``down``.

    >>> schedule = SuperConvergence()
    >>> schedule.at(0, 0), schedule.at(13, 0)
    (Rates(factor=1.0, momentum=0.95), Rates(factor=5.0, momentum=0.85))
    >>> schedule.at(26, 0), round(schedule.at(30, 0).factor, 6)
    (Rates(factor=1.0, momentum=0.85), 0.01)
    """

    peak: float = 5.0
    up: float = 13.0
    down: float = 26.0
    end: float = 30.0
    anneal: float = 100.0
    momentum: tuple[float, float] = (0.95, 0.85)

    def at(self, epoch: float, step: int) -> Rates:
        high, low = self.momentum
        if epoch >= self.down:
            left = max(0.0, (self.end - epoch) / (self.end - self.down))
            return Rates(_between(1 / self.anneal, 1.0, left), low)
        ramp = min(epoch / self.up, (self.down - epoch) / (self.down - self.up))
        return Rates(_between(1.0, self.peak, ramp), _between(high, low, ramp))

    def shortened(self, ratio: float) -> Self:
        return replace(self, up=ratio * self.up, down=ratio * self.down, end=ratio * self.end)


def set_rates(optimizer: Optimizer, lr: float, rates: Rates) -> None:
    """Gives every group of parameters its rate; Adam's first β is its momentum."""
    for group in optimizer.param_groups:
        group["lr"] = lr * rates.factor
        if rates.momentum is not None:
            if "betas" in group:
                group["betas"] = (rates.momentum, group["betas"][1])
            else:
                group["momentum"] = rates.momentum


def _between(start: float, end: float, share: float) -> float:
    return start + (end - start) * share
