"""The training loop, read from top to bottom."""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import deepcopy
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from ..analysis import fisher_condition
from . import checkpoints, memory, records
from .data import DataSet
from .devices import make_fabric
from .objective import Objective, compiling
from .plan import Plan
from .schedules import set_rates
from .streams import ImageFolders, Stream, open_streams

if TYPE_CHECKING:
    from lightning_fabric import Fabric


@dataclass(frozen=True)
class Epoch:
    """One pass over the training set."""

    number: int  # from 1
    train_loss: float  # mean over the epoch's batches, as the optimizer met them
    test_error: float  # fraction of test images misclassified after the epoch, in eval mode
    seconds: float  # of training, testing left out
    train_error: float = math.nan  # fraction misclassified, as the optimizer met them
    test_loss: float = math.nan
    test_top5_error: float = math.nan
    test_seconds: float = math.nan
    condition_number: float = math.nan  # of the classifier's Fisher information, where asked for
    peak_bytes: float = math.nan  # the most that torch held at once in training, where measured


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


def seed_of(*numbers: int) -> int:
    """One seed from several: other numbers, other seeds.

    >>> seed_of(0, 1) != seed_of(1, 0) != seed_of(0, 1, 0)
    True
    """
    return int(np.random.SeedSequence(numbers).generate_state(1)[0])


