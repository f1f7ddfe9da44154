"""EquiNorm Figure 2 and Section 6.1: overfitting, and two remedies."""

from __future__ import annotations

from dataclasses import replace

from ..models.registry import find_model
from ..plan import Plan
from ..recipe import Claim, Configuration, Quick, Recipe
from ..schedules import Steps
from .common import BN, PADDED

PLAN = Plan(
    epochs=300,
    batch_size=128,
    lr=0.1,
    momentum=0.9,
    weight_decay=1e-4,
    schedule=Steps((150, 225), 0.1),
    augment=PADDED,
)
#: "The hyper-parameters listed above, with manifold mixup": of the input, or before stage 2 or 3.
MANIFOLD = replace(PLAN, mixup_alpha=6.0, mixup_places=("", "layer2", "layer3"))
MIXUP = replace(PLAN, mixup_alpha=1.0)
NETWORK = dict(find_model("equinorm_wrn").fixed)  # with sizes that --scale quick can shrink
SMALL = Quick(width=0.06, depth=10)
SILENT = (
    "'20 convolutions, 96 planes, 9.7m parameters' is read as WRN-22-6 with 96 channels at the "
    "stem, which has 9.7 M.",
    "Pixels in [0, 1], not standardized: Section 5.2 recommends it for EquiNorm; the paper does "
    "not say whether BatchNorm's images were, and here they are not.",
    "Manifold mixup mixes the input of the network, of its second or of its third stage.",
    "EquiNorm is in every convolution, with its γ and β; the classifier is a plain linear layer.",
)


def wide(name: str, plan: Plan, norm: str = "plain", conv: str = "plain") -> Configuration:
    return Configuration(name, "wrn", plan, norm=norm, conv=conv, options=NETWORK)


RECIPE = Recipe(
    paper="equinorm2018",
    figure="fig2",
    title="Wide ResNet on CIFAR-10: EquiNorm overfits; quarter batches and mixup as remedies",
    data="cifar10",
    seeds=10,
    spread="median",
    configurations=(
        replace(wide("BatchNorm", PLAN, norm=BN), paper={"test_error": 5.3}),
        wide("EquiNorm", PLAN, conv="equinorm"),
        replace(
            wide("EquiNorm, quarter", PLAN, conv="equinorm-quarter"), paper={"test_error": 4.2}
        ),
        wide("BatchNorm, mixup", MIXUP, norm=BN),
        wide("EquiNorm, mixup", MIXUP, conv="equinorm"),
        wide("BatchNorm, manifold mixup", MANIFOLD, norm=BN),
        wide("EquiNorm, manifold mixup", MANIFOLD, conv="equinorm"),
    ),
    claims=(
        Claim(
            "EquiNorm converges significantly faster than BatchNorm.",
            "EquiNorm",
            "BatchNorm",
            "average_train_loss",
        ),
        Claim(
            "EquiNorm overfits significantly more.", "BatchNorm", "EquiNorm", "rise_of_test_loss"
        ),
        Claim(
            "Statistics of the first quarter of the batch fix the overfitting: EquiNorm's test "
            "error (paper: 4.2 %) is below BatchNorm's (paper: 5.3 %).",
            "EquiNorm, quarter",
            "BatchNorm",
        ),
        Claim(
            "A quarter of the batch leaves no overfitting visible in test loss.",
            "EquiNorm, quarter",
            "EquiNorm",
            "rise_of_test_loss",
        ),
        *(
            Claim(
                f"With {remedy} EquiNorm matches the generalization of BatchNorm: its error is "
                "within half a percent.",
                f"EquiNorm, {remedy}",
                "BatchNorm",
                margin=0.005,
            )
            for remedy in ("mixup", "manifold mixup")
        ),
        *(
            Claim(
                f"Manifold mixup significantly improves test accuracy for {name}.",
                f"{name}, manifold mixup",
                name,
            )
            for name in ("BatchNorm", "EquiNorm")
        ),
    ),
    choices=(
        *SILENT,
        "300 epochs, as Section 6.2 implies. Mixup with α = 1, which the paper does not tell; "
        "manifold mixup with the α = 6 of its Figure 4.",
    ),
    quick=SMALL,
)
