"""Residual networks with norm and ReLU in front of the convolutions."""

from __future__ import annotations

from functools import partial
from typing import Unpack

from .blocks import PreActBlock, PreActBottleneck
from .parts import check_size
from .residual import ResidualNetwork, ResidualOptions, blocks_per_stage
from .resnet import DEPTHS


class PreActResNet(ResidualNetwork):
    """Pre-activation ResNets (He et al., ECCV 2016) for 32 × 32 images: EquiNorm's ResNet-152.

    EquiNorm (Section 6.1, Figure 4a and b) follows Verma et al.'s code for CIFAR: "[3,8,36,3]
    bottleneck blocks, 64 initial channels, 58.1m parameters", the first convolution 3 × 3 without
    pooling. That code leaves out the norm and ReLU which He et al. put behind the last block; here
    they are there. Manifold mixup mixes the input, or what ``layer1`` or ``layer2`` gives.

    >>> PreActResNet(18, norm="groupnorm").layer1[0].norm1
    GroupNorm(64, num_groups=32, affine=True, eps=1e-05)
    """

    def __init__(self, depth: int = 152, **options: Unpack[ResidualOptions]) -> None:
        if depth not in DEPTHS:
            raise ValueError(f"depth must be one of {', '.join(map(str, DEPTHS))}; got {depth!r}.")
        counts = DEPTHS[depth][1]
        block = PreActBlock if depth < 50 else PreActBottleneck
        super().__init__(block, (64, 128, 256, 512), counts, stem_planes=64, preact=True, **options)


class WideResNet(ResidualNetwork):
    """WRN-d-k (Zagoruyko & Komodakis, BMVC 2016): depth d = 6n + 4, k times as wide.

    WRN-28-10 and WRN-40-10 are IterNorm's (Section 5.2, Table 1, Figure 8) and DBN's (Table 2). The
    papers "follow the same setup" as Zagoruyko & Komodakis; DBN's scripts set dropout to 0.3.
    DBN-scale-L1 is ``first_norm="dbn"``: "only one DBN module before the first residual block",
    where WRN otherwise has no norm. IterNorm replaces "all the BN modules", ``norm="iternorm"``;
    its published code has an IterNorm in that place as well (``first_norm="iternorm"``).

    EquiNorm's wide ResNet (Section 6.1, Figures 2, 3 and 4c) is told as "non-bottleneck, 20
    convolutions, 96 initial planes after first convolution, 9.7m parameters". That is WRN-22-6 with
    ``stem_planes=96``: 19 convolutions and the classifier, counted as in ResNet-20, the two 1 × 1
    shortcuts aside.

    >>> WideResNet(16, 4, norm="batchnorm", first_norm="dbn").norm1
    DBN(16, group_size=16, method='zca', affine=True, eps=1e-05, momentum=0.1)
    """

    def __init__(
        self,
        depth: int = 28,
        widen: int = 10,
        *,
        stem_planes: int = 16,
        dropout: float = 0.0,
        **options: Unpack[ResidualOptions],
    ) -> None:
        check_size("widen", widen)
        check_size("stem_planes", stem_planes)
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout is a probability, at least 0 and below 1; got {dropout!r}.")
        blocks = blocks_per_stage(depth, ends=4)
        super().__init__(
            partial(PreActBlock, dropout=dropout),
            (16 * widen, 32 * widen, 64 * widen),
            (blocks,) * 3,
            stem_planes=stem_planes,
            preact=True,
            **options,
        )
