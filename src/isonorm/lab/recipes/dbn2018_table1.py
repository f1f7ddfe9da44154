"""DBN Table 1: residual networks of 20 to 56 layers on CIFAR-10."""

from __future__ import annotations

from ..plan import Plan
from ..recipe import Claim, Configuration, Quick, Recipe
from ..schedules import Steps
from .common import BN, DBN, OPEN, PADDED

PLAN = Plan(
    epochs=160,
    batch_size=128,
    lr=0.1,
    momentum=0.9,
    weight_decay=1e-4,
    schedule=Steps((80, 120), 0.1),
    mean="channel",
    std="channel",
    augment=PADDED,
)
FIRST = {
    "Baseline": {},
    "DBN-L1": {"first_norm": f"{DBN}:affine=False"},
    "DBN-scale-L1": {"first_norm": DBN},
}
PAPER = {
    "Baseline": {20: 7.94, 32: 7.31, 44: 7.17, 56: 7.21},
    "DBN-L1": {20: 7.94, 32: 7.28, 44: 6.87, 56: 6.63},
    "DBN-scale-L1": {20: 7.77, 32: 6.94, 44: 6.83, 56: 6.49},
}
DEPTHS = (20, 32, 44, 56)

RECIPE = Recipe(
    paper="dbn2018",
    figure="table1",
    title="ResNet-20, 32, 44 and 56 on CIFAR-10 with one DBN before the first block",
    data="cifar10",
    seeds=5,
    configurations=tuple(
        Configuration(
            f"{name}, Res-{depth}",
            "cifar_resnet",
            PLAN,
            norm=BN,
            options={"depth": depth, **first},
            paper={"test_error": PAPER[name][depth]},
        )
        for depth in DEPTHS
        for name, first in FIRST.items()
    ),
    claims=(
        *(
            Claim(
                f"{name} obtains a lower test error than BN on Res-{depth}.",
                f"{name}, Res-{depth}",
                f"Baseline, Res-{depth}",
            )
            for depth in DEPTHS
            for name in ("DBN-L1", "DBN-scale-L1")
        ),
        *(
            Claim(
                f"DBN-scale-L1 marginally outperforms DBN-L1 on Res-{depth}.",
                f"DBN-scale-L1, Res-{depth}",
                f"DBN-L1, Res-{depth}",
            )
            for depth in DEPTHS
        ),
    ),
    choices=(
        "'The same experimental protocol as described in [19]': 160 epochs, as the published "
        "script has, batches of 128, lr 0.1 times 0.1 at 80 and 120, weight decay 0.0001, crops "
        "with 4 pixels of padding. He et al. warm up ResNet-110 only.",
        "Groups of 16, the paper's recommendation; its published script has 8 here.",
        OPEN,
    ),
    quick=Quick(width=0.25, depth=8, epochs=1, train_images=32),
)
