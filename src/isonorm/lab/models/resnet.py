"""ResNets: for ImageNet, and for 32 × 32 images."""

from __future__ import annotations

from functools import partial
from typing import Unpack

from .blocks import BasicBlock, Bottleneck, zero_pad
from .residual import ResidualNetwork, ResidualOptions, blocks_per_stage

#: Depth → block, and how many of them in each stage (He et al., CVPR 2016, Table 1).
DEPTHS = {
    18: (BasicBlock, (2, 2, 2, 2)),
    34: (BasicBlock, (3, 4, 6, 3)),
    50: (Bottleneck, (3, 4, 6, 3)),
    101: (Bottleneck, (3, 4, 23, 3)),
    152: (Bottleneck, (3, 8, 36, 3)),
}


class ResNet(ResidualNetwork):
    """The ImageNet ResNets (He et al., CVPR 2016, Table 1) of IterNorm's Tables 2 and 3, DBN's
    Tables 3, B.3 and B.4 and EquiNorm's Figure 4d.

    "L1" replaces the first norm, "full" all of them, and "DF" adds one behind the last average
    pooling (IterNorm Section 5.3): see :class:`ResidualNetwork`. DBN's published code has a further
    3 × 3 convolution in front of its L1 norm; the paper does not speak of it, and it is not here.
    The layers are torchvision's, whose bn1, downsample.0 and downsample.1 are norm1, shortcut.conv
    and shortcut.norm.

    >>> model = ResNet(18, norm="batchnorm", first_norm="iternorm", feature_norm="iternorm")
    >>> model.norm1
    IterNorm(64, group_size=64, num_iters=5, affine=True, eps=1e-05, momentum=0.1)
    >>> model.layer1[0].norm1
    BatchNorm(64, affine=True, eps=1e-05, momentum=0.1)
    """

    def __init__(self, depth: int = 50, **options: Unpack[ResidualOptions]) -> None:
        if depth not in DEPTHS:
            raise ValueError(f"depth must be one of {', '.join(map(str, DEPTHS))}; got {depth!r}.")
        block, counts = DEPTHS[depth]
        options.setdefault("num_classes", 1000)
        super().__init__(
            block,
            (64, 128, 256, 512),
            counts,
            stem_planes=64,
            large_images=True,
            **options,
        )


class CifarResNet(ResidualNetwork):
    """The CIFAR ResNets of depth 6n + 2 (He et al., CVPR 2016, Section 4.2), as in DBN's Table 1.

    Three stages of n basic blocks with 16, 32 and 64 channels, whose shortcuts have no parameters
    (option A). DBN-L1 is ``norm="batchnorm", first_norm="dbn:affine=False"``, DBN-scale-L1 the same
    with ``"dbn"``.

    >>> sum(parameter.numel() for parameter in CifarResNet(20).parameters())
    269722
    """

    def __init__(self, depth: int = 20, **options: Unpack[ResidualOptions]) -> None:
        blocks = blocks_per_stage(depth, ends=2)
        block = partial(BasicBlock, shortcut=zero_pad)
        super().__init__(block, (16, 32, 64), (blocks,) * 3, stem_planes=16, **options)
