"""Tiles: the arithmetic of one chunk of examples, on the tensor as it lies.

The explicit path works through an activation chunk by chunk, so that centred copies stay in cache
and never cost memory of the activation's size. A chunk is an (n, K, c, S) view; its *tile* is the
same numbers in the shape the arithmetic wants. Where features are treated one by one that is the
chunk itself, ``Scalar``. Where they are treated together it is a batch of d × m matrices, in
whichever layout is cheapest:

    Rows      (n·K, c, S)    a view, one matrix an example: instances, and many positions in NCHW
              (n, K, c·S)    the same for groups of channels as features
    Gathered  (K, c, n·S)    a copy, made while centring: few positions in NCHW
    Columns   (K, n·S, c)    a view, transposed: channels_last, or no positions

Every layout speaks the same few words, so that the passes in ``plain`` are written once. Operands
are the (b, …) tensors of all problems: ``repeated`` once a pass, and of that the ``part`` a
chunk needs.

Index legend: b problems, d features, m samples.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from math import prod
from typing import Any

import torch
from torch import Tensor

from ..area import Area, Block, shares_memory
from .scratch import Scratch

#: Numbers in a chunk: what a last-level cache holds; on a GPU, enough to hide a launch.
CHUNK_NUMEL = {"cpu": 1 << 20}
CHUNK_NUMEL_ELSEWHERE = 1 << 26

#: Positions from which a CPU's chunks are as large as that. Of shorter rows half as many stay in
#: the cores' own caches, which products of long ones leave anyway.
MIN_LONG_ROW = 512

#: Positions from which a product per example beats gathering examples first.
MIN_ROW_LENGTH = 128

#: Numbers in a group's tile up to which copying a product beats writing it where it belongs: on a
#: CPU torch makes products one by one whose places lie apart.
MOST_TO_COPY = 1 << 13


def chunk_length(shape: Sequence[int], device: torch.device) -> int:
    """Examples in a chunk of an (N, K, c, S) view. Chunks are even: a short last one costs as many
    calls as a full one. And threads that share a chunk's examples should have as many each.
    """
    budget = CHUNK_NUMEL.get(device.type, CHUNK_NUMEL_ELSEWHERE)
    threads = 1
    if device.type == "cpu":
        threads = torch.get_num_threads()
        budget = budget if shape[3] >= MIN_LONG_ROW else budget // 2
    n = shape[0]
    most = max(1, budget // max(1, prod(shape[1:])))
    if most > threads:
        most -= most % threads
    parts = max(1, -(-n // most))
    length = max(1, -(-n // parts))
    return min(-(-length // threads) * threads, n) if length > threads else length


class Layout:
    """The words every layout speaks, for the passes over one (N, K, c, S) view, and the memory they
    share.
    """

    def __init__(
        self, area: Area, view: Tensor, dtype: torch.dtype, example: tuple[int, int, int]
    ) -> None:
        self.area, self.source, self.shape, self.dtype = area, view, view.shape, dtype
        self.spans_batch = area.spans_batch
        self.length = chunk_length(self.shape, view.device)
        n = view.shape[0]
        starts = range(0, n if view.numel() else 0, self.length)
        self.chunks = [slice(i, min(i + self.length, n)) for i in starts]
        self.pieces = self.cut(view)
        # Problems that one example belongs to, and their features and samples within it.
        self.p, self.d, self.m = example
        self.room = Scratch(view, dtype).room  # the same for every chunk, so that it stays in cache
        # What was centred last: the chunk, the mean and the tile.
        self._centred: tuple[Tensor, Tensor, Tensor] | None = None

    def cut(self, view: Tensor) -> tuple[Tensor, ...]:
        """The chunks of an (N, K, c, S) view; of nothing there are none."""
        if len(self.chunks) < 2:
            return (view,) * len(self.chunks)
        return view.split_with_sizes([rows.stop - rows.start for rows in self.chunks])

    def centred_tiles(
        self, mean: Tensor | None, *views: Tensor, again: bool = False
    ) -> Iterator[tuple[Any, ...]]:
        """Each chunk's examples, their tile less a (b, d) mean, and their part of other views.

        A pass that comes ``again`` walks back from where the one before has ended: with the same
        mean it finds that tile made, and what belongs to it in cache.
        """
        walk = list(zip(self.chunks, self.pieces, *map(self.cut, views), strict=True))
        for rows, chunk, *others in reversed(walk) if again else walk:
            if mean is None:
                yield rows, self.tile(chunk), *others
            else:
                shared = self.spans_batch or len(self.chunks) == 1
                own = mean if shared else mean[self.problems(rows)]
                yield rows, self.centred_tile(chunk, own), *others

    def centred_tile(self, chunk: Tensor, mean: Tensor) -> Tensor:
        """The tile of one of the pieces less the mean of its problems, until the next is asked
        for.
        """
        if self._centred is None or self._centred[0] is not chunk or self._centred[1] is not mean:
            self._centred = chunk, mean, self.centred(chunk, mean)
        return self._centred[2]

    def joined(self, parts: list[Tensor]) -> Tensor:
        """One (b, …) tensor from the chunks' own: their sum where they share problems. May use
        the memory of the first.
        """
        if len(parts) == 1:
            return parts[0]
        return reduce(Tensor.add_, parts) if self.spans_batch else torch.cat(parts)

    def problems(self, rows: slice) -> slice:
        """The problems a chunk belongs to: all of them where the area spans the batch."""
        if self.spans_batch:
            return slice(None)
        return slice(rows.start * self.p, rows.stop * self.p)

    def repeated(self, operand: Tensor, purpose: str) -> Tensor:
        """A (b, d, …) operand in the form ``part`` cuts, until the next for the same purpose."""
        return operand

    def part(self, operand: Tensor, rows: slice) -> Tensor:
        """What a chunk needs of a repeated operand."""
        return operand[self.problems(rows)]

    def view(self, chunk: Tensor) -> Tensor | None:
        """The chunk as a tile to write to; None where dtype or strides forbid, or cost too much."""
        if chunk.dtype != self.dtype:
            return None
        tile = self.tile(chunk)
        return tile if shares_memory(tile, chunk) else None

    def tile(self, chunk: Tensor) -> Tensor:
        """The chunk's tile in the working dtype."""
        raise NotImplementedError

    def centred(self, chunk: Tensor, mean: Tensor) -> Tensor:
        """Makes the tile of ``centred_tile``, in the same memory every time."""
        raise NotImplementedError

    def untile(self, tile: Tensor) -> Tensor:
        """The (n, K, c, S) view of a tile."""
        raise NotImplementedError

    def total(self, tile: Tensor) -> Tensor:
        """Σ over samples, (b, d)."""
        raise NotImplementedError

    def outer(self, left: Tensor, right: Tensor, purpose: str) -> Tensor:
        """A chunk's part of Σ left·rightᵀ, in a form that ``add_outer`` adds to, and which
        ``summed`` turns into (b, d, d); until the next for the same purpose.
        """
        raise NotImplementedError

    def add_outer(self, left: Tensor, right: Tensor, to: Tensor) -> None:
        """The same, added to that of a chunk before, which is not shorter."""
        raise NotImplementedError

    def summed(self, sums: Tensor) -> Tensor:
        """Sums of ``outer``, or over each example's samples, over all that share a problem."""
        return sums

    def mean(self, chunk: Tensor) -> Tensor:
        """(b, d) means over a chunk's own samples."""
        total = chunk.sum(self.area.axes("m"), dtype=self.dtype)
        return total.div_(chunk.numel() / total.numel()).reshape(-1, self.d)

    def product(
        self, matrix: Tensor, tile: Tensor, shift: Tensor | None, out: Tensor | None = None
    ) -> Tensor:
        """matrix·tile + shift, of a chunk's parts of (b, d, d) and (b, d, 1) operands."""
        if shift is None:
            return torch.bmm(matrix, tile, out=out)
        return torch.baddbmm(shift, matrix, tile, out=out)

    def add_product(self, matrix: Tensor, tile: Tensor, to: Tensor) -> None:
        to.baddbmm_(matrix, tile)

    def write(
        self, chunk: Tensor, *terms: tuple[Tensor, Tensor], shift: Tensor | None = None
    ) -> None:
        """chunk = Σ matrix·tile + shift, in place where the chunk's dtype and strides allow."""
        first, *more = terms
        target = self.view(chunk)
        total = self.product(*first, shift, out=target)
        for term in more:
            self.add_product(*term, to=total)
        if target is None:
            chunk.copy_(self.untile(total))


