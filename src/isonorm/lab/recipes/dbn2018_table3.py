"""DBN Table 3: residual networks on ImageNet with one DBN before the first block."""

from __future__ import annotations

from dataclasses import replace

from ..recipe import Recipe
from ..schedules import Steps
from .common import BN, DBN, lower
from .imagenet import CHOICES, PLAN, QUICK, resnet

NINETY = replace(PLAN, epochs=90, schedule=Steps((30, 60), 0.1))
PAPER = {
    18: {"Baseline": (30.21, 10.87), "DBN-scale-L1": (29.87, 10.36)},
    34: {"Baseline": (26.53, 8.59), "DBN-scale-L1": (26.46, 8.42)},
    50: {"Baseline": (24.87, 7.58), "DBN-scale-L1": (24.29, 7.08)},
    101: {"Baseline": (22.54, 6.38), "DBN-scale-L1": (22.17, 6.09)},
}
NORMS = {"Baseline": {"norm": BN}, "DBN-scale-L1": {"norm": BN, "first_norm": DBN}}

RECIPE = Recipe(
    paper="dbn2018",
    figure="table3",
    title="ResNet-18, 34, 50 and 101 on ImageNet with one DBN before the first block",
    data="imagenet",
    configurations=tuple(
        resnet(name, depth, NINETY, norms, *PAPER[depth][name])
        for depth in PAPER
        for name, norms in NORMS.items()
    ),
    claims=tuple(
        claim
        for depth in PAPER
        for claim in lower(
            f"DBN-scale-L1 achieves lower test errors on Res-{depth}.",
            f"DBN-scale-L1, Res-{depth}",
            f"Baseline, Res-{depth}",
            "test_error",
            "test_top5_error",
        )
    ),
    choices=(*CHOICES, "One run each, as the paper seems to report."),
    quick=QUICK,
)
