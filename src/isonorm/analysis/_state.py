"""Looking at a model in training mode without changing it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..layers.running import RunningTransform
from ..surgery.freezing import modes_kept
from ..weights.state import EquilibriumState

_RUNNING = ("running_", "num_batches_tracked")


def _running_buffers(module: nn.Module) -> dict[str, Tensor | None]:
    """A normalization layer's running statistics, torch's or ours."""
    if all(module._buffers.get(name) is None for name in ("running_mean", "num_batches_tracked")):
        return {}
    return {name: b for name, b in module._buffers.items() if name.startswith(_RUNNING)}


def set_aside_running_statistics(model: nn.Module) -> list[tuple[nn.Module, dict]]:
    """Takes them out of every layer in training mode, which then normalizes by the batch and
    writes nothing down; returns what was taken.

    Besides protecting them it lets ``torch.func`` transforms through, which refuse to write to
    buffers.
    """
    taken = []
    for module in model.modules():
        buffers = _running_buffers(module) if module.training else {}
        if buffers:
            taken.append((module, buffers))
            module._buffers.update(dict.fromkeys(buffers))
            if isinstance(module, nn.SyncBatchNorm):  # it counts batches wherever it tracks
                module.track_running_stats = False
    return taken


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[nn.Module]:
    """A block that may run the model in its present mode: every buffer is afterwards as before."""
    taken = set_aside_running_statistics(model)
    others = [
        (module, name, buffer, buffer.clone())
        for module in model.modules()
        for name, buffer in module._buffers.items()
        if buffer is not None
    ]
    try:
        yield model
    finally:
        for module, name, buffer, saved in others:
            if not _same(buffer, saved):
                buffer.data.copy_(saved)
            module._buffers[name] = buffer
        for module, buffers in taken:
            module._buffers.update(buffers)
            if isinstance(module, nn.SyncBatchNorm):
                module.track_running_stats = True


def _same(a: Tensor, b: Tensor) -> bool:
    return a.is_meta or bool(((a == b) | ((a != a) & (b != b))).all())


@contextmanager
def random_state_kept() -> Iterator[None]:
    """Torch's generators are after the block as before: the CPU's, and those of GPUs in use."""
    gpus = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    with torch.random.fork_rng(gpus):
        yield


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Whatever is random inside the block follows from the seed; torch's generators stay as they
    were.
    """
    with random_state_kept():
        torch.manual_seed(seed)
        yield


@contextmanager
def observed(model: nn.Module, *, train: bool) -> Iterator[nn.Module]:
    """``undisturbed``, all of the model in training mode or in eval, and as it was, module by
    module, after the block.
    """
    with modes_kept(model):
        model.train(train)
        with undisturbed(model):
            yield model


class _SyncBatchNormAlone(nn.SyncBatchNorm):
    """What a SyncBatchNorm is without the other ranks, of which no process group would mean all."""

    def forward(self, input: Tensor) -> Tensor:
        return _BatchNorm.forward(self, input)


def _alone(kind: type[nn.SyncBatchNorm]) -> type[nn.SyncBatchNorm]:
    """A class of SyncBatchNorm with that forward in the place of torch's, its own before it."""
    if kind is nn.SyncBatchNorm:
        return _SyncBatchNormAlone
    return type(kind.__name__, (kind, _SyncBatchNormAlone), {})  # pyright: ignore


def copy_to_try(model: nn.Module, *, train: bool = False) -> nn.Module:
    """A copy of a model, in its present mode or in training, that keeps no statistics and speaks to
    no other rank: those are busy with their training, and the batch to be tried is the one given.
    """
    # A process group cannot be copied: the copy has the same, until it has none.
    groups = (getattr(module, "process_group", None) for module in model.modules())
    model = copy.deepcopy(model, {id(group): group for group in groups if group is not None})
    for module in model.modules():
        if isinstance(module, nn.SyncBatchNorm):
            module.__class__ = _alone(type(module))
        elif isinstance(module, RunningTransform | EquilibriumState):
            module.process_group = ""
    if train:
        model.train()
    set_aside_running_statistics(model)
    return model


def in_training(norm: nn.Module | Callable[..., Any]) -> Callable[[Tensor], Tensor]:
    """A layer or function as a map from a batch to its normalized batch, as in training.

    A layer is copied, so that nothing happens to the one that was given; of a function that returns
    ``(y, statistics)``, as those of ``isonorm.functional`` do, y is taken.
    """
    if isinstance(norm, nn.Module):
        norm = copy_to_try(norm, train=True)
    elif not callable(norm):
        raise TypeError(f"expected a layer or a function; got {type(norm).__name__}.")

    def call(x: Tensor) -> Tensor:
        y = norm(x)
        return y[0] if isinstance(y, tuple) else y

    return call
