"""Data-dependent initialization (Salimans & Kingma, 2016, Section 3)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import _WeightNorm

from ..statistics import working_dtype
from .centered import CenteredWeightNorm
from .layout import CONVOLUTIONS, layout_of


@torch.no_grad()
def initialize_from_data(model: nn.Module, *inputs: Any) -> list[str]:
    """Sets gain and bias of every weight-normalized layer so that, for one batch, each output has
    mean 0 and variance 1; returns the names of those layers.

        t = v·x/‖v‖,     g ← 1/σ[t],     b ← −μ[t]/σ[t]

    >>> from isonorm.weights import weight_norm
    >>> layer, x = weight_norm(nn.Linear(3, 2)), 5 + torch.randn(100, 3)
    >>> initialize_from_data(layer, x)
    ['']
    >>> y = layer(x)
    >>> torch.allclose(y.mean(0), torch.zeros(2), atol=1e-5)
    True
    >>> torch.allclose(y.var(0, correction=0), torch.ones(2), atol=1e-5)
    True

    The model is called once, in the mode it is in; each layer sees what those before it, already
    initialized, give it. A layer without bias keeps its mean, one without gain its variance, and an
    output that is constant its scale. Where the call fails, all gains and biases are as before.
    """
    names, hooks, before = [], [], []
    for name, layer in model.named_modules():
        if _is_weight_normalized(layer):
            names.append(name)
            hooks.append(_on_first_call(name, layer))
            before += [(p, p.clone()) for p in (_gain(layer), layer.bias) if isinstance(p, Tensor)]
    if not names:
        raise ValueError(
            "the model has no linear layer or convolution with weight_norm or centered_weight_norm "
            "to initialize: put it on first."
        )
    try:
        model(*inputs)
    except BaseException:
        for parameter, value in before:
            parameter.copy_(value)
        raise
    finally:
        for hook in hooks:
            hook.remove()
    return names


def _is_weight_normalized(layer: nn.Module) -> bool:
    if not isinstance(layer, (nn.Linear, *CONVOLUTIONS)):
        return False
    if not parametrize.is_parametrized(layer, "weight"):
        return False
    first, dim = layer.parametrizations["weight"][0], layout_of(layer, "weight", None).dim  # type: ignore[index]
    if isinstance(first, _WeightNorm):
        return first.dim == dim  # a length for each input is nothing that outputs determine
    return isinstance(first, CenteredWeightNorm) and first.gain and first.layout.dim == dim


def _gain(layer: nn.Module) -> Tensor:
    return layer.parametrizations["weight"].original0  # type: ignore[index]


def _on_first_call(name: str, layer: nn.Module) -> torch.utils.hooks.RemovableHandle:
    gain = _gain(layer)
    bias: Tensor | None = layer.bias  # type: ignore[assignment]
    weight: Tensor = layer.weight  # type: ignore[assignment]
    channel = 1 - weight.ndim  # from the last dimension, with a batch and without

    def initialize(_: nn.Module, args: tuple, kwargs: dict[str, Any], y: Tensor) -> Tensor:
        handle.remove()  # a layer that is used again keeps what its first use gave it
        columns = y.movedim(channel, 0).flatten(1).to(working_dtype(y))
        if not columns.shape[1] or not columns.isfinite().all():
            raise ValueError(
                f"the batch gives {name or 'the layer'} an output of shape {tuple(y.shape)} with "
                "no elements, or with some that are not finite, so no gain can be computed: pass "
                "another batch."
            )
        variance, mean = torch.var_mean(columns, 1, correction=0)
        x = args[0] if args else kwargs["input"]
        noise = _rounding(gain.flatten(), x, columns, y.dtype)
        scale = variance.where(variance > noise, 1.0).rsqrt()
        gain.mul_(scale.view_as(gain))
        if bias is None:
            mean = torch.zeros_like(mean)
        else:
            bias.sub_(mean).mul_(scale)
        shape = (-1,) + (1,) * (-channel - 1)
        return ((y - mean.view(shape)) * scale.view(shape)).to(y.dtype)

    handle = layer.register_forward_hook(initialize, with_kwargs=True)
    return handle


def _rounding(gain: Tensor, x: Tensor, columns: Tensor, dtype: torch.dtype) -> Tensor:
    """The variance that rounding alone can give each output where all samples are equal.

    A sum is rounded in parts of its terms, which may be far larger than what is left of them:
    weights of length g make terms of about g·√(mean x²). 16-bit outputs are summed in float32, and
    rounded once.
    """
    working = columns.dtype
    unit = max(10 * torch.finfo(working).eps, torch.finfo(dtype).eps)
    terms = gain.to(working).square() * x.to(working).square().mean()
    return unit**2 * (terms + columns.square().mean(1))
