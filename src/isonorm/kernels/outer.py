"""Second sums, chunk by chunk: Σ over samples of left·rightᵀ, by whatever layout a chunk has.

Index legend: b problems, d features, m samples.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..statistics import adds_in_float64
from .layouts import Rows
from .tiles import Layout

#: Features from which three quarters of a symmetric product, in two calls, beat the whole in one.
MIN_TO_HALVE = 64


class Outer:
    """Σ over samples of left·rightᵀ, (b, d, d), chunk by chunk: added up where chunks share
    problems, side by side elsewhere.
    """

    def __init__(self, ops: Layout, purpose: str = "outer") -> None:
        self.ops, self.purpose = ops, purpose
        self.parts: list[Tensor] = []

    def add(self, left: Tensor, right: Tensor) -> None:
        if adds_in_float64(self.ops.d, left):
            left, right = left.double(), right.double()
        first = not (self.parts and self.ops.spans_batch)
        for part in zip(self.ops.cut_samples(left), self.ops.cut_samples(right), strict=True):
            if first:
                self.parts.append(self.ops.outer(*part, self.purpose))
            else:
                self.ops.add_outer(*part, to=self.parts[-1])
            first = False

    def total(self) -> Tensor:
        return self.ops.joined(self.parts).to(self.ops.dtype)


class Square:
    """Σ over samples of tile·tileᵀ, in the same way. Of large ones in rows three quarters: the left
    columns and the lower right corner.
    """

    def __init__(self, ops: Layout) -> None:
        large = isinstance(ops, Rows) and ops.spans_batch and ops.d >= MIN_TO_HALVE
        self.half = ops.d // 2 if large and ops.source.is_cpu else 0
        self.columns, self.corner = Outer(ops, "columns"), Outer(ops, "corner")

    def add(self, tile: Tensor) -> None:
        if not self.half:
            self.columns.add(tile, tile)
            return
        left, right = tile[:, : self.half], tile[:, self.half :]
        self.columns.add(tile, left)
        self.corner.add(right, right)

    def total(self) -> Tensor:
        columns = self.columns.total()
        if not self.half:
            return columns
        turned = columns[:, self.half :].mT  # the upper right block, as below the diagonal
        return torch.cat([columns, torch.cat([turned, self.corner.total()], dim=1)], dim=2)
