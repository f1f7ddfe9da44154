"""``EquiConv1d``, ``EquiConv2d``, ``EquiConv3d`` and ``EquiLinear``: Equilibrium Normalization as
layers.

Each takes the place of a convolution, or a linear layer, and of the BatchNorm behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod, sqrt
from numbers import Integral
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx import Proxy
from torch.nn.modules.conv import _ConvNd

from ..checks import check_dtype
from ..scalars import plain
from ..symbolic import one_call
from .state import EquilibriumState


class _EquiConv(EquilibriumState, _ConvNd):
    """A convolution in equilibrium, of any number of dimensions.

    It shares ``_ConvNd`` with torch's convolutions but is none of them, so that a tool that looks
    for those does not merge a BatchNorm into the raw kernel, where a scale has no effect.
    """

    _arguments = (
        "in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation", "groups",
        "padding_mode",
    )  # fmt: skip
    _convolve: ClassVar[Callable[..., Tensor]]
    _positions: ClassVar[str]

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, ...],
        stride: int | tuple[int, ...] = 1,
        padding: str | int | tuple[int, ...] = 0,
        dilation: int | tuple[int, ...] = 1,
        groups: int = 1,
        bias: bool = False,
        padding_mode: str = "zeros",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        momentum: float | None = 0.1,
        affine: bool = True,
        statistics_fraction: float = 1.0,
        single_pass: bool = True,
        track_running_stats: bool = True,
        process_group: object = None,
    ) -> None:
        check_dtype(dtype)
        super().__init__(
            in_channels, out_channels, self._each("kernel_size", kernel_size),
            self._each("stride", stride),
            padding if isinstance(padding, str) else self._each("padding", padding, least=0),
            self._each("dilation", dilation), False, self._each("output_padding", 0, least=0),
            groups, bias, padding_mode,  # type: ignore[arg-type]
            device=device, dtype=dtype,
        )  # fmt: skip
        self._set_up(
            momentum=momentum, affine=affine, statistics_fraction=statistics_fraction,
            single_pass=single_pass, track_running_stats=track_running_stats,
            process_group=process_group,
        )  # fmt: skip

    def _each(self, name: str, value: object, *, least: int = 1) -> tuple[int, ...]:
        """One number for each dimension."""
        dims = len(self._positions)
        values = tuple(value) if isinstance(value, Sequence) else (value,) * dims
        if len(values) != dims or not all(
            isinstance(v, Integral) and int(v) >= least for v in values
        ):
            raise ValueError(
                f"{type(self).__name__} takes {name} as an integer of at least {least}, or as "
                f"{dims} of them; got {value!r}."
            )
        return tuple(map(plain, values))

    def forward(self, input: Tensor) -> Tensor:
        """The convolution of (N, C, *) or (C, *) with the kernel in equilibrium; one call to a
        tracer of torch.fx, as torch's own convolutions are.
        """
        if isinstance(input, Proxy) and (call := one_call(self, input)) is not None:
            return call
        self._check_input(input)
        batch = input if input.dim() == len(self._positions) + 2 else input.unsqueeze(0)
        v, r, seen = self._measure(batch, 1, self._r_of_an_instance(batch.shape[2:]))
        y = self._conv_forward(input, *self._kernel_and_bias(v, r))
        self._commit(v, r, seen)
        return y

    def _r_of_an_instance(self, sizes: Sequence[int]) -> int:
        """Output positions × stride²: the share of each instance in the paper's r."""
        padding, share = self._reversed_padding_repeated_twice, 1  # the last dimension's come first
        dilation, kernel, stride = self.dilation, self.kernel_size, self.stride
        for i, size in enumerate(sizes):
            padded = size + padding[-2 * i - 1] + padding[-2 * i - 2]
            outputs = (padded - dilation[i] * (kernel[i] - 1) - 1) // stride[i] + 1
            share *= outputs * stride[i]
        return share

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        padding = self.padding
        if self.padding_mode != "zeros":
            input = F.pad(input, self._reversed_padding_repeated_twice, mode=self.padding_mode)
            padding = 0
        return self._convolve(input, weight, bias, self.stride, padding, self.dilation, self.groups)

    def _check_input(self, x: Tensor) -> None:
        channel = x.dim() - len(self._positions) - 1
        if channel not in (0, 1) or x.shape[channel] != self.in_channels:
            shape = ", ".join([str(self.in_channels), *self._positions])
            raise ValueError(
                f"{type(self).__name__} expected input (N, {shape}), or one instance ({shape}), "
                f"with {self.in_channels} channels; got shape {tuple(x.shape)}."
            )

    def extra_repr(self) -> str:
        shown = super().extra_repr()
        return f"{shown.replace(', bias=False', '')}, {self._own_repr()}"


class EquiConv1d(_EquiConv):
    """A 1-d convolution in equilibrium, on (N, C, L); the arguments are those of ``EquiConv2d``."""

    _plain, _convolve, _positions = nn.Conv1d, staticmethod(F.conv1d), "L"


