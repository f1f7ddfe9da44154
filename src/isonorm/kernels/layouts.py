"""The layouts of a tile: how the numbers of a chunk lie as d × m matrices.

    Scalar    (n, K, c, S)    the chunk itself: features one by one
    Rows      (n·K, c, S)     a view, one matrix an example: instances, and many positions in NCHW
              (n, K, c·S)     the same for groups of channels as features
    Gathered  (K, c, n·S)     a copy, made while centering: few positions in NCHW
    Columns   (K, n·S, c)     a view, transposed: channels_last, or no positions

Index legend: b problems, d features, m samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..area import Area, Block
from .tiles import Chunk, Layout, add_into, viewed

#: Positions from which a product per example beats gathering examples first.
MIN_ROW_LENGTH = 128

#: Samples from which a sum of products apart takes no time beside the products.
LONG_PRODUCT = 1 << 11

#: Numbers in a group's tile up to which copying a product beats writing it where it belongs: on a
#: CPU torch makes products one by one whose places lie apart.
MOST_TO_COPY = 1 << 13


class Scalar(Layout):
    """d = 1: a tile is the chunk itself, and every product is elementwise."""

    def _broadcast(self, operand: Tensor) -> Tensor:
        n = 1 if self.spans_batch else operand.shape[0] // self.p
        return operand.reshape(n, *self.area.statistic_shape(self.shape)[1:])

    def part(self, operand: Tensor, rows: slice) -> Tensor:
        return self._broadcast(operand[self.problems(rows)])

    def as_tile(self, values: Tensor) -> Tensor:
        return values

    def split(self, whole: Tensor) -> Sequence[Tensor]:
        return whole.split_with_sizes(self.sizes)

    def made(self, values: Tensor) -> Tensor:
        return values.to(self.dtype)

    def centered(self, chunk: Chunk, mean: Tensor) -> Tensor:
        return chunk.values - self._broadcast(mean)  # in the chunk's own strides

    def untile(self, tile: Tensor) -> Tensor:
        return tile

    def total(self, tile: Tensor) -> Tensor:
        return tile.sum(self.area.axes("m")).reshape(-1, 1)

    def cut_samples(self, tile: Tensor) -> Sequence[Tensor]:
        return [tile]  # torch's own sums are of sums

    def outer(self, left: Tensor, right: Tensor, purpose: str) -> Tensor:
        return (left * right).sum(self.area.axes("m")).reshape(-1, 1, 1)

    def add_outer(self, left: Tensor, right: Tensor, to: Tensor) -> None:
        to += self.outer(left, right, "")

    def product(
        self, matrix: Tensor, tile: Tensor, shift: Tensor | None, out: Tensor | None = None
    ) -> Tensor:
        if shift is None:
            return torch.mul(tile, matrix, out=out)
        return torch.addcmul(shift, tile, matrix, out=out)

    def add_product(self, matrix: Tensor, tile: Tensor, to: Tensor) -> None:
        to.addcmul_(tile, matrix)


class Rows(Layout):
    """(n·p, d, m): one matrix an example, as it lies."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        # Where centered tiles are made: the examples apart, and one after the other.
        self._made: tuple[Tensor, Tensor] | None = None

    def repeated(self, operand: Tensor, purpose: str) -> Tensor:
        if not self.spans_batch or self.length == 1 or self.p == 1:
            return operand
        room = self.room(purpose, (self.length, *operand.shape))
        return room.copy_(operand).flatten(0, 1)

    def part(self, operand: Tensor, rows: slice) -> Tensor:
        if not self.spans_batch:
            return operand[self.problems(rows)]
        n = rows.stop - rows.start
        if self.p == 1:  # one matrix for all examples needs no copies
            return operand.expand(n, *operand.shape[1:])
        return operand if n == self.length else operand[: n * self.p]

    def as_tile(self, values: Tensor) -> Tensor | None:
        if values.stride(3) != 1:  # products would copy it, each anew
            return None
        return viewed(values, (values.shape[0] * self.p, self.d, self.m))

    def split(self, whole: Tensor) -> Sequence[Tensor]:
        return whole.split_with_sizes([n * self.p for n in self.sizes])

    def made(self, values: Tensor) -> Tensor:
        return values.to(self.dtype).reshape(-1, self.d, self.m)

    def centered(self, chunk: Chunk, mean: Tensor) -> Tensor:
        rows = chunk.values
        if not self.spans_batch:  # elsewhere a problem's features are a group's channels
            rows = rows.reshape(-1, self.p, self.d, self.m)
        room = self.room("centered", rows.shape)
        if self._made is None or self._made[0] is not room:
            self._made = room, room.view(-1, self.d, self.m)
        torch.sub(rows, mean.view(-1, self.p, self.d, 1), out=room)
        return self._made[1]

    def untile(self, tile: Tensor) -> Tensor:
        return tile.view(-1, *self.shape[1:])

    def total(self, tile: Tensor) -> Tensor:
        return tile.sum(-1)

    def outer(self, left: Tensor, right: Tensor, purpose: str) -> Tensor:
        room = None  # what is not summed is the result
        if self.spans_batch and left.dtype == self.dtype:
            room = self.room(purpose, (*left.shape[:2], right.shape[1]))
        return torch.bmm(left, right.mT, out=room)

    def add_outer(self, left: Tensor, right: Tensor, to: Tensor) -> None:
        if to.shape[0] != left.shape[0]:
            to = to[: left.shape[0]]
        _add_product(to, left, right.mT)

    def joined(self, parts: list[Tensor]) -> Tensor:
        found = parts[0] if len(parts) == 1 else torch.cat(parts)
        return found.view(-1, self.p, *found.shape[1:]).sum(0) if self.spans_batch else found