def seeded(seed: int, make_model: Callable[[], nn.Module]) -> nn.Module:
    """A model whose initial weights follow from the seed; torch's generator stays as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make_model()


def train(
    model: nn.Module,
    data: DataSet | ImageFolders,
    plan: Plan,
    *,
    seed: int,
    fabric: Fabric | None = None,
    compile_mode: str | None = None,
    checkpoint: Path | None = None,
    seconds_between_checkpoints: float = 0.0,
    measure_memory: bool = False,
    on_epoch: Callable[[Epoch], None] = lambda epoch: None,
) -> Result:
    """Train as planned on the devices of a launched ``fabric``; by default on the CPU.

    The order of the images, dropout and all other chance in an epoch follow from the seed and the
    epoch's number. With a path for a ``checkpoint``, a training that was cut short goes on from the
    last epoch saved there and ends with the weights and the curve it would have had. A loss that is
    no longer finite ends the training and is a result, too: ``Result.diverged``.

    On CUDA each epoch has the peak of the memory in use, the data on the device included. A CPU has
    no such meter: with ``measure_memory`` one step of a copy of the model is measured apart.
    """
    fabric = fabric or make_fabric("cpu")
    batches, test = open_streams(data, plan, seed, fabric)
    optimizer = plan.make_optimizer(model)
    mixup = plan.make_mixup(model, seed)
    objective = Objective(model, mixup)
    if compile_mode is not None:
        objective.compile_as(compile_mode)
    module, stepper = fabric.setup(objective, optimizer)
    curve: list[Epoch] = []
    if checkpoint is not None and checkpoint.exists():
        saved = checkpoints.Checkpoint(checkpoint)
        with saved.reading():
            curve = _curve(saved.notes["curve"], plan.epochs)
            batches.load_state_dict(saved.notes["batches"])
            if mixup is not None:
                mixup.load_state_dict(saved.notes["mixup"])
        saved.load_into(module._forward_module, optimizer)
    peak = math.nan
    if measure_memory and fabric.device.type == "cpu":
        peak = memory_of_a_step(model, data, plan, fabric, compile_mode)
    steps, last_saved = len(batches), perf_counter()

    with (
        objective.listening(),
        compiling(compile_mode, module),
        torch.random.fork_rng(devices=_cuda_devices(fabric)),
    ):
        while len(curve) < plan.epochs and not _diverged(curve):
            number = len(curve) + 1
            torch.manual_seed(seed_of(seed, number, fabric.global_rank))
            start = _now(fabric)
            if fabric.device.type == "cuda":
                torch.cuda.reset_peak_memory_stats(fabric.device)
            module.train()
            loss_sum, wrong = _zero(fabric), _zero(fabric)
            for index, (images, labels) in enumerate(batches):
                step = (number - 1) * steps + index
                set_rates(optimizer, plan.lr, plan.schedule.at(step / steps, step))
                loss, logits = _step(
                    module, stepper, fabric, images, labels, *objective.draw(images)
                )
                loss_sum += loss.detach()
                wrong += _misclassified(logits.detach(), labels)
            seconds = _now(fabric) - start
            if fabric.device.type == "cuda":
                peak = float(torch.cuda.max_memory_allocated(fabric.device))

            trained = {
                "train_loss": loss_sum / (steps * fabric.world_size),
                "train_error": wrong / (steps * batches.sampler.batch_size),
            }
            condition = {}
            if plan.condition_every and number % plan.condition_every == 0:  # in training mode
                condition = {"condition_number": fisher_condition(model, images)}
            tested = evaluate(module, test, fabric) | condition
            trained_and_tested = {**_over_ranks(fabric, trained), **tested}
            curve.append(Epoch(number, seconds=seconds, peak_bytes=peak, **trained_and_tested))
            due = perf_counter() - last_saved >= seconds_between_checkpoints
            if checkpoint is not None and fabric.broadcast(due):  # all processes or none
                last_saved = perf_counter()
                notes = {
                    "curve": [asdict(epoch) for epoch in curve],
                    "batches": batches.state_dict(),
                    "mixup": mixup and mixup.state_dict(),
                }
                checkpoints.save(
                    checkpoint,
                    module._forward_module,
                    optimizer,
                    notes,
                    writes=fabric.is_global_zero,
                )
            on_epoch(curve[-1])
    return Result(tuple(curve), steps)


def _curve(rows: Any, epochs: int) -> list[Epoch]:
    """Return the epochs of a checkpoint: numbered from 1, each with all its numbers."""
    curve = []
    for number, row in enumerate(rows, start=1):
        if records.told(row, "number", int) != number or number > epochs:
            raise ValueError(f"epoch {row['number']} cannot be number {number} of {epochs}")
        curve.append(Epoch(**{"number": number, **{key: records.told(row, key, float)
                                                 for key in row if key != "number"}}))  # fmt: skip
    return curve


def memory_of_a_step(
    model: nn.Module,
    data: DataSet | ImageFolders,
    plan: Plan,
    fabric: Fabric,
    compile_mode: str | None = None,
) -> float:
    """The most bytes of tensors alive at once in a training step on a CPU: weights and buffers, the
    optimizer's state, a batch, gradients and activations. The model stays as it is.
    """
    copy = deepcopy(model)
    images, labels = next(iter(open_streams(data, plan, seed=0, fabric=fabric)[0]))
    optimizer = plan.make_optimizer(copy)
    objective = Objective(copy, plan.make_mixup(copy, seed=0))
    if compile_mode is not None:
        objective.compile_as(compile_mode)
    module, stepper = fabric.setup(objective, optimizer)
    module.train()

    def step() -> object:
        return _step(module, stepper, fabric, images, labels, *objective.draw(images))

    with (
        objective.listening(),
        compiling(compile_mode, module),
        torch.random.fork_rng(devices=[]),
    ):
        beyond = memory.peak_bytes(step)
    states = (value for state in optimizer.state.values() for value in state.values())
    held = [images, labels, *copy.parameters(), *copy.buffers(), *states]
    return beyond + sum(tensor.nbytes for tensor in held if isinstance(tensor, Tensor))


@torch.no_grad()
def evaluate(module: nn.Module, test: Stream, fabric: Fabric) -> dict[str, float]:
    """Loss and errors on the test images in eval mode, each process testing its share of them."""
    module.eval()
    start = _now(fabric)
    sums = {name: _zero(fabric) for name in ("loss", "error", "top5_error")}
    for images, labels in test:
        if len(labels):  # a process's share of a small last batch may be empty
            loss, logits = module(images, labels)
            sums["loss"] += loss * len(labels)
            sums["error"] += _misclassified(logits, labels)
            sums["top5_error"] += _misclassified(logits, labels, among=5)
    means = {f"test_{name}": total / test.sampler.num_images for name, total in sums.items()}
    return {**_over_ranks(fabric, means), "test_seconds": _now(fabric) - start}


@torch.no_grad()
def error_on_test_set(model: nn.Module, data: DataSet) -> float:
    """The fraction of test images that a model gets wrong; it is left in eval mode."""
    model.eval()
    answers = torch.cat([model(images).argmax(1) for images in data.test_images.split(2000)])
    return (answers != data.test_labels).double().mean().item()


def _step(
    module: nn.Module,
    stepper: Any,
    fabric: Fabric,
    images: Tensor,
    labels: Tensor,
    *mixing: Any,
) -> tuple[Tensor, Tensor]:
    """One step of the optimizer; the loss and the logits before it."""
    stepper.zero_grad()
    loss, logits = module(images, labels, *mixing)
    fabric.backward(loss)
    stepper.step()
    return loss, logits


def _misclassified(logits: Tensor, labels: Tensor, among: int = 1) -> Tensor:
    """How many images have their class not among the most likely ones."""
    if among == 1:
        return (logits.argmax(dim=1) != labels).sum()
    likely = logits.topk(min(among, logits.shape[1]), dim=1).indices
    return (likely != labels.unsqueeze(1)).all(dim=1).sum()


def _over_ranks(fabric: Fabric, values: dict[str, Tensor]) -> dict[str, float]:
    """Sums over all processes, as numbers: the one moment at which the host waits."""
    total = fabric.all_reduce(torch.stack(list(values.values())), reduce_op="sum")
    return dict(zip(values, total.tolist(), strict=True))  # type: ignore[union-attr]


def _zero(fabric: Fabric) -> Tensor:
    return torch.zeros((), device=fabric.device, dtype=torch.float64)


def _diverged(curve: list[Epoch]) -> bool:
    return bool(curve) and not math.isfinite(curve[-1].train_loss)


def _cuda_devices(fabric: Fabric) -> list[int]:
    return [fabric.device.index or 0] if fabric.device.type == "cuda" else []


def _now(fabric: Fabric) -> float:
    """The time at which everything asked of the device so far is done."""
    if fabric.device.type == "cuda":
        torch.cuda.synchronize(fabric.device)
    return perf_counter()
