"""What the MNIST benchmark trains: a small convolutional network, and how."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from statistics import mean
from typing import NamedTuple

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer

import isonorm
from isonorm.lab.data import DataSet
from isonorm.lab.train import error_on_test_set
from isonorm.optim import warmup_polynomial


def batchnorm(inputs: int, outputs: int) -> list[nn.Module]:
    return [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs)]


def equiconv(inputs: int, outputs: int, **options) -> list[nn.Module]:
    return [isonorm.EquiConv2d(inputs, outputs, 3, padding=1, **options)]


Block = Callable[[int, int], list[nn.Module]]
BLOCKS: dict[str, Block] = {
    "BatchNorm": batchnorm,
    "EquiConv": equiconv,
    "EquiConv, quarter": partial(equiconv, statistics_fraction=0.25),
}


def network(block: Block) -> nn.Module:
    """Three convolutions, two poolings, one linear layer: 11 thousand weights."""
    return nn.Sequential(
        *block(1, 8), nn.ReLU(), nn.MaxPool2d(2),
        *block(8, 16), nn.ReLU(), nn.MaxPool2d(2),
        *block(16, 16), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 7 * 7, 10),
    )  # fmt: skip


class Training(NamedTuple):
    """How a network is trained. The learning rate follows ``warmup_polynomial``, whose steps are
    given as parts of all steps; without ``power`` it is constant.
    """

    batch_size: int
    optimizer: type[Optimizer]
    options: dict[str, float]
    power: float | None = None
    warmup: float = 0.0
    hold: float = 0.0

    def start(self, parameters: Iterator[nn.Parameter], steps: int) -> tuple:
        """The optimizer and its schedule for a number of steps."""
        optimizer = self.optimizer(parameters, **self.options)  # type: ignore[call-arg]
        if self.power is None:
            return optimizer, None
        warmup, hold = round(self.warmup * steps), round(self.hold * steps)
        return optimizer, warmup_polynomial(
            optimizer, steps, warmup_steps=warmup, hold_steps=hold, power=self.power
        )

    def describe(self, epochs: int) -> dict:
        return self._asdict() | {"optimizer": self.optimizer.__name__, "epochs": epochs}


#: EquiNorm, Section 6.1: "defaults commonly used with BatchNorm", which the paper did not tune.
SECTION_6_1 = Training(128, torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 1e-4})

#: The papers' forms: LARS decays with power 2 after a warm-up, LAMB linearly after one, LANS
#: linearly after a warm-up and a plateau. Learning rates and the lengths of the phases are for this
#: network, chosen after a few trials.
LARGE_BATCH = {
    "LARS": Training(
        4096, isonorm.optim.LARS,
        {"lr": 2.0, "momentum": 0.9, "weight_decay": 5e-4, "trust_coefficient": 0.01},
        power=2, warmup=0.05,
    ),
    "LAMB": Training(
        4096, isonorm.optim.LAMB, {"lr": 0.06, "weight_decay": 0.01}, power=1, warmup=0.1
    ),
    "LANS": Training(
        4096, isonorm.optim.LANS, {"lr": 0.06, "weight_decay": 0.01},
        power=1, warmup=0.4265, hold=0.2735,
    ),
}  # fmt: skip


class Curve(NamedTuple):
    """What one training gives: a loss a step, and the test error after each epoch."""

    losses: list[float]
    errors: list[float]

    @property
    def epoch_losses(self) -> list[float]:
        """The mean over each epoch's batches, as the optimizer met them."""
        steps = len(self.losses) // len(self.errors)
        return [mean(self.losses[i : i + steps]) for i in range(0, len(self.losses), steps)]

    def epochs_to(self, target: float) -> int | None:
        """The first epoch whose training loss is at most the target; None if there is none."""
        return next((i for i, loss in enumerate(self.epoch_losses, 1) if loss <= target), None)

    def steps_to(self, target: float, window: int) -> int | None:
        """The first step at which the mean of the last losses is at most the target."""
        ends = range(window, len(self.losses) + 1)
        return next((i for i in ends if mean(self.losses[i - window : i]) <= target), None)


def train(block: Block, training: Training, data: DataSet, epochs: int, seed: int) -> Curve:
    """One network, its initial weights and the order of its images set by the seed."""
    torch.manual_seed(seed)
    model = network(block)
    per_epoch = len(data.train_labels) // training.batch_size
    optimizer, schedule = training.start(model.parameters(), epochs * per_epoch)
    losses: list[float] = []
    errors: list[float] = []
    for _ in range(epochs):
        model.train()
        order = torch.randperm(len(data.train_labels))[: per_epoch * training.batch_size]
        for batch in order.view(per_epoch, -1):
            loss = cross_entropy(model(data.train_images[batch]), data.train_labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if schedule is not None:
                schedule.step()
            losses.append(loss.item())
        errors.append(error_on_test_set(model, data))
    return Curve(losses, errors)
