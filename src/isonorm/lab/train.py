"""The training loop, read from top to bottom."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median
from time import perf_counter

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from .data import DataSet


@dataclass(frozen=True)
class Epoch:
    """One pass over the training set."""

    number: int  # from 1
    train_loss: float  # mean over the epoch's batches, as the optimizer met them
    test_error: float  # fraction of test images misclassified after the epoch, in eval mode
    seconds: float  # of training, testing left out


@dataclass(frozen=True)
class Result:
    """A finished training: its curve, and the numbers one asks of it."""

    epochs: tuple[Epoch, ...]
    steps_per_epoch: int

    @property
    def diverged(self) -> bool:
        return not math.isfinite(self.epochs[-1].train_loss)

    @property
    def train_loss(self) -> float | None:
        """Of the last epoch; None where training diverged."""
        return None if self.diverged else self.epochs[-1].train_loss

    @property
    def test_error(self) -> float | None:
        """After the last epoch; None where training diverged."""
        return None if self.diverged else self.epochs[-1].test_error

    @property
    def seconds_per_step(self) -> float:
        """The median over epochs, which a warm-up or a busy moment of the machine does not move."""
        return median(epoch.seconds for epoch in self.epochs) / self.steps_per_epoch

    def epochs_to(self, accuracy: float) -> int | None:
        """The first epoch that ends with at least this test accuracy; None if there is none."""
        return next(
            (epoch.number for epoch in self.epochs if 1 - epoch.test_error >= accuracy), None
        )


def seeded(seed: int, make_model: Callable[[], nn.Module]) -> nn.Module:
    """A model whose initial weights follow from the seed; torch's generator stays as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make_model()


def train(
    model: nn.Module,
    data: DataSet,
    *,
    epochs: int,
    batch_size: int,
    lr: float,
    seed: int,
    device: torch.device | str = "cpu",
    on_epoch: Callable[[Epoch], None] = lambda epoch: None,
) -> Result:
    """Train by plain stochastic gradient descent, the training images in an order set by the seed.

    A loss that is no longer finite ends the training and is a result, too: ``Result.diverged``.
    """
    steps = steps_per_epoch(data, batch_size)
    model, data = model.to(device), data.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    order = torch.Generator().manual_seed(seed)
    curve: list[Epoch] = []

    for number in range(1, epochs + 1):
        start = _now(device)
        model.train()
        total = torch.zeros((), device=device)
        for images, labels in _batches(data, batch_size, order):
            loss = cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach()
        seconds = _now(device) - start

        curve.append(Epoch(number, total.item() / steps, error_on_test_set(model, data), seconds))
        on_epoch(curve[-1])
        if not math.isfinite(curve[-1].train_loss):
            break
    return Result(tuple(curve), steps)


@torch.no_grad()
def error_on_test_set(model: nn.Module, data: DataSet) -> float:
    """The fraction of test images the model gets wrong in eval mode."""
    model.eval()
    wrong = model(data.test_images).argmax(dim=1) != data.test_labels
    return wrong.sum().item() / len(wrong)


def _batches(
    data: DataSet, batch_size: int, order: torch.Generator
) -> Iterator[tuple[Tensor, Tensor]]:
    """The training set in random order, without an incomplete batch at the end.

    The few images of such a batch would make poor statistics; the next order leaves out others.
    """
    shuffled = torch.randperm(len(data.train_labels), generator=order).to(data.train_labels.device)
    for start in range(0, steps_per_epoch(data, batch_size) * batch_size, batch_size):
        batch = shuffled[start : start + batch_size]
        yield data.train_images[batch], data.train_labels[batch]


def steps_per_epoch(data: DataSet, batch_size: int) -> int:
    """How many whole batches the training set holds."""
    available = len(data.train_labels)
    if not 1 <= batch_size <= available:
        raise ValueError(
            f"batch_size must be between 1 and the {available} training images; got {batch_size}."
        )
    return available // batch_size


def _now(device: torch.device | str) -> float:
    """The time at which everything asked of the device so far is done."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)
    return perf_counter()
