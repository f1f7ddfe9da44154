"""DBN Table B.1: seconds for an epoch of VGG-A with different groups."""

from __future__ import annotations

from dataclasses import replace

from ..recipe import Claim, Configuration, Quick, Recipe
from .common import BN
from .dbn2018_fig5 import SGD

#: Seconds an epoch, in training and inference.
PAPER = {
    "BN": (163.68, 11.47),
    "DBN-G8": (707.47, 15.50),
    "DBN-G16": (466.92, 14.41),
    "DBN-G64": (297.25, 13.70),
    "DBN-G256": (440.88, 13.64),
    "DBN-G512": (1004, 13.68),
}
THREE = replace(SGD, epochs=3, lr=0.1, augment=None)  # a small rate: time is all that is asked for


def norm(name: str) -> str:
    return BN if name == "BN" else f"dbn:group_size={name[5:]}:running=whitening"


RECIPE = Recipe(
    paper="dbn2018",
    figure="tableB1",
    title="Time of VGG-A with DBN in groups of 8 to 512",
    data="noise-cifar",
    configurations=tuple(
        Configuration(
            name,
            "vgg",
            THREE,
            norm=norm(name),
            options={"configuration": "A"},
            paper={"seconds_per_epoch": training, "test_seconds": inference},
        )
        for name, (training, inference) in PAPER.items()
    ),
    claims=(
        *(
            Claim(
                f"An epoch with {name} takes longer than with BN.", "BN", name, "seconds_per_epoch"
            )
            for name in list(PAPER)[1:]
        ),
        Claim(
            "Small groups can cost more time than larger ones: G8 more than G64.",
            "DBN-G64",
            "DBN-G8",
            "seconds_per_epoch",
        ),
    ),
    choices=(
        "Images are noise: time does not depend on what they show. 50,000 to train on, 10,000 to "
        "test on, as in CIFAR-10. The median of three epochs.",
        "The paper whitens its groups one after another; isonorm all at once.",
    ),
    quick=Quick(width=0.04, epochs=1, train_images=32, test_images=16),
)