class Scalar(Layout):
    """d = 1: a tile is the chunk itself, and every product is elementwise."""

    def _broadcast(self, operand: Tensor) -> Tensor:
        n = 1 if self.spans_batch else operand.shape[0] // self.p
        return operand.reshape(n, *self.area.statistic_shape(self.shape)[1:])

    def part(self, operand: Tensor, rows: slice) -> Tensor:
        return self._broadcast(operand[self.problems(rows)])

    def tile(self, chunk: Tensor) -> Tensor:
        return chunk.to(self.dtype)

    def centred(self, chunk: Tensor, mean: Tensor) -> Tensor:
        return chunk - self._broadcast(mean)  # in the chunk's own strides

    def untile(self, tile: Tensor) -> Tensor:
        return tile

    def total(self, tile: Tensor) -> Tensor:
        return tile.sum(self.area.axes("m")).reshape(-1, 1)

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

    def tile(self, chunk: Tensor) -> Tensor:
        return chunk.to(self.dtype).reshape(-1, self.d, self.m)

    def centred(self, chunk: Tensor, mean: Tensor) -> Tensor:
        rows = chunk.reshape(-1, self.p, self.d, self.m)
        room = self.room("centred", rows.shape)
        torch.sub(rows, mean.view(-1, self.p, self.d, 1), out=room)
        return room.view(-1, self.d, self.m)

    def untile(self, tile: Tensor) -> Tensor:
        return tile.view(-1, *self.shape[1:])

    def total(self, tile: Tensor) -> Tensor:
        return self.summed(tile.sum(-1))

    def outer(self, left: Tensor, right: Tensor, purpose: str) -> Tensor:
        room = None  # what is not summed is the result
        if self.spans_batch:
            room = self.room(purpose, (*left.shape[:2], right.shape[1]))
        return torch.bmm(left, right.mT, out=room)

    def add_outer(self, left: Tensor, right: Tensor, to: Tensor) -> None:
        to[: left.shape[0]].baddbmm_(left, right.mT)

    def summed(self, sums: Tensor) -> Tensor:
        return sums.view(-1, self.p, *sums.shape[1:]).sum(0) if self.spans_batch else sums


