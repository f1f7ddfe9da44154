"""Running statistics estimated anew."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from .freezing import is_frozen, keeps_statistics
from .tree import check_module


def recalibrate(model: nn.Module, loader: Iterable, batches: int | None = None) -> int:
    """Estimates the running statistics of every norm anew, as their average over batches.

    ``loader`` yields inputs: tensors, tuples whose first entry is the input, or dicts of keyword
    arguments. At most ``batches`` are taken (None: all of them); how many there were is returned.
    Norms, isonorm's and torch's, run in training mode, everything else (dropout, …) in eval. Modes
    and momentum are then as before, and if anything fails so are the statistics. Frozen norms keep
    theirs.

    >>> import isonorm
    >>> model = nn.Sequential(nn.Linear(3, 8), isonorm.IterNorm(8)).eval()
    >>> recalibrate(model, [torch.randn(64, 3) for _ in range(4)])
    4
    """
    check_module(model)
    integer = isinstance(batches, int) and not isinstance(batches, bool)
    if batches is not None and not (integer and batches >= 1):
        raise ValueError(f"batches must be a positive integer, or None for all; got {batches!r}.")
    kept = (module for module in model.modules() if keeps_statistics(module))
    norms: list[Any] = [module for module in kept if not is_frozen(module)]
    if not norms:
        raise ValueError("the model has no norm with running statistics that are not frozen.")
    modes = {module: module.training for module in model.modules()}
    momenta = {norm: norm.momentum for norm in norms}
    statistics = [(buffer, buffer.clone()) for norm in norms for buffer in norm.buffers()]
    device = next((p.device for p in model.parameters()), None)
    seen = 0
    try:
        for module in modes:
            module.training = False
        for norm in norms:
            norm.training = True
            norm.momentum = None
            norm.reset_running_stats()
        with torch.no_grad():
            for batch in islice(loader, batches):
                seen += 1
                for norm in norms:
                    if isinstance(norm, nn.modules.instancenorm._InstanceNorm):
                        norm.momentum = 1 / seen  # it has no cumulative average of its own
                _forward(model, batch, device)
        if not seen:
            raise ValueError("the loader yielded no batch to take statistics from.")
    except BaseException:
        with torch.no_grad():
            for buffer, value in statistics:
                buffer.copy_(value)
        raise
    finally:
        for module, mode in modes.items():
            module.training = mode
        for norm, momentum in momenta.items():
            norm.momentum = momentum
            if hasattr(norm, "refresh"):
                norm.refresh()
    return seen


def _forward(model: nn.Module, batch: Any, device: torch.device | None) -> None:
    if isinstance(batch, Mapping):
        model(**{name: _to(value, device) for name, value in batch.items()})
    elif isinstance(batch, tuple | list):
        if not batch:
            raise ValueError("the loader yielded an empty tuple; its first entry is the input.")
        model(_to(batch[0], device))
    else:
        model(_to(batch, device))


def _to(value: Any, device: torch.device | None) -> Any:
    return value.to(device, non_blocking=True) if isinstance(value, Tensor) else value
