"""What modules with running statistics share: precision, momentum, and when a batch counts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad


class WideBuffers(nn.Module):
    """A module whose floating buffers never become 16-bit."""

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True):
        """Moves and casts like any module, except that running statistics never become 16-bit."""
        before = dict(self._buffers)
        super()._apply(fn, recurse)
        for name, old in before.items():
            new = self._buffers[name]
            if old is None or new is None or not old.is_floating_point():
                continue
            if new.dtype in (torch.float16, torch.bfloat16):
                self._buffers[name] = old.to(device=new.device)
        return self

    def _load_from_state_dict(self, *args, **options) -> None:
        """Loads like any module, except that what ``assign=True`` puts in their place is widened,
        too.
        """
        super()._load_from_state_dict(*args, **options)
        for name, buffer in self._buffers.items():
            if buffer is not None and buffer.dtype in (torch.float16, torch.bfloat16):
                self._buffers[name] = buffer.float()


def wide_dtype(dtype: torch.dtype | None) -> torch.dtype:
    """The dtype of the statistics of a layer whose parameters are of this one; None: torch's
    default.
    """
    double = (dtype or torch.get_default_dtype()) == torch.float64
    return torch.float64 if double else torch.float32


def being_recomputed() -> bool:
    """Whether this forward is activation checkpointing's second one, which runs inside a
    backward pass.
    """
    return not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1


def average_batch(
    tracked: Tensor | None,
    momentum: float | None,
    seen: bool | Tensor,
    running_and_new: Iterable[tuple[Tensor, Tensor]],
) -> None:
    """Moves running statistics towards a batch's, then counts the batch, in place; one that was not
    seen (a tensor, where only the device knows) moves nothing.

    The count comes last: where torch refuses an average, under ``torch.func.vmap``, nothing has
    changed. It may have been taken away, except where a cumulative average needs it.
    """
    if tracked is None and momentum is None:
        raise RuntimeError(
            "momentum=None averages over all batches, but their count, num_batches_tracked, was "
            "taken away: give it back, or set a momentum."
        )
    for running, new in running_and_new:
        if forward_ad._current_level >= 0:  # no_grad leaves tangents, which a statistic has not
            new = forward_ad.unpack_dual(new).primal
        dtype = running.dtype
        rate: Any = momentum
        if tracked is not None and momentum is None:
            rate = 1 / (tracked + seen).clamp(min=1).to(dtype)
        running.lerp_(new.to(dtype), seen.to(dtype) * rate if isinstance(seen, Tensor) else rate)
    if tracked is not None:
        tracked.add_(1 if seen is True else seen)  # += would register the buffer anew