class EquiConv2d(_EquiConv):
    """A convolution whose positive and negative weights contribute equally to its output.

    >>> conv = EquiConv2d(3, 8, 3, padding=1, padding_mode="circular")
    >>> y = conv(torch.rand(16, 3, 12, 12))
    >>> bool(y.mean((0, 2, 3)).abs().max() < 1e-5)
    True

    The arguments of ``nn.Conv2d`` come first, except that there is no bias beside ``affine``. Input
    is meant to be positive, as behind a ReLU, or as pixels in [0, 1] are.

    Args:
        momentum: the new batch's weight in ``running_v``; None: cumulative average.
        affine: learn ``gamma`` and ``beta`` for each output channel, applied after the convolution.
        statistics_fraction: the part of the batch, from its start, that is measured; a quarter is
            the paper's remedy for overfitting (Section 6.1).
        single_pass: the approximation of s that the paper's experiments use; False: the exact one.
        track_running_stats: False normalizes by the batch in eval, too.
        process_group: a ``torch.distributed`` group to share v with ("world": all ranks).
    """

    _plain, _convolve, _positions = nn.Conv2d, staticmethod(F.conv2d), "HW"


class EquiConv3d(_EquiConv):
    """A 3-d convolution in equilibrium, on (N, C, D, H, W); the arguments are those of
    ``EquiConv2d``.
    """

    _plain, _convolve, _positions = nn.Conv3d, staticmethod(F.conv3d), "DHW"


class _Kernel(nn.Module):
    """A linear layer's kernel with torch's initialization of it."""

    bias: Tensor | None

    def __init__(self, in_features: int, out_features: int, bias: bool, device, dtype) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        empty = torch.empty(out_features, in_features, device=device, dtype=dtype)
        self.weight = nn.Parameter(empty)
        own = nn.Parameter(torch.empty(out_features, device=device, dtype=dtype)) if bias else None
        self.register_parameter("bias", own)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.kaiming_uniform_(self.weight, a=sqrt(5))
        if self.bias is not None:
            bound = 1 / sqrt(self.in_features)
            nn.init.uniform_(self.bias, -bound, bound)


class EquiLinear(EquilibriumState, _Kernel):
    """A linear layer in equilibrium, on (N, *, in_features): a kernel of one position.

    >>> layer = EquiLinear(20, 8)
    >>> y = layer(torch.rand(64, 20))
    >>> bool(y.mean(0).abs().max() < 1e-5)
    True

    The keywords are those of ``EquiConv2d``.
    """

    _plain, _arguments = nn.Linear, ("in_features", "out_features")
    groups = 1

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        momentum: float | None = 0.1,
        affine: bool = True,
        statistics_fraction: float = 1.0,
        single_pass: bool = True,
        track_running_stats: bool = True,
        process_group: object = None,
    ) -> None:
        check_dtype(dtype)
        super().__init__(in_features, out_features, bias, device, dtype)
        self._set_up(
            momentum=momentum, affine=affine, statistics_fraction=statistics_fraction,
            single_pass=single_pass, track_running_stats=track_running_stats,
            process_group=process_group,
        )  # fmt: skip

    def forward(self, input: Tensor) -> Tensor:
        """The linear map of (N, *, in_features), or of one instance (in_features,); one call to a
        tracer of torch.fx.
        """
        if isinstance(input, Proxy) and (call := one_call(self, input)) is not None:
            return call
        if input.dim() < 1 or input.shape[-1] != self.in_features:
            raise ValueError(
                f"EquiLinear expected input (N, *, {self.in_features}) with {self.in_features} "
                f"features in its last dimension; got shape {tuple(input.shape)}."
            )
        batch = input if input.dim() > 1 else input.unsqueeze(0)
        v, r, seen = self._measure(batch, batch.dim() - 1, prod(batch.shape[1:-1]))
        y = F.linear(input, *self._kernel_and_bias(v, r))
        self._commit(v, r, seen)
        return y

    def extra_repr(self) -> str:
        bias = ", bias=True" if self.bias is not None else ""
        return f"{self.in_features}, {self.out_features}{bias}, {self._own_repr()}"


_LAYERS = {cls._plain: cls for cls in (EquiConv1d, EquiConv2d, EquiConv3d, EquiLinear)}


def equinorm_from_pair(
    layer: nn.Module,
    norm: nn.Module,
    *,
    statistics_fraction: float = 1.0,
    single_pass: bool = True,
) -> EquilibriumState:
    """The layer in equilibrium for a convolution, or a linear layer, and the BatchNorm behind it:
    ``from_pair`` of the class that fits.

    >>> equinorm_from_pair(nn.Linear(20, 8), nn.BatchNorm1d(8))
    EquiLinear(20, 8, momentum=0.1)
    """
    if type(layer) not in _LAYERS:
        names = ", ".join(f"nn.{plain.__name__}" for plain in _LAYERS)
        raise TypeError(
            f"expected one of {names} before the BatchNorm; got {type(layer).__name__}."
        )
    return _LAYERS[type(layer)].from_pair(
        layer, norm, statistics_fraction=statistics_fraction, single_pass=single_pass
    )
