"""IterNorm Table 3: ResNet-50 and ResNet-101 on ImageNet."""

from __future__ import annotations

from ..recipe import Recipe
from .common import BN, ITERNORM, lower
from .imagenet import CHOICES, PLAN, QUICK, resnet

PLACES = {
    "Baseline": {"norm": BN},
    "IterNorm-L1": {"norm": BN, "first_norm": ITERNORM},
    "IterNorm-L1 + DF": {"norm": BN, "first_norm": ITERNORM, "feature_norm": ITERNORM},
}
PAPER = {
    50: {
        "Baseline": (23.95, 7.02),
        "IterNorm-L1": (23.28, 6.72),
        "IterNorm-L1 + DF": (22.91, 6.47),
    },
    101: {
        "Baseline": (22.45, 6.29),
        "IterNorm-L1": (21.95, 5.99),
        "IterNorm-L1 + DF": (21.77, 5.94),
    },
}

RECIPE = Recipe(
    paper="iternorm2019",
    figure="table3",
    title="ResNet-50 and ResNet-101 on ImageNet: IterNorm first, and before the classifier",
    data="imagenet",
    configurations=tuple(
        resnet(name, depth, PLAN, norms, *PAPER[depth][name])
        for depth in PAPER
        for name, norms in PLACES.items()
    ),
    claims=tuple(
        claim
        for depth in PAPER
        for text, better, worse in (
            ("IterNorm-L1 achieves lower test errors", "IterNorm-L1", "Baseline"),
            ("IterNorm-L1 + DF further improves", "IterNorm-L1 + DF", "IterNorm-L1"),
        )
        for claim in lower(
            f"Res-{depth}: {text}.",
            f"{better}, Res-{depth}",
            f"{worse}, Res-{depth}",
            "test_error",
            "test_top5_error",
        )
    ),
    choices=(*CHOICES, "One run each, as the paper seems to report."),
    quick=QUICK,
)
