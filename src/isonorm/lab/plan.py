"""How a network is trained: everything but the network, the data and the seed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace

from torch import nn, optim
from torch.optim import Optimizer

from ..optim import LAMB, LANS, LARS
from .data import FlipAndCrop, Mixup
from .data.standardize import Per
from .devices import check_between
from .schedules import CONSTANT, Schedule

#: Makes an optimizer for the parameters of a model.
MakeOptimizer = Callable[[nn.Module, "Plan"], Optimizer]

MOST_EPOCHS = 1_000_000
#: Of learning rate, momentum and weight decay: products of them with a schedule's factors and an
#: optimizer's corrections stay far from the largest float32.
MOST_RATE = 1e30


@dataclass(frozen=True)
class Plan:
    """A training as the papers tell it: batches, optimizer, learning rate and its schedule.

    >>> Plan(epochs=160, batch_size=256, lr=0.1).shortened(2).epochs
    2
    """

    epochs: int
    batch_size: int | None  # of all processes together; None: all training examples at once
    lr: float
    optimizer: str = "sgd"
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0
    schedule: Schedule = CONSTANT
    mean: Per | None = None  # what is subtracted from pixels in [0, 1]: of each channel or pixel
    std: Per | None = None  # and what they are divided by
    augment: FlipAndCrop | None = None
    mixup_alpha: float | None = None  # None: no mixup
    mixup_places: tuple[str, ...] = ("",)  # modules whose input is mixed; "" is the network
    condition_every: int | None = None  # epochs after which the Fisher information is looked at

    def __post_init__(self) -> None:
        if not isinstance(self.epochs, int) or self.epochs < 1:
            raise ValueError(f"epochs must be a whole number, at least 1; got {self.epochs!r}.")
        check_between("epochs", self.epochs, 1, MOST_EPOCHS)
        for name in ("lr", "momentum", "weight_decay"):
            check_between(name, getattr(self, name), 0, MOST_RATE)
        if self.optimizer not in OPTIMIZERS:
            raise ValueError(
                f"there is no optimizer called {self.optimizer!r}: choose from "
                f"{', '.join(OPTIMIZERS)}."
            )
        if not hasattr(self.schedule, "at"):
            raise ValueError(
                "schedule must be one of isonorm.lab.schedules, such as Steps((60, 120), 0.2); got "
                f"{self.schedule!r}."
            )

    def shortened(self, epochs: int) -> Plan:
        """The same course in fewer epochs."""
        ratio = epochs / self.epochs
        every = self.condition_every and max(1, round(ratio * self.condition_every))
        schedule = self.schedule.shortened(ratio)
        return replace(self, epochs=epochs, schedule=schedule, condition_every=every)

    def describe(self) -> str:
        """In a line: what differs from the plainest training.

        >>> Plan(epochs=160, batch_size=256, lr=0.1, momentum=0.9).describe()
        '160 epochs, batch_size 256, lr 0.1, momentum 0.9'
        """
        words = [f"{self.epochs} epochs", f"batch_size {self.batch_size or 'all'}", f"lr {self.lr}"]
        for part in fields(self)[3:]:
            value = getattr(self, part.name)
            if value != part.default:
                words.append(f"{part.name} {value}")
        return ", ".join(words)

    def make_optimizer(self, model: nn.Module) -> Optimizer:
        return OPTIMIZERS[self.optimizer](model, self)

    def make_mixup(self, model: nn.Module, seed: int) -> Mixup | None:
        if self.mixup_alpha is None:
            return None
        places = [model.get_submodule(name) for name in self.mixup_places]
        return Mixup(places, alpha=self.mixup_alpha, seed=seed)


def _sgd(model: nn.Module, plan: Plan) -> Optimizer:
    return optim.SGD(
        model.parameters(),
        lr=plan.lr,
        momentum=plan.momentum,
        nesterov=plan.nesterov,
        weight_decay=plan.weight_decay,
    )


def _torch7_sgd(model: nn.Module, plan: Plan) -> Optimizer:
    """Torch7's SGD, which the papers' published scripts call: where they leave dampening out, it is
    the momentum, so that a step is 1/(1 − momentum) times smaller than torch's.
    """
    optimizer = _sgd(model, plan)
    for group in optimizer.param_groups:
        group["dampening"] = plan.momentum
    return optimizer


def _adam(model: nn.Module, plan: Plan) -> Optimizer:
    return optim.Adam(model.parameters(), lr=plan.lr, weight_decay=plan.weight_decay)


def _lars(model: nn.Module, plan: Plan) -> Optimizer:
    return LARS(
        model.parameters(), lr=plan.lr, momentum=plan.momentum, weight_decay=plan.weight_decay
    )


def _lamb(model: nn.Module, plan: Plan) -> Optimizer:
    return LAMB(model.parameters(), lr=plan.lr, weight_decay=plan.weight_decay)


def _lans(model: nn.Module, plan: Plan) -> Optimizer:
    return LANS(model.parameters(), lr=plan.lr, weight_decay=plan.weight_decay)


OPTIMIZERS: dict[str, MakeOptimizer] = {
    "sgd": _sgd,
    "torch7_sgd": _torch7_sgd,
    "adam": _adam,
    "lars": _lars,
    "lamb": _lamb,
    "lans": _lans,
}
