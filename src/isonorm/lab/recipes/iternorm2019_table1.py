"""IterNorm Table 1 (and Figure 8): wide residual networks on CIFAR-10."""

from __future__ import annotations

from ..recipe import Configuration, Quick, Recipe
from .common import BN, DBN, ITERNORM, OPEN, WIDE, lower

PAPER = {
    28: {"BN": 3.89, "DBN": 3.79, "IterNorm": 3.56},
    40: {"BN": 3.82, "DBN": 3.74, "IterNorm": 3.59},
}
NORMS = {
    "BN": (BN, {}),
    "DBN": (BN, {"first_norm": DBN}),
    "IterNorm": (ITERNORM, {}),
}

RECIPE = Recipe(
    paper="iternorm2019",
    figure="table1",
    title="WRN-28-10 and WRN-40-10 on CIFAR-10",
    data="cifar10",
    seeds=5,
    configurations=tuple(
        Configuration(
            f"{name}, WRN-{depth}-10",
            "wrn",
            WIDE,
            norm=norm,
            options={"depth": depth, "widen": 10, "dropout": 0.3, **first},
            paper={"test_error": PAPER[depth][name]},
        )
        for depth in PAPER
        for name, (norm, first) in NORMS.items()
    ),
    claims=tuple(
        claim
        for depth in PAPER
        for claim in (
            *lower(
                f"IterNorm improves the original WRN-{depth}-10 with BN, in optimization "
                "efficiency and generalization.",
                f"IterNorm, WRN-{depth}-10",
                f"BN, WRN-{depth}-10",
                "test_error",
                "average_train_error",
            ),
            *lower(
                f"IterNorm improves WRN-{depth}-10 with DBN.",
                f"IterNorm, WRN-{depth}-10",
                f"DBN, WRN-{depth}-10",
                "test_error",
            ),
        )
    ),
    choices=(
        "'The same setup as in [50]': 200 epochs, batches of 128, lr 0.1 times 0.2 at 60, 120 and "
        "160, Nesterov momentum 0.9, weight decay 0.0005, crops mirrored at the edge.",
        "Dropout 0.3, as the published script sets it; group size 64.",
        "Every BN is replaced. The published code has one IterNorm more, behind the first "
        "convolution, which WRN has none at; here there is none.",
        "DBN's numbers in this table are those of dbn2018-table2, and so is its network: one DBN "
        "before the first block.",
        OPEN,
    ),
    quick=Quick(width=0.02, depth=10),
)
