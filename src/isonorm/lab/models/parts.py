"""What the networks are built from: convolutions, the norms between them, their initial values."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypedDict

import torch
from torch import nn

import isonorm

from ..norms import NormFactory, norm_factory

#: How a normalization is asked for: a name (``"iternorm"``, ``"dbn:group_size=32"``), a factory
#: called with the number of channels, or ``"plain"`` or None for none at all.
Norm = str | NormFactory | None

#: Makes a convolution from ``nn.Conv2d``'s arguments; ``bias=False`` is given where a norm follows.
ConvFactory = Callable[..., nn.Module]

#: Makes a linear layer from ``nn.Linear``'s arguments, the classifier aside.
LinearFactory = Callable[..., nn.Module]

ACTIVATIONS: Mapping[str, type[nn.Module]] = {"relu": nn.ReLU, "elu": nn.ELU}


class Network(nn.Sequential):
    """Named layers in a row: ``model.conv1``, ``model.layer2`` or ``model.fc`` can be looked at,
    hooked or replaced, and ``model[:-1]`` is the network without its classifier.
    """

    def __getitem__(self, index):  # type: ignore[override]
        if isinstance(index, slice):  # not another Network, whose arguments are sizes
            return nn.Sequential(OrderedDict(list(self.named_children())[index]))
        return super().__getitem__(index)


def he_conv(
    in_channels: int,
    out_channels: int,
    kernel_size: int,
    *,
    stride: int = 1,
    padding: int = 0,
    bias: bool = True,
) -> nn.Conv2d:
    """A convolution with He et al.'s initialization: N(0, 2/(k²·out_channels)), and zero bias.

    EquiNorm states it (Section 6.1); DBN's published code does it, and IterNorm's for ImageNet, but
    for CIFAR that has U(±1/√(k²·in_channels)), which is ``nn.Conv2d``'s own. The bias is made
    without drawing a number, so that equal seeds mean equal weights, biased or not.
    """
    conv = nn.Conv2d(
        in_channels, out_channels, kernel_size, stride=stride, padding=padding, bias=False
    )
    nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
    if bias:
        conv.bias = nn.Parameter(torch.zeros(out_channels))
    return conv


def linear(in_features: int, out_features: int, *, bias: bool = True) -> nn.Linear:
    """A linear layer with torch's initial weight, U(±1/√in_features), and zero bias."""
    layer = nn.Linear(in_features, out_features, bias=False)
    if bias:
        layer.bias = nn.Parameter(torch.zeros(out_features))
    return layer


class NetworkOptions(TypedDict, total=False):
    """Keywords of every convolutional network."""

    num_classes: int
    in_channels: int
    width: float
    norm: Norm
    conv: ConvFactory
    fuse_act: bool


@dataclass(frozen=True)
class Parts:
    """The choices a convolutional network makes at every layer.

    With ``fuse_act`` a norm applies the ReLU behind it itself, and takes the residual in front of
    that ReLU as its second argument: the same function, in fewer passes over memory.
    """

    norm: NormFactory | None
    conv: ConvFactory = he_conv
    activation: str = "relu"
    fuse_act: bool = False

    def __post_init__(self) -> None:
        if self.activation not in ACTIVATIONS:
            raise ValueError(
                f"activation must be one of {', '.join(ACTIVATIONS)}; got {self.activation!r}."
            )
        if self.fuse_act and (self.norm is None or self.activation != "relu"):
            raise ValueError(
                "fuse_act=True puts the ReLU into the norm in front of it, which takes a norm and "
                f"activation='relu'; got {'no' if self.norm is None else 'a'} norm and "
                f"activation={self.activation!r}: leave fuse_act out."
            )

    def convolution(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int = 3,
        stride: int = 1,
        *,
        bias: bool | None = None,
    ) -> nn.Module:
        """A convolution whose output is as large as its input, but for the stride.

        With a norm it has no bias, which the norm's mean would only take away again; without one it
        is what its factory makes by default.
        """
        biased = self.norm is None if bias is None else bias
        options = {} if biased else {"bias": False}
        padding = kernel_size // 2
        return self.conv(
            in_channels, out_channels, kernel_size, stride=stride, padding=padding, **options
        )

    def normalization(self, channels: int, *, act: bool = False) -> nn.Module:
        """The norm of these channels; ``act``: a ReLU follows, which the norm takes in if fused."""
        if self.norm is None:
            return nn.Identity()
        layer = self.norm(channels)
        if self.fuse_act:
            if not isinstance(layer, isonorm.Normalize):
                raise ValueError(
                    "fuse_act=True needs norms of isonorm, which take an activation and a "
                    f"residual; got {type(layer).__name__}."
                )
            layer.act = "relu" if act else None
        return layer

    def act(self) -> nn.Module:
        """The activation behind a norm: nothing where the norm has taken it in."""
        return nn.Identity() if self.fuse_act else ACTIVATIONS[self.activation]()


def resolve(norm: Norm, default: Norm = None) -> NormFactory | None:
    """The factory of a norm; None asks for the default."""
    return norm_factory(default if norm is None else norm)


def scaled(channels: int, width: float) -> int:
    """A number of channels under the width multiplier.

    >>> scaled(64, 0.25), scaled(64, 1), scaled(16, 0.01)
    (16, 64, 1)
    """
    if isinstance(width, bool) or not isinstance(width, int | float) or not 0 < width < 1e4:
        raise ValueError(
            f"width multiplies the numbers of channels and must be positive; got {width!r}."
        )
    return max(1, round(channels * width))


def check_size(name: str, value: Any, least: int = 1) -> None:
    """Refuses what is not a whole number of things."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name} must be an integer of at least {least}; got {value!r}.")
