"""What the tools of this package take as data: a tensor of examples, or an iterable of batches."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor


def inputs_of(batch: Any) -> Tensor:
    """The examples of a batch: itself, or the first of a tuple or list such as (images, labels)."""
    first = batch[0] if isinstance(batch, tuple | list) and batch else batch
    if not isinstance(first, Tensor):
        raise TypeError(
            "a batch must be a tensor of examples, or a tuple or list that begins with one; "
            f"got {type(batch).__name__}."
        )
    return first


def examples(data: Tensor | Iterable[Any]) -> Tensor:
    """All examples of a tensor or of one pass over a loader, (M, …)."""
    x = (
        data
        if isinstance(data, Tensor)
        else torch.cat([inputs_of(batch) for batch in data] or [torch.empty(0, 0)])
    )
    if x.dim() < 2 or len(x) == 0:
        raise ValueError(
            f"data must hold examples (M, C, *), at least one; got shape {tuple(x.shape)}."
        )
    return x


def draw_distinct(
    population: int, count: int, rows: int, generator: torch.Generator | None
) -> Tensor:
    """(rows, count) indices below ``population``, each row without repetition and in random order.

    >>> sorted(draw_distinct(3, 3, 1, None)[0].tolist())
    [0, 1, 2]
    """
    if 4 * count >= population:
        return torch.rand(rows, population, generator=generator).argsort(-1)[:, :count]
    # The first `count` different values of a stream of draws: few repeat, and only those are
    # drawn again.
    picks = torch.randint(population, (rows, count), generator=generator)
    while True:
        picks = picks.sort(-1).values
        repeated = torch.zeros_like(picks, dtype=torch.bool)
        repeated[:, 1:] = picks[:, 1:] == picks[:, :-1]
        missing = int(repeated.sum())
        if not missing:
            order = torch.rand(rows, count, generator=generator).argsort(-1)
            return picks.gather(1, order)
        picks[repeated] = torch.randint(population, (missing,), generator=generator)
