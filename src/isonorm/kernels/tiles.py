"""Tiles: the arithmetic of one chunk of examples, on the tensor as it lies.

The explicit path works through an activation chunk by chunk, so that centred copies stay in cache
and never cost memory of the activation's size. A chunk is an (N, K, c, S) view; its *tile* is the
same numbers, centred, in the shape the arithmetic wants. Where features are treated one by one that
is elementwise, ``Scalar``; where they are treated together it is products of d × m matrices,
``Matrix``, in whichever layout is cheapest:

    rows      (n, K, c, S)   a product per example: instances, and long rows of positions in NCHW
    columns   (K, c, n·S)    a view of features that lie together: channels_last, or no positions
    gathered  (K, c, n·S)    a copy, made while centring: short rows of positions in NCHW
    flat      (n, K, c·S)    groups of channels as features

Index legend: b problems, d features, m samples.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from ..area import Area

#: Numbers in a chunk: about what a core's share of the last-level cache holds; on a GPU, enough to
#: hide a launch.
CHUNK_NUMEL = {"cpu": 1 << 18}
CHUNK_NUMEL_ELSEWHERE = 1 << 26

#: Positions for each feature from which a product per example beats gathering examples first.
MIN_ROW_LENGTH = 16


def chunks(view: Tensor) -> Iterator[slice]:
    """Slices over the examples of an (N, K, c, S) view."""
    budget = CHUNK_NUMEL.get(view.device.type, CHUNK_NUMEL_ELSEWHERE)
    n = view.shape[0]
    rows = max(1, budget // max(1, view[:1].numel()))
    parts = max(1, -(-n // rows))
    rows = -(-n // parts)  # even chunks: a short last one costs as many launches as a full one
    for start in range(0, n, max(rows, 1)):
        yield slice(start, min(start + rows, n))


class Scalar:
    """d = 1: a tile is the chunk itself, and every product is elementwise."""

    def __init__(self, area: Area, chunk: Tensor) -> None:
        self.axes = area.axes("m")
        self.shape = area.statistic_shape(chunk)

    def tile(self, chunk: Tensor, dtype: torch.dtype, mean: Tensor | None = None) -> Tensor:
        """The chunk's tile, less a (b, 1) mean."""
        chunk = chunk.to(dtype)
        return chunk if mean is None else chunk - mean.reshape(self.shape)

    def untile(self, tile: Tensor) -> Tensor:
        return tile

    def total(self, tile: Tensor) -> Tensor:
        """Σ over samples, (b, 1)."""
        return tile.sum(self.axes).reshape(-1, 1)

    def outer(self, left: Tensor, right: Tensor) -> Tensor:
        """Σ over samples of left·right, (b, 1, 1)."""
        return (left * right).sum(self.axes).reshape(-1, 1, 1)

    def product(self, matrix: Tensor, tile: Tensor) -> Tensor:
        return tile * matrix.reshape(self.shape)

    def add_product(self, matrix: Tensor, tile: Tensor, to: Tensor) -> Tensor:
        return to.addcmul_(tile, matrix.reshape(self.shape))


class Matrix:
    """d ≥ 1: a tile is (…, d, m), and products are matrix products."""

    def __init__(self, area: Area, chunk: Tensor, layout: str) -> None:
        n, k, _, _ = self.chunk_shape = tuple(chunk.shape)
        self.layout = layout
        self.batch = {"instance": (n, k), "group": (n,)}.get(area.name, (k,))
        # whether a product per example still has to be added up
        self.sums_examples = layout == "rows" and area.spans_batch

    def tile(self, chunk: Tensor, dtype: torch.dtype, mean: Tensor | None = None) -> Tensor:
        """The chunk's tile, less a (b, d) mean."""
        if self.layout == "gathered":
            view = chunk.permute(1, 2, 0, 3)
            copy = torch.empty(view.shape, dtype=dtype, device=chunk.device)
            if mean is None:
                return copy.copy_(view).flatten(2)
            return torch.sub(view, mean[..., None, None], out=copy).flatten(2)
        chunk = chunk.to(dtype)
        if self.layout == "flat":
            tile = chunk.flatten(2)
        else:
            tile = chunk if self.layout == "rows" else chunk.permute(1, 2, 0, 3).flatten(2)
        return tile if mean is None else tile - mean.reshape(*self.batch, mean.shape[-1], 1)

    def untile(self, tile: Tensor) -> Tensor:
        n, _, c, s = self.chunk_shape
        if self.layout == "rows":
            return tile
        if self.layout == "flat":
            return tile.unflatten(2, (c, s))
        return tile.unflatten(2, (n, s)).permute(2, 0, 1, 3)

    def total(self, tile: Tensor) -> Tensor:
        """Σ over samples, (b, d)."""
        summed = tile.sum(-1)
        return summed.sum(0) if self.sums_examples else summed.reshape(-1, summed.shape[-1])

    def outer(self, left: Tensor, right: Tensor) -> Tensor:
        """Σ over samples of left·rightᵀ, (b, d, d)."""
        product = left @ right.mT
        return product.sum(0) if self.sums_examples else product.reshape(-1, *product.shape[-2:])

    def product(self, matrix: Tensor, tile: Tensor) -> Tensor:
        matrix = matrix.reshape(*self.batch, *matrix.shape[-2:])
        if self.layout == "columns":
            return (tile.mT @ matrix.mT).mT  # features stay together
        return matrix @ tile

    def add_product(self, matrix: Tensor, tile: Tensor, to: Tensor) -> Tensor:
        matrix = matrix.reshape(*self.batch, *matrix.shape[-2:])
        if self.layout == "columns":
            to.mT.baddbmm_(tile.mT, matrix.mT)
            return to
        return to.baddbmm_(matrix, tile) if to.dim() == 3 else to.add_(matrix @ tile)


def arithmetic(area: Area, chunk: Tensor, by_rows: bool | None = None) -> Scalar | Matrix:
    """The arithmetic for a chunk of an area.

    The layout follows from the chunk's strides and sizes, or, where a graph must not depend on
    those, from the caller.
    """
    if "d" not in area.roles:
        return Scalar(area, chunk)
    if area.name == "group":
        return Matrix(area, chunk, "flat")
    if by_rows is None:
        by_rows = chunk.stride(2) != 1 and chunk.shape[3] >= MIN_ROW_LENGTH * chunk.shape[2]
        layout = "columns" if chunk.stride(2) == 1 else "gathered"
    else:
        layout = "columns"
    return Matrix(area, chunk, "rows" if by_rows or area.name == "instance" else layout)
