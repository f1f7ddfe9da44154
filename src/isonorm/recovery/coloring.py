"""Ψ(x̂) = Γ·x̂ + β with a learnable matrix Γ for each group of channels: whitening's inverse,
learnt.

Siarohin et al., "Whitening and Coloring batch transform for GANs" (2019), group by group.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..area import Area, Block


class Coloring(NamedTuple):
    color: Tensor  # (groups, g, g) Γ; a shorter last group uses the leading corner of its matrix
    bias: Tensor | None  # (C,) β

    name = "coloring"

    @property
    def gain(self) -> Tensor | None:
        return self.color

    @staticmethod
    def initial(num_features: int, area: Area, device=None, dtype=None) -> dict[str, nn.Parameter]:
        blocks = area.partition(num_features)
        groups, size = sum(block.groups for block in blocks), blocks[0].size
        eye = torch.eye(size, device=device, dtype=dtype)
        return {
            "color": nn.Parameter(eye.repeat(groups, 1, 1)),
            "bias": nn.Parameter(torch.zeros(num_features, device=device, dtype=dtype)),
        }

    def matrix(self, block: Block) -> Tensor:
        """Return Γ of a block's groups, (K, c, c); zeros for channels that the last is missing."""
        first = block.start // self.color.shape[-1]
        color = self.color[first : first + block.groups, : block.size, : block.size]
        if not block.missing:
            return color
        there = torch.arange(block.groups * block.size, device=color.device) < block.num_channels()
        there = there.view(block.groups, block.size)
        return torch.where(there.unsqueeze(-1) & there.unsqueeze(-2), color, 0)

    def fold(self, w: Tensor, block: Block) -> Tensor:
        """Γ·W for the (…, K, c, d) rows of a block whose features are its channels."""
        return self.matrix(block).to(w.dtype) @ w

    def scale(self, normalized: Tensor, block: Block) -> Tensor:
        """Γ·x̂ on an (N, K, c, S) view."""
        return self.matrix(block).to(normalized.dtype) @ normalized