class Gathered(Layout):
    """(K, c, n·S): a copy with the samples of all examples side by side.

    A chunk has one tile as it is and one centered at a time, which is enough: what is whitened is
    centered.
    """

    def as_tile(self, values: Tensor) -> None:
        return None

    def made(self, values: Tensor) -> Tensor:
        columns = values.permute(1, 2, 0, 3)
        return self.room("tile", columns.shape).copy_(columns).flatten(2)

    def centered(self, chunk: Chunk, mean: Tensor) -> Tensor:
        columns = chunk.values.permute(1, 2, 0, 3)
        room = self.room("centered", columns.shape)
        return torch.sub(columns, mean[..., None, None], out=room).flatten(2)

    def untile(self, tile: Tensor) -> Tensor:
        return tile.unflatten(2, (-1, self.shape[3])).permute(2, 0, 1, 3)

    def total(self, tile: Tensor) -> Tensor:
        return tile.sum(-1)

    def outer(self, left: Tensor, right: Tensor, purpose: str) -> Tensor:
        return torch.bmm(left, right.mT)

    def add_outer(self, left: Tensor, right: Tensor, to: Tensor) -> None:
        _add_product(to, left, right.mT)

    def write(
        self, chunk: Chunk, *terms: tuple[Tensor, Tensor], shift: Tensor | None = None
    ) -> None:
        first, *more = terms
        total = self.product(*first, None, out=self.room("total", first[1].shape))
        for term in more:
            self.add_product(*term, to=total)
        if shift is None:
            chunk.values.copy_(self.untile(total))
        else:  # added while scattering
            add_into(chunk.values, self.untile(total), shift)


class Columns(Layout):
    """(K, n·S, c): features lie together, so that products act from the right."""

    along = 1

    def target(self, chunk: Chunk) -> Tensor | None:
        n, k, c, s = chunk.values.shape
        if chunk.values.is_cpu and k > 1 and n * s * c <= MOST_TO_COPY:
            return None
        return chunk.tile

    def as_tile(self, values: Tensor) -> Tensor | None:
        n, k, c, s = values.shape
        return viewed(values.permute(1, 0, 3, 2), (k, n * s, c))

    def split(self, whole: Tensor) -> Sequence[Tensor]:
        return whole.split_with_sizes([n * self.shape[3] for n in self.sizes], 1)

    def made(self, values: Tensor) -> Tensor:
        return values.to(self.dtype).permute(1, 0, 3, 2).flatten(1, 2)

    def centered(self, chunk: Chunk, mean: Tensor) -> Tensor:
        return (chunk.values - mean.unsqueeze(-1)).permute(1, 0, 3, 2).flatten(1, 2)

    def untile(self, tile: Tensor) -> Tensor:
        return tile.unflatten(1, (-1, self.shape[3])).permute(1, 0, 3, 2)

    def total(self, tile: Tensor) -> Tensor:
        return tile.sum(1)

    def outer(self, left: Tensor, right: Tensor, purpose: str) -> Tensor:
        return torch.bmm(left.mT, right)

    def add_outer(self, left: Tensor, right: Tensor, to: Tensor) -> None:
        _add_product(to, left.mT, right)

    def product(
        self, matrix: Tensor, tile: Tensor, shift: Tensor | None, out: Tensor | None = None
    ) -> Tensor:
        if shift is None:
            return torch.bmm(tile, matrix.mT, out=out)
        return torch.baddbmm(shift.mT, tile, matrix.mT, out=out)

    def add_product(self, matrix: Tensor, tile: Tensor, to: Tensor) -> None:
        to.baddbmm_(tile, matrix.mT)


def _add_product(to: Tensor, left: Tensor, right: Tensor) -> None:
    """to += left·right. A long product is made apart: a CPU's libraries add it to what is there
    block by block, and each time round it to that sum's precision.
    """
    if not left.is_cpu or left.shape[-1] < LONG_PRODUCT:
        to.baddbmm_(left, right)
    else:
        to += torch.bmm(left, right)


def layout(area: Area, view: Tensor, dtype: torch.dtype) -> Layout:
    """The cheapest layout for an (N, K, c, S) view, by its strides and sizes."""
    _, k, c, s = view.shape
    example = area.problem_shape(Block(0, k, c), 1, s)
    if example[1] == 1:
        kind = Scalar
    elif not area.spans_batch:
        kind = Rows
    elif view.stride(2) == 1:
        kind = Columns
    else:
        kind = Rows if s >= MIN_ROW_LENGTH else Gathered
    return kind(area, view, dtype, example)
