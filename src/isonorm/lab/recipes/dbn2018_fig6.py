"""DBN Figure 6: deeper networks and a higher learning rate without shortcuts, on CIFAR-10."""

from __future__ import annotations

from dataclasses import replace

from ..plan import Plan
from ..recipe import Claim, Configuration, Quick, Recipe
from ..schedules import Steps
from .common import BN, DBN, MIRRORED, OPEN

DEEP = Plan(
    epochs=160,
    batch_size=128,
    lr=0.1,
    momentum=0.9,
    weight_decay=5e-4,
    schedule=Steps((80, 120), 0.2),
    mean="channel",
    std="channel",
    augment=MIRRORED,
)
HIGH = replace(DEEP, epochs=200, lr=0.4, schedule=Steps((60, 100, 140, 180), 0.2))
DEPTHS = (20, 32, 44)
NORMS = {"BN": BN, "DBN": DBN}

RECIPE = Recipe(
    paper="dbn2018",
    figure="fig6",
    title="S-plain networks on CIFAR-10: depth 20, 32 and 44, and four times the learning rate",
    data="cifar10",
    configurations=(
        *(
            Configuration(
                f"{name}, {depth}L",
                "splain",
                DEEP,
                norm=norm,
                options={"depth": depth, "planes": 48},
            )
            for depth in DEPTHS
            for name, norm in NORMS.items()
        ),
        *(
            Configuration(
                f"{name}, 4 × lr",
                "splain",
                HIGH,
                norm=norm.replace(":", ":group_size=14:") if name == "DBN" else norm,
                options={"depth": 32, "planes": 42},
            )
            for name, norm in NORMS.items()
        ),
    ),
    claims=(
        *(
            Claim(
                f"The model with BN is more difficult to optimize than with DBN ({depth} layers).",
                f"DBN, {depth}L",
                f"BN, {depth}L",
                "train_error",
            )
            for depth in DEPTHS
        ),
        Claim(
            "With a four times higher learning rate, DBN has significantly better training "
            "accuracy than BN.",
            "DBN, 4 × lr",
            "BN, 4 × lr",
            "train_error",
        ),
    ),
    choices=(
        "(b) leaves the depth open; the default of the published code is 32, its groups of 42 "
        "channels 14. It ends at 200 epochs.",
        "Augmentation and preprocessing as in the published code: crops of 4 pixels mirrored at "
        "the edge, flips; each channel standardized. One run, as the paper does not average.",
        "He et al.'s initialization, where the paper names LeCun's.",
        OPEN,
    ),
    quick=Quick(width=0.17, depth=8, epochs=1, train_images=32),
)
