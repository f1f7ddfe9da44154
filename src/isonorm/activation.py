"""What may follow a normalization within the same layer: a residual added, then an activation."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

ACTIVATIONS = {"identity": lambda y: y, "relu": F.relu, "silu": F.silu}


def finish(y: Tensor, act: str | None, residual: Tensor | None) -> Tensor:
    """act(y + residual), in y's dtype."""
    if residual is not None:
        y = (y + residual).to(y.dtype)
    return ACTIVATIONS[act](y) if act else y
