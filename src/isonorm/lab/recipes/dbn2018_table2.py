"""DBN Table 2: wide residual networks on CIFAR-10 and, as its second part, CIFAR-100."""

from __future__ import annotations

from ..recipe import Configuration, Quick, Recipe
from .common import BN, DBN, OPEN, WIDE, lower

FIRST = {"Baseline": {}, "DBN-scale-L1": {"first_norm": DBN}}
PAPER = {
    "cifar10": {
        28: {"Baseline": 3.99, "DBN-scale-L1": 3.79},
        40: {"Baseline": 3.80, "DBN-scale-L1": 3.74},
    },
    "cifar100": {
        28: {"Baseline": 18.75, "DBN-scale-L1": 18.36},
        40: {"Baseline": 18.7, "DBN-scale-L1": 18.27},
    },
}


def on(data: str, figure: str, title: str) -> Recipe:
    return Recipe(
        paper="dbn2018",
        figure=figure,
        title=f"WRN-28-10 and WRN-40-10 on {title} with one DBN before the first block",
        data=data,
        seeds=5,
        configurations=tuple(
            Configuration(
                f"{name}, WRN-{depth}-10",
                "wrn",
                WIDE,
                norm=BN,
                options={"depth": depth, "widen": 10, "dropout": 0.3, **first},
                paper={"test_error": PAPER[data][depth][name]},
            )
            for depth in (28, 40)
            for name, first in FIRST.items()
        ),
        claims=tuple(
            claim
            for depth in (28, 40)
            for claim in lower(
                f"DBN improves the original WRN-{depth}-10.",
                f"DBN-scale-L1, WRN-{depth}-10",
                f"Baseline, WRN-{depth}-10",
                "test_error",
            )
        ),
        choices=(
            "'The same setup as in [56]': 200 epochs, batches of 128, lr 0.1 times 0.2 at 60, 120 "
            "and 160, Nesterov momentum 0.9, weight decay 0.0005, crops mirrored at the edge.",
            "Dropout 0.3, as the published script sets it; groups of 16.",
            OPEN,
        ),
        quick=Quick(width=0.02, depth=10),
    )


RECIPE = on("cifar10", "table2", "CIFAR-10")
