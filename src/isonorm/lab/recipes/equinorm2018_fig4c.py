"""EquiNorm Figure 4c: the wide ResNet on SVHN with its extra images."""

from __future__ import annotations

from dataclasses import replace

from ..recipe import Claim, Recipe
from ..schedules import Steps
from .common import BN, GN, PADDED
from .equinorm2018_fig2 import MANIFOLD, SILENT, SMALL, wide

PLAN = replace(
    MANIFOLD,
    epochs=160,
    batch_size=256,
    schedule=Steps((80, 120), 0.1),
    augment=replace(PADDED, flip=False),  # mirrored digits are none
)

RECIPE = Recipe(
    paper="equinorm2018",
    figure="fig4c",
    title="Wide ResNet on SVHN + extra with manifold mixup",
    data="svhn_extra",
    seeds=10,
    spread="median",
    configurations=(
        wide("BatchNorm", PLAN, norm=BN),
        wide("GroupNorm", PLAN, norm=GN),
        wide("EquiNorm", PLAN, conv="equinorm"),
    ),
    claims=(
        Claim(
            "EquiNorm achieves essentially the same generalization performance as BatchNorm: its "
            "error is within half a percent.",
            "EquiNorm",
            "BatchNorm",
            margin=0.005,
        ),
        Claim("GroupNorm appears inferior to BatchNorm.", "BatchNorm", "GroupNorm"),
        Claim("GroupNorm appears inferior to EquiNorm.", "EquiNorm", "GroupNorm"),
    ),
    choices=(
        *SILENT,
        "The paper takes statistics of each GPU's 128 images: --devices 2 does the same.",
        "Crops without flips: the paper names flips for CIFAR, and digits are not to be mirrored.",
        "160 epochs: the paper moves the reductions to 80 and 120 and does not say where it ends.",
    ),
    quick=replace(SMALL, width=1 / 3, epochs=1),
)
