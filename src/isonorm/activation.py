"""What may follow a normalization within the same layer: a residual added, then an activation."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

ACTIVATIONS = {"identity": lambda y: y, "relu": F.relu, "silu": F.silu}
#: The activations that are not the identity, as modules.
MODULES = {"relu": nn.ReLU, "silu": nn.SiLU}


def effective(act: str | None) -> str:
    """A layer's ``act``, "" where there is nothing to do."""
    return "" if act in (None, "identity") else act


def check_act(act: object) -> None:
    if act is not None and not (isinstance(act, str) and act in ACTIVATIONS):
        raise ValueError(f"act must be None or one of {', '.join(ACTIVATIONS)}; got {act!r}.")


def finish(y: Tensor, act: str | None, residual: Tensor | None) -> Tensor:
    """act(y + residual), in y's dtype."""
    if residual is not None:
        y = (y + residual).to(y.dtype)
    return ACTIVATIONS[act](y) if act else y


def as_module(act: str | None) -> nn.Module | None:
    """A layer's ``act`` as a module; None where there is nothing to do."""
    name = effective(act)
    return MODULES[name]() if name else None
