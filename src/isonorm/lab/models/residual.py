"""What all residual networks share: a stem, stages of blocks, pooling and a linear classifier."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from torch import nn

from .blocks import Block
from .parts import (
    ConvFactory,
    Network,
    NetworkOptions,
    Norm,
    Parts,
    check_size,
    he_conv,
    linear,
    resolve,
    scaled,
)


class ResidualOptions(NetworkOptions, total=False):
    """Keywords of every residual network."""

    first_norm: Norm
    feature_norm: Norm


class ResidualNetwork(Network):
    """conv1 → norm1 → act1 → layer1 → layer2 → … → avgpool → fc.

    The papers' ways of placing whitening in a residual network are all options:

    ========================  ==================================================================
    every norm ("full")       ``norm="iternorm"``
    L1                        ``norm="batchnorm", first_norm="iternorm"``
    L1 + DF                   ``norm="batchnorm", first_norm="iternorm", feature_norm="iternorm"``
    ========================  ==================================================================

    ``first_norm`` is the norm in front of the first block: None means ``norm``, or none at all
    where blocks bring their own (``preact``: norm and ReLU in front of the convolutions, and once
    more behind the last block); ``"plain"`` means none. ``feature_norm`` normalizes the pooled
    features in front of the classifier.
    """

    def __init__(
        self,
        block: Callable[[Parts, int, int, int], Block],
        planes: Sequence[int],
        counts: Sequence[int],
        *,
        stem_planes: int,
        large_images: bool = False,
        preact: bool = False,
        num_classes: int = 10,
        in_channels: int = 3,
        width: float = 1.0,
        norm: Norm = "batchnorm",
        first_norm: Norm = None,
        feature_norm: Norm = None,
        conv: ConvFactory = he_conv,
        fuse_act: bool = False,
    ) -> None:
        check_size("in_channels", in_channels)
        check_size("num_classes", num_classes)
        parts = Parts(resolve(norm), conv, fuse_act=fuse_act)
        first = resolve(first_norm, default="plain" if preact else norm)
        channels = scaled(stem_planes, width)
        super().__init__()

        kernel_size, stride = (7, 2) if large_images else (3, 1)
        bias = first is None and (parts.norm is None or not preact)  # whether no norm comes next
        stem = parts.convolution(in_channels, channels, kernel_size, stride, bias=bias)
        self.add_module("conv1", stem)
        if first is not None:
            norm1 = replace(parts, norm=first).normalization(channels, act=not preact)
            self.add_module("norm1", norm1)
        if not preact and (first is None or not fuse_act):
            self.add_module("act1", nn.ReLU())
        if large_images:
            self.add_module("maxpool", nn.MaxPool2d(3, stride=2, padding=1))

        for stage, (size, count) in enumerate(zip(planes, counts, strict=True), start=1):
            blocks = nn.Sequential()
            for index in range(count):
                halves = stage > 1 and index == 0
                made = block(parts, channels, scaled(size, width), 2 if halves else 1)
                blocks.append(made)
                channels = made.out_channels
            self.add_module(f"layer{stage}", blocks)

        if preact:
            if parts.norm is not None:
                self.add_module("final_norm", parts.normalization(channels, act=True))
            if not fuse_act:
                self.add_module("final_act", nn.ReLU())
        self.add_module("avgpool", nn.AdaptiveAvgPool2d(1))
        self.add_module("flatten", nn.Flatten())
        features = resolve(feature_norm)
        if features is not None:
            self.add_module("feature_norm", features(channels))
        self.add_module("fc", linear(channels, num_classes))


def blocks_per_stage(depth: int, *, ends: int) -> int:
    """n of the networks for 32 × 32 images: 3 stages of n blocks of 2 layers, and others besides.

    >>> blocks_per_stage(20, ends=2), blocks_per_stage(28, ends=4)
    (3, 4)
    """
    check_size("depth", depth)
    blocks, rest = divmod(depth - ends, 6)
    if rest or blocks < 1:
        raise ValueError(
            f"depth must be 6n + {ends} with n ≥ 1 ({6 + ends}, {12 + ends}, {18 + ends}, …); got "
            f"{depth}."
        )
    return blocks
