"""What a tracer of torch.fx sees of a layer: one call, as of torch's own layers."""

from __future__ import annotations

from torch import Tensor, nn
from torch.fx import Proxy


def one_call(layer: nn.Module, x: Proxy, residual: Tensor | None = None) -> Tensor | None:
    """The layer's output in the graph that ``x`` belongs to; None where the layer is itself what is
    traced.
    """
    path = x.tracer.path_of_module(layer)  # type: ignore[attr-defined]
    inputs = (x,) if residual is None else (x, residual)
    return x.tracer.create_proxy("call_module", path, inputs, {}) if path else None  # type: ignore[return-value]
