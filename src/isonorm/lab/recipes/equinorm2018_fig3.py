"""EquiNorm Figure 3: thirty epochs of super-convergence on CIFAR-10."""

from __future__ import annotations

from dataclasses import replace

from ..recipe import Claim, Recipe
from ..schedules import SuperConvergence
from .common import BN
from .equinorm2018_fig2 import MANIFOLD, SILENT, SMALL, wide

PLAN = replace(MANIFOLD, epochs=30, momentum=0.95, schedule=SuperConvergence())

RECIPE = Recipe(
    paper="equinorm2018",
    figure="fig3",
    title="Wide ResNet on CIFAR-10 in 30 epochs of super-convergence",
    data="cifar10",
    seeds=10,
    spread="median",
    configurations=(
        replace(wide("BatchNorm", PLAN, norm=BN), paper={"test_error": 6.7}),
        replace(wide("EquiNorm", PLAN, conv="equinorm"), paper={"test_error": 6.0}),
    ),
    claims=(
        Claim(
            "EquiNorm shows a 94.0 % median test accuracy compared to 93.3 % for BatchNorm.",
            "EquiNorm",
            "BatchNorm",
        ),
    ),
    choices=(
        *SILENT,
        "The ramps are linear, 'from epochs 1 to 13' from the beginning to the end of epoch 13; "
        "the annealing ends at a hundredth of the starting rate. Momentum stays at 0.85 after "
        "epoch 26, as the paper has it, though it had risen to 0.95 by then.",
        "The paper shows its GroupNorm lines in Figure 4 only.",
    ),
    quick=SMALL,
)
