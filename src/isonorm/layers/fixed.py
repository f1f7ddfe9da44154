"""A norm as it is in eval: one fixed affine map of each group of channels, in plain operators."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx import Proxy

from ..activation import finish
from ..symbolic import one_call

_CONVOLUTIONS = {3: F.conv1d, 4: F.conv2d, 5: F.conv3d}


class FixedMap(nn.Module):
    """act(A·x + c + residual) for inputs (N, C, *): a grouped 1 × 1 convolution.

    ``A`` and ``c`` are as ``inference_map`` gives them: (groups, g, g), a shorter last group being
    padded, and (C,). Groups of one channel are a multiplication and an addition, in one operator;
    (N, C) inputs take matrix products.

    >>> import isonorm
    >>> isonorm.IterNorm(6, group_size=3).eval().fuse()
    FixedMap(6, group_size=3)
    """

    rest: nn.Parameter | None

    def __init__(self, A: Tensor, c: Tensor, act: nn.Module | None = None) -> None:
        super().__init__()
        self.num_features, self.group_size = len(c), A.shape[-1]
        whole, rest = divmod(self.num_features, self.group_size)
        self.weight = _fixed(A[:whole].flatten(0, 1))
        self.register_parameter("rest", _fixed(A[whole, :rest, :rest]) if rest else None)
        self.bias = _fixed(c)
        self.act = act

    def forward(self, input: Tensor, residual: Tensor | None = None) -> Tensor:
        if isinstance(input, Proxy) and (call := one_call(self, input, residual)) is not None:
            return call
        if input.dim() < 2 or input.shape[1] != self.num_features:
            raise ValueError(
                f"FixedMap expected input (N, {self.num_features}, *); got shape "
                f"{tuple(input.shape)}."
            )
        weight, bias = self.weight.to(input.dtype), self.bias.to(input.dtype)
        if self.group_size == 1:
            per_channel = (-1, *(1 for _ in input.shape[2:]))
            y = torch.addcmul(bias.view(per_channel), input, weight.view(per_channel))
        elif self.rest is None:
            y = _groupwise(input, weight, bias)
        else:
            sizes = [len(weight), len(self.rest)]
            (input, last), (bias, shift) = input.split(sizes, 1), bias.split(sizes)
            rest = _groupwise(last, self.rest.to(input.dtype), shift)
            y = torch.cat([_groupwise(input, weight, bias), rest], 1)
        return _finish(y, residual, self.act)

    def extra_repr(self) -> str:
        return f"{self.num_features}, group_size={self.group_size}"


class Merged(nn.Module):
    """act(x + residual): what is left of a norm that became part of the layer ``into``.

    Inputs must have ``ndim`` axes (None: any): of others, that layer would mix the wrong one.
    """

    def __init__(
        self, into: str, ndim: int | None, act: nn.Module | None, num_features: int
    ) -> None:
        super().__init__()
        self.into, self.ndim, self.act, self.num_features = into, ndim, act, num_features

    def forward(self, input: Tensor, residual: Tensor | None = None) -> Tensor:
        if isinstance(input, Proxy):
            # A tracer does not know the axes. A linear layer alone takes inputs with any number of
            # them, so the check behind it stays, inside one call; others leave no trace.
            call = one_call(self, input, residual) if self.ndim == 2 else None
            if call is not None:
                return call
        elif self.ndim is not None and input.dim() != self.ndim:
            raise ValueError(
                f"The norm that stood here was merged into {self.into!r} for inputs of {self.ndim} "
                f"axes, channels second; got shape {tuple(input.shape)}: use the model unfolded."
            )
        return _finish(input, residual, self.act)

    def extra_repr(self) -> str:
        return f"into={self.into!r}"


def _finish(y: Tensor, residual: Tensor | None, act: nn.Module | None) -> Tensor:
    y = finish(y, None, residual)
    return y if act is None else act(y)


def _fixed(tensor: Tensor) -> nn.Parameter:
    return nn.Parameter(tensor.detach().clone(), requires_grad=False)


def _groupwise(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """A·x + c for groups of equal size; ``weight`` is (C, g)."""
    channels, size = weight.shape
    groups = channels // size
    if x.dim() == 2 and groups == 1:
        return F.linear(x, weight, bias)
    if x.dim() == 2:
        by_group = x.unflatten(1, (groups, size)).transpose(0, 1)
        matrices = weight.view(groups, size, size).transpose(1, 2)  # mT: not in older ONNX exports
        y = torch.baddbmm(bias.view(groups, 1, size), by_group, matrices)
        return y.transpose(0, 1).flatten(1)
    if x.dim() not in _CONVOLUTIONS:
        return _groupwise(x.flatten(2), weight, bias).view(x.shape)
    kernel = weight.view(channels, size, *(1 for _ in x.shape[2:]))
    return _CONVOLUTIONS[x.dim()](x, kernel, bias, groups=groups)
