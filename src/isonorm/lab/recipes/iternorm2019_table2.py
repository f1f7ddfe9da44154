"""IterNorm Table 2: where to put IterNorm in ResNet-18 on ImageNet."""

from __future__ import annotations

from ..recipe import Claim, Recipe
from .common import BN, DBN, ITERNORM, lower
from .imagenet import CHOICES, PLAN, QUICK, resnet

RECIPE = Recipe(
    paper="iternorm2019",
    figure="table2",
    title="ResNet-18 on ImageNet: IterNorm first, everywhere, and before the classifier",
    data="imagenet",
    configurations=(
        resnet("Baseline", 18, PLAN, {"norm": BN}, 29.76, 10.39),
        resnet("DBN-L1", 18, PLAN, {"norm": BN, "first_norm": DBN}, 29.50, 10.26),
        resnet("IterNorm-L1", 18, PLAN, {"norm": BN, "first_norm": ITERNORM}, 29.34, 10.22),
        resnet("IterNorm-Full", 18, PLAN, {"norm": ITERNORM}, 29.30, 10.21),
        resnet(
            "IterNorm-L1 + DF",
            18,
            PLAN,
            {"norm": BN, "first_norm": ITERNORM, "feature_norm": ITERNORM},
            28.86,
            10.08,
        ),
    ),
    claims=(
        *lower(
            "Only replacing the first BN effectively improves the network, by DBN.",
            "DBN-L1, Res-18",
            "Baseline, Res-18",
            "test_error",
            "test_top5_error",
        ),
        *lower(
            "Only replacing the first BN effectively improves the network, by IterNorm.",
            "IterNorm-L1, Res-18",
            "Baseline, Res-18",
            "test_error",
            "test_top5_error",
        ),
        *lower(
            "IterNorm has marginally better performance than DBN.",
            "IterNorm-L1, Res-18",
            "DBN-L1, Res-18",
            "test_error",
        ),
        Claim(
            "Replacing all BN has no significant improvement over the first: less than 0.2 %.",
            "IterNorm-L1, Res-18",
            "IterNorm-Full, Res-18",
            margin=0.002,
        ),
        *lower(
            "IterNorm behind the last average pooling significantly improves the performance.",
            "IterNorm-L1 + DF, Res-18",
            "IterNorm-L1, Res-18",
            "test_error",
            "test_top5_error",
        ),
    ),
    choices=(
        *CHOICES,
        "One run each, as the paper seems to report. No significant improvement: less than 0.2 %.",
    ),
    quick=QUICK,
)
