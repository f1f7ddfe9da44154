"""Networks without shortcuts: 3 × 3 convolutions one after another."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

from torch import nn

from .parts import (
    ConvFactory,
    LinearFactory,
    Network,
    NetworkOptions,
    Norm,
    Parts,
    check_size,
    he_conv,
    resolve,
    scaled,
)
from .parts import linear as plain_linear


class Conv(NamedTuple):
    """A 3 × 3 convolution with its norm and activation, and perhaps 2 × 2 max-pooling behind it."""

    channels: int
    stride: int = 1
    pool: bool = False


class ChainOptions(NetworkOptions, total=False):
    """Keywords of every network without shortcuts."""

    activation: str
    norm_after_act: bool
    linear: LinearFactory


class ConvChain(Network):
    """conv1 → norm1 → act1 → conv2 → …, then average pooling and a linear classifier.

    ``hidden`` are fully connected layers in front of the classifier, normalized like the
    convolutions. ``conv`` and ``linear`` make the layers, the classifier aside.
    ``norm_after_act`` exchanges each norm and activation. A layer has a bias where no norm follows
    it directly.
    """

    def __init__(
        self,
        layout: Sequence[Conv],
        hidden: Sequence[int] = (),
        *,
        num_classes: int = 10,
        in_channels: int = 3,
        width: float = 1.0,
        norm: Norm = "batchnorm",
        activation: str = "relu",
        norm_after_act: bool = False,
        conv: ConvFactory = he_conv,
        linear: LinearFactory = plain_linear,
        fuse_act: bool = False,
    ) -> None:
        check_size("in_channels", in_channels)
        check_size("num_classes", num_classes)
        parts = Parts(resolve(norm), conv, activation, fuse_act)
        if fuse_act and norm_after_act:
            raise ValueError(
                "fuse_act=True puts the activation behind the norm, norm_after_act=True in front "
                "of it: choose one."
            )
        bias = parts.norm is None or norm_after_act
        super().__init__()
        channels, pools = in_channels, 0
        for number, (planes, stride, pool) in enumerate(layout, start=1):
            before, channels = channels, scaled(planes, width)
            convolution = parts.convolution(before, channels, stride=stride, bias=bias)
            self.add_module(f"conv{number}", convolution)
            self._append_norm_and_act(parts, channels, number, norm_after_act)
            if pool:
                pools += 1
                self.add_module(f"pool{pools}", nn.MaxPool2d(2))
        self.add_module("avgpool", nn.AdaptiveAvgPool2d(1))
        self.add_module("flatten", nn.Flatten())
        for number, neurons in enumerate(hidden, start=len(layout) + 1):
            before, channels = channels, scaled(neurons, width)
            self.add_module(f"linear{number}", linear(before, channels, bias=bias))
            self._append_norm_and_act(parts, channels, number, norm_after_act)
        self.add_module("fc", plain_linear(channels, num_classes))

    def _append_norm_and_act(
        self, parts: Parts, channels: int, number: int, norm_after_act: bool
    ) -> None:
        layers: OrderedDict[str, nn.Module] = OrderedDict()
        if parts.norm is not None:
            layers[f"norm{number}"] = parts.normalization(channels, act=True)
        if not parts.fuse_act:
            layers[f"act{number}"] = parts.act()
        for name in reversed(layers) if norm_after_act else layers:
            self.add_module(name, layers[name])
