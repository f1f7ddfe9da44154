"""What tracers see: torch.fx one call of a layer, as of torch's own; torch.jit what it can save."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.fx import Proxy


def is_traced() -> bool:
    """Whether torch.jit's tracer writes down what is done."""
    return not torch.compiler.is_compiling() and torch._C._get_tracing_state() is not None


def one_call(layer: nn.Module, x: Proxy, *others: Tensor | None) -> Tensor | None:
    """The layer's output in the graph that ``x`` belongs to; None where the layer is itself what is
    traced.
    """
    path = x.tracer.path_of_module(layer)  # type: ignore[attr-defined]
    inputs = (x, *(other for other in others if other is not None))
    return x.tracer.create_proxy("call_module", path, inputs, {}) if path else None  # type: ignore[return-value]
