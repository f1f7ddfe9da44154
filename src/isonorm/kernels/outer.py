"""Second sums, chunk by chunk: Σ over samples of left·rightᵀ, by whatever layout a chunk has.

Index legend: b problems, d features, m samples.
"""

from __future__ import annotations

import torch
from torch import Tensor

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
        if self.parts and self.ops.spans_batch:
            self.ops.add_outer(left, right, to=self.parts[0])
        else:
            self.parts.append(self.ops.outer(left, right, self.purpose))

    def total(self) -> Tensor:
        return self.ops.joined(self.parts)


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
