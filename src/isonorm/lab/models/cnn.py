"""A convolutional network small enough for a CPU and images of a few pixels."""

from __future__ import annotations

from typing import Unpack

from .chain import ChainOptions, Conv, ConvChain


class SmallCNN(ConvChain):
    """Three convolutions of 32, 64 and 128 channels, the latter two with stride 2.

    No paper's: for examples, comparisons and tests, on images from 4 × 4 (digits, MNIST) upwards.

    >>> import torch
    >>> SmallCNN(in_channels=1, norm="iternorm")(torch.randn(16, 1, 8, 8)).shape
    torch.Size([16, 10])
    """

    def __init__(self, **options: Unpack[ChainOptions]) -> None:
        super().__init__([Conv(32), Conv(64, stride=2), Conv(128, stride=2)], **options)
