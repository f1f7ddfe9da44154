"""EquiNorm Figure 4d: ResNet-50 on ImageNet."""

from __future__ import annotations

from dataclasses import replace

from ..recipe import Claim, Configuration, Recipe
from ..schedules import Steps
from .equinorm2018_fig4a import KINDS
from .imagenet import CHOICES, PLAN, QUICK

STANDARDIZED = replace(PLAN, epochs=90, schedule=Steps((30, 60), 0.1))
#: By convolution. Section 5.2: EquiNorm wants positive input, pixels that are not standardized.
PLANS = {"plain": STANDARDIZED, "equinorm": replace(STANDARDIZED, mean=None, std=None)}

RECIPE = Recipe(
    paper="equinorm2018",
    figure="fig4d",
    title="ResNet-50 on ImageNet",
    data="imagenet",
    seeds=3,
    spread="median",
    configurations=tuple(
        Configuration(
            name,
            "resnet",
            PLANS[conv],
            norm=norm,
            conv=conv,
            options={"depth": 50},
        )
        for name, (norm, conv) in KINDS.items()
    ),
    claims=(
        Claim(
            "There is a generalization gap between EquiNorm and BatchNorm.",
            "BatchNorm",
            "EquiNorm",
        ),
        Claim(
            "There is a generalization gap between EquiNorm and GroupNorm.",
            "GroupNorm",
            "EquiNorm",
        ),
    ),
    choices=(
        *CHOICES,
        "The paper gives no hyper-parameters for ImageNet: 90 epochs with lr 0.1 times 0.1 at 30 "
        "and 60. Images are standardized, as usual, but for EquiNorm, as Section 5.2 recommends: "
        "around zero its formulas divide by sums that cancel.",
    ),
    quick=replace(QUICK, width=0.5),
)