class Gathered(Layout):
    """(K, c, n·S): a copy with the samples of all examples side by side.

    A chunk has one tile as it is and one centred at a time, which is enough: what is whitened is
    centred.
    """

    def tile(self, chunk: Tensor) -> Tensor:
        columns = chunk.permute(1, 2, 0, 3)
        return self.room("tile", columns.shape).copy_(columns).flatten(2)

    def centred(self, chunk: Tensor, mean: Tensor) -> Tensor:
        columns = chunk.permute(1, 2, 0, 3)
        room = self.room("centred", columns.shape)
        return torch.sub(columns, mean[..., None, None], out=room).flatten(2)

    def untile(self, tile: Tensor) -> Tensor:
        return tile.unflatten(2, (-1, self.shape[3])).permute(2, 0, 1, 3)

    def total(self, tile: Tensor) -> Tensor:
        return tile.sum(-1)

    def outer(self, left: Tensor, right: Tensor, purpose: str) -> Tensor:
        return torch.bmm(left, right.mT)

    def add_outer(self, left: Tensor, right: Tensor, to: Tensor) -> None:
        to.baddbmm_(left, right.mT)

    def write(
        self, chunk: Tensor, *terms: tuple[Tensor, Tensor], shift: Tensor | None = None
    ) -> None:
        first, *more = terms
        total = self.product(*first, None, out=self.room("total", first[1].shape))
        for term in more:
            self.add_product(*term, to=total)
        if shift is None:
            chunk.copy_(self.untile(total))
        else:  # added while scattering
            add_into(chunk, self.untile(total), shift)


class Columns(Layout):
    """(K, n·S, c): features lie together, so that products act from the right."""

    def view(self, chunk: Tensor) -> Tensor | None:
        n, k, c, s = chunk.shape
        if chunk.is_cpu and k > 1 and n * s * c <= MOST_TO_COPY:
            return None
        return super().view(chunk)

    def tile(self, chunk: Tensor) -> Tensor:
        return chunk.to(self.dtype).permute(1, 0, 3, 2).flatten(1, 2)

    def centred(self, chunk: Tensor, mean: Tensor) -> Tensor:
        return (chunk - mean.unsqueeze(-1)).permute(1, 0, 3, 2).flatten(1, 2)

    def untile(self, tile: Tensor) -> Tensor:
        return tile.unflatten(1, (-1, self.shape[3])).permute(1, 0, 3, 2)

    def total(self, tile: Tensor) -> Tensor:
        return tile.sum(1)

    def outer(self, left: Tensor, right: Tensor, purpose: str) -> Tensor:
        return torch.bmm(left.mT, right)

    def add_outer(self, left: Tensor, right: Tensor, to: Tensor) -> None:
        to.baddbmm_(left.mT, right)

    def product(
        self, matrix: Tensor, tile: Tensor, shift: Tensor | None, out: Tensor | None = None
    ) -> Tensor:
        if shift is None:
            return torch.bmm(tile, matrix.mT, out=out)
        return torch.baddbmm(shift.mT, tile, matrix.mT, out=out)

    def add_product(self, matrix: Tensor, tile: Tensor, to: Tensor) -> None:
        to.baddbmm_(tile, matrix.mT)


def add_into(out: Tensor, values: Tensor, shift: Tensor) -> None:
    """out = values + shift, in one pass where the dtypes allow; may change the values."""
    if out.dtype == values.dtype:
        torch.add(values, shift, out=out)
    else:
        out.copy_(values.add_(shift))


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
