"""Ψ(x̂) = γ ⊙ x̂ + β, per channel: what BatchNorm, DBN and IterNorm learn."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..area import Area, Block


class Affine(NamedTuple):
    weight: Tensor | None  # (C,) γ
    bias: Tensor | None  # (C,) β

    name = "affine"

    @property
    def gain(self) -> Tensor | None:
        return self.weight

    @staticmethod
    def initial(num_features: int, area: Area, device=None, dtype=None) -> dict[str, nn.Parameter]:
        return {
            "weight": nn.Parameter(torch.ones(num_features, device=device, dtype=dtype)),
            "bias": nn.Parameter(torch.zeros(num_features, device=device, dtype=dtype)),
        }

    def fold(self, w: Tensor, block: Block) -> Tensor:
        """diag(γ)·W for the (…, K, c, d) rows of a block whose features are its channels."""
        if self.weight is None:
            return w
        return w * block.part(self.weight).to(w.dtype).view(block.groups, block.size, 1)

    def scale(self, normalized: Tensor, block: Block) -> Tensor:
        """γ ⊙ x̂ on an (N, K, c, S) view."""
        return (
            normalized
            if self.weight is None
            else normalized * block.per_channel(self.weight).to(normalized.dtype)
        )
