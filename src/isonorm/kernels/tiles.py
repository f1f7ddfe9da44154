"""Tiles: the arithmetic of one chunk of examples, on the tensor as it lies.

The explicit path works through an activation chunk by chunk, so that centered copies stay in cache
and never cost memory of the activation's size. A chunk is an (n, K, c, S) view; its *tile* is the
same numbers in the shape the arithmetic wants. Where features are treated one by one that is the
chunk itself; where they are treated together it is a batch of d × m matrices, in whichever of the
``layouts`` is cheapest.

Every layout speaks the same few words, so that the passes in ``plain`` are written once. Operands
are the (b, …) tensors of all problems: ``repeated`` once a pass, and of that the ``part`` a
chunk needs.

Index legend: b problems, d features, m samples.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..area import Area
from ..statistics import MOST_SAMPLES
from .choice import is_watched
from .scratch import Scratch

#: Numbers in a chunk: what a last-level cache holds; on a GPU, enough to hide a launch.
CHUNK_NUMEL = {"cpu": 1 << 20}
CHUNK_NUMEL_ELSEWHERE = 1 << 26

#: Positions from which a CPU's chunks are as large as that. Of shorter rows half as many stay in
#: the cores' own caches, which products of long ones leave anyway.
MIN_LONG_ROW = 512

#: Means of so many standard deviations at most are taken off products, instead of every number:
#: that costs two bits of the products' rounding, and spares a copy of the activation.
MOST_DEVIATIONS = 4

#: Numbers below which that copy takes no longer than the question where the means are.
FEWEST_TO_ASK = 1 << 18


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


class Chunk(NamedTuple):
    """Some examples of an (N, K, c, S) view, and their tile where it is a view of them as well."""

    rows: slice
    values: Tensor  # (n, K, c, S)
    tile: Tensor | None


class Layout:
    """The words every layout speaks, for the passes over one (N, K, c, S) view, and the memory they
    share.
    """

    #: The axis of a tile that samples are on.
    along = -1

    def __init__(
        self, area: Area, view: Tensor, dtype: torch.dtype, example: tuple[int, int, int]
    ) -> None:
        self.area, self.source, self.shape, self.dtype = area, view, view.shape, dtype
        self.spans_batch = area.spans_batch
        # Problems that one example belongs to, and their features and samples within it.
        self.p, self.d, self.m = example
        n, self.length = view.shape[0], chunk_length(self.shape, view.device)
        starts = range(0, n if view.numel() else 0, self.length)
        self.rows = [slice(i, min(i + self.length, n)) for i in starts]
        self.sizes = [rows.stop - rows.start for rows in self.rows]
        self.chunks = self.cut(view)
        # What was centered last: the chunk, the mean and the tile.
        self._centered: tuple[Chunk, Tensor, Tensor] | None = None
        # Whether values may decide what is done: elsewhere to ask for one is to wait for it, and a
        # tracer's have none.
        self.tells = view.device.type == "cpu" and not is_watched(view)
        # The same room for every chunk, so that it stays in cache. A tracer or a dispatch mode may
        # keep what it sees, so that its memory must not be used again.
        self.room = Scratch(view, dtype, keeps=self.tells).room

    def spares_centering(self, mean: Tensor, cov: Tensor) -> bool:
        """Whether products may take the tiles as they lie, and have the mean's share taken off
        afterwards: where tiles are views, so that it is centering that copies, and means near zero.
        """
        if not self.tells or self.source.numel() < FEWEST_TO_ASK:
            return False
        if not self.chunks or any([chunk.tile is None for chunk in self.chunks]):
            return False
        variance = cov.diagonal(dim1=-2, dim2=-1)
        excess = torch.sub(mean.square(), variance, alpha=MOST_DEVIATIONS**2)
        return excess.max().item() <= 0

    def cut(self, view: Tensor) -> list[Chunk]:
        """The chunks of an (N, K, c, S) view; of nothing there are none."""
        if not self.rows:
            return []
        whole = self.as_tile(view) if view.dtype == self.dtype else None
        if len(self.rows) == 1:
            return [Chunk(self.rows[0], view, whole)]
        values = view.split_with_sizes(self.sizes)
        tiles: Iterable[Tensor | None] = [None] * len(values)
        if whole is not None:
            tiles = self.split(whole)
        elif view.dtype == self.dtype:
            tiles = map(self.as_tile, values)
        return list(map(Chunk, self.rows, values, tiles))

    def centered_tiles(
        self, mean: Tensor | None, *views: Tensor, again: bool = False
    ) -> Iterator[tuple[Any, ...]]:
        """Each chunk's examples, their tile less a (b, d) mean, and their chunks of other views.

        A pass that comes ``again`` walks back from where the one before has ended: with the same
        mean it finds that tile made, and what belongs to it in cache.
        """
        walk = list(zip(self.chunks, *map(self.cut, views), strict=True))
        for chunk, *others in reversed(walk) if again else walk:
            if mean is None:
                yield chunk.rows, self.tile(chunk), *others
            else:
                shared = self.spans_batch or len(walk) == 1
                own = mean if shared else mean[self.problems(chunk.rows)]
                yield chunk.rows, self.centered_tile(chunk, own), *others

    def centered_tile(self, chunk: Chunk, mean: Tensor) -> Tensor:
        """The tile of one of the chunks less the mean of its problems, until the next is asked
        for.
        """
        if (
            self._centered is None
            or self._centered[0] is not chunk
            or self._centered[1] is not mean
        ):
            self._centered = chunk, mean, self.centered(chunk, mean)
        return self._centered[2]

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

    def tile(self, chunk: Chunk) -> Tensor:
        """The chunk's tile in the working dtype."""
        return self.made(chunk.values) if chunk.tile is None else chunk.tile

    def target(self, chunk: Chunk) -> Tensor | None:
        """The chunk as a tile to write to; None where dtype or strides forbid, or cost too much."""
        return chunk.tile

    def as_tile(self, values: Tensor) -> Tensor | None:
        """The tile of an (n, K, c, S) view as a view; None where strides forbid."""
        raise NotImplementedError

    def split(self, whole: Tensor) -> Sequence[Tensor]:
        """The chunks' tiles from that of all examples."""
        raise NotImplementedError

    def made(self, values: Tensor) -> Tensor:
        """The tile of an (n, K, c, S) view in the working dtype, wherever it may lie."""
        raise NotImplementedError

    def centered(self, chunk: Chunk, mean: Tensor) -> Tensor:
        """Makes the tile of ``centered_tile``, in the same memory every time."""
        raise NotImplementedError

    def untile(self, tile: Tensor) -> Tensor:
        """The (n, K, c, S) view of a tile."""
        raise NotImplementedError

    def total(self, tile: Tensor) -> Tensor:
        """A chunk's part of Σ over samples, which ``joined`` turns into (b, d)."""
        raise NotImplementedError

    def cut_samples(self, tile: Tensor) -> Sequence[Tensor]:
        """The tile in parts of so few samples that products of them may be added up one by one."""
        if tile.dtype != torch.float32 or tile.numel() <= MOST_SAMPLES:
            return [tile]
        return tile.split(MOST_SAMPLES, self.along)

    def outer(self, left: Tensor, right: Tensor, purpose: str) -> Tensor:
        """A chunk's part of Σ left·rightᵀ, in a form that ``add_outer`` adds to, and which
        ``joined`` turns into (b, d, d); until the next for the same purpose.
        """
        raise NotImplementedError

    def add_outer(self, left: Tensor, right: Tensor, to: Tensor) -> None:
        """The same, added to that of a chunk before, which is not shorter."""
        raise NotImplementedError

    def joined(self, parts: list[Tensor]) -> Tensor:
        """One (b, …) tensor from the chunks' parts: their sum where they share problems. May use
        the memory of the first.
        """
        if len(parts) == 1:
            return parts[0]
        return reduce(Tensor.add_, parts) if self.spans_batch else torch.cat(parts)

    def mean(self, chunk: Chunk) -> Tensor:
        """(b, d) means over a chunk's own samples."""
        total = chunk.values.sum(self.area.axes("m"), dtype=self.dtype)
        return total.div_(chunk.values.numel() / total.numel()).reshape(-1, self.d)

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
        self, chunk: Chunk, *terms: tuple[Tensor, Tensor], shift: Tensor | None = None
    ) -> None:
        """chunk = Σ matrix·tile + shift, in place where the chunk's dtype and strides allow."""
        first, *more = terms
        target = self.target(chunk)
        total = self.product(*first, shift, out=target)
        for term in more:
            self.add_product(*term, to=total)
        if target is None:
            chunk.values.copy_(self.untile(total))


def viewed(t: Tensor, shape: tuple[int, ...]) -> Tensor | None:
    """A tensor in another shape without a copy; None where its strides forbid."""
    try:
        return t.view(shape)
    except RuntimeError:
        return None


def add_into(out: Tensor, values: Tensor, shift: Tensor) -> None:
    """out = values + shift, in one pass where the dtypes allow; may change the values."""
    if out.dtype == values.dtype:
        torch.add(values, shift, out=out)
    else:
        out.copy_(values.add_(shift))
