"""S-plain: a residual network's body without its shortcuts."""

from __future__ import annotations

from typing import Unpack

from .chain import ChainOptions, Conv, ConvChain
from .residual import blocks_per_stage


class SPlain(ConvChain):
    """DBN's S-plain network (Section 4.2.2, Figure 6): "follows the design of the residual network
    but removes the identity maps and uses the same feature maps".

    As in the CIFAR ResNets one convolution, then three stages of which the second and the third
    begin with stride 2, but with the same number of channels throughout: ``planes=48`` in Figure 6a
    (depths 20, 32 and 44), 42 in 6b, where the paper leaves the depth open. Initialized as the
    residual networks are, where the paper names LeCun's rule.

    >>> SPlain(20, norm="dbn").conv19
    Conv2d(48, 48, kernel_size=(3, 3), stride=(1, 1), padding=(1, 1), bias=False)
    """

    def __init__(
        self, depth: int = 20, *, planes: int = 48, **options: Unpack[ChainOptions]
    ) -> None:
        per_stage = 2 * blocks_per_stage(depth, ends=2)
        first = [True] + [False] * (per_stage - 1)
        layout = [Conv(planes)] + [
            Conv(planes, stride=2 if halves and starts else 1)
            for halves in (False, True, True)
            for starts in first
        ]
        super().__init__(layout, **options)
