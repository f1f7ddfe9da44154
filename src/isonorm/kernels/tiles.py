"""Tiles: the arithmetic of one chunk of examples, on the tensor as it lies.

The explicit path works through an activation chunk by chunk, so that centred copies stay in cache
and never cost memory of the activation's size. A chunk is an (N, K, c, S) view; its *tile* is the
same numbers in the shape the arithmetic wants. Where features are treated one by one that is
elementwise, ``Scalar``; where they are treated together it is products of d × m matrices,
``Matrix``, in whichever of three layouts needs no copy:

    rows        (n, K, c, S)   samples contiguous: NCHW with many positions
    columns     (K, c, n·S)    features contiguous: channels_last, or no positions at all
    gathered    (K, c, n·S)    neither: few positions in NCHW, where one copy is cheaper than many
    small products

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

#: Positions from which a product per example is efficient (below, examples are gathered first).
MIN_ROW_LENGTH = 32


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

    def tile(self, chunk: Tensor, dtype: torch.dtype) -> Tensor:
        return chunk.to(dtype)

    def untile(self, tile: Tensor) -> Tensor:
        return tile

    def column(self, vector: Tensor) -> Tensor:
        """(b, 1) numbers, shaped to broadcast over a tile."""
        return vector.reshape(self.shape)

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

    def __init__(self, area: Area, chunk: Tensor, by_rows: bool) -> None:
        n, k, _, _ = self.chunk_shape = tuple(chunk.shape)
        self.sums_examples = False  # whether a product per example still has to be added up
        if area.name == "group":
            self.kind = "flat"
            self.batch = (n,)
        elif area.name == "instance":
            self.kind = "rows"
            self.batch = (n, k)
        elif by_rows:
            self.kind, self.sums_examples = "rows", True
            self.batch = (k,)
        else:
            self.kind = "columns"
            self.batch = (k,)

    def tile(self, chunk: Tensor, dtype: torch.dtype) -> Tensor:
        chunk = chunk.to(dtype)
        if self.kind == "rows":
            return chunk
        if self.kind == "flat":
            return chunk.flatten(2)
        return chunk.permute(1, 2, 0, 3).flatten(
            2
        )  # a view of features-last memory, a gathered copy otherwise

    def untile(self, tile: Tensor) -> Tensor:
        n, _, c, s = self.chunk_shape
        if self.kind == "rows":
            return tile
        if self.kind == "flat":
            return tile.unflatten(2, (c, s))
        return tile.unflatten(2, (n, s)).permute(2, 0, 1, 3)

    def column(self, vector: Tensor) -> Tensor:
        """(b, d) numbers, shaped to broadcast over a tile."""
        return vector.reshape(*self.batch, vector.shape[-1], 1)

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
        if self.kind == "columns":
            return (tile.mT @ matrix.mT).mT  # features stay contiguous
        return matrix @ tile

    def add_product(self, matrix: Tensor, tile: Tensor, to: Tensor) -> Tensor:
        matrix = matrix.reshape(*self.batch, *matrix.shape[-2:])
        if self.kind == "columns":
            to.mT.baddbmm_(tile.mT, matrix.mT)
            return to
        return to.add_(matrix @ tile)


def arithmetic(area: Area, chunk: Tensor, by_rows: bool | None = None) -> Scalar | Matrix:
    """The arithmetic for a chunk of an area; the layout is the caller's choice or follows from
    the chunk's strides.
    """
    if "d" not in area.roles:
        return Scalar(area, chunk)
    if by_rows is None:
        by_rows = chunk.shape[3] >= MIN_ROW_LENGTH and chunk.stride(2) != 1
    return Matrix(area, chunk, by_rows)
