"""EquiNorm Figure 4a: a pre-activation ResNet-152 on CIFAR-10 with manifold mixup."""

from __future__ import annotations

from ..recipe import Claim, Configuration, Quick, Recipe
from .common import BN, GN
from .equinorm2018_fig2 import MANIFOLD, SILENT

#: Name → norm and convolution.
KINDS = {
    "BatchNorm": (BN, "plain"),
    "GroupNorm": (GN, "plain"),
    "EquiNorm": ("plain", "equinorm"),
}
#: Tried by the paper on this network, without success (Section 6); no line of its figures.
WEIGHT_NORM = {"WeightNorm": ("plain", "weightnorm")}


def on(data: str, figure: str, title: str) -> Recipe:
    return Recipe(
        paper="equinorm2018",
        figure=figure,
        title=f"Pre-activation ResNet-152 on {title} with manifold mixup",
        data=data,
        seeds=10,
        spread="median",
        configurations=tuple(
            Configuration(
                name, "preact_resnet", MANIFOLD, norm=norm, conv=conv, options={"depth": 152}
            )
            for name, (norm, conv) in (KINDS | WEIGHT_NORM).items()
        ),
        claims=(
            Claim(
                "EquiNorm converges significantly faster than BatchNorm at the early epochs.",
                "EquiNorm",
                "BatchNorm",
                "early_test_error",
            ),
            Claim(
                "At the final epoch the test set performance is essentially the same: EquiNorm's "
                "error is within half a percent of BatchNorm's.",
                "EquiNorm",
                "BatchNorm",
                margin=0.005,
            ),
            *(
                Claim(
                    "WeightNorm does not reliably converge with very deep networks such as "
                    f"ResNet-152 (Section 6): its training loss is above {name}'s.",
                    name,
                    "WeightNorm",
                    "train_loss",
                )
                for name in ("BatchNorm", "EquiNorm")
            ),
        ),
        choices=(
            *SILENT[1:],
            "GroupNorm with 32 groups, its default.",
            "WeightNorm is g·v/‖v‖ in every convolution, with a bias, from He et al.'s weights and "
            "with the others' learning rate; the paper does not tell what it tried.",
        ),
        quick=Quick(width=0.5, depth=18, epochs=1, train_images=16),
    )


RECIPE = on("cifar10", "fig4a", "CIFAR-10")
