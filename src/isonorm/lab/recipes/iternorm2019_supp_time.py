"""IterNorm, supplement, Section 2: seconds for an iteration of VGG with DBN and IterNorm."""

from __future__ import annotations

from dataclasses import replace

from ..recipe import Claim, Configuration, Recipe
from .common import BN, DBN, ITERNORM_ALL
from .iternorm2019_fig6 import BASE, SMALL

NORMS = {"BN": (BN, {}), "DBN": (DBN, {"seconds_per_step": 1.366}),
         "IterNorm": (ITERNORM_ALL, {"seconds_per_step": 0.343})}  # fmt: skip

RECIPE = Recipe(
    paper="iternorm2019",
    figure="supp-time",
    title="Time of an iteration of VGG with DBN and with IterNorm",
    data="noise-cifar",
    configurations=tuple(
        Configuration(
            name,
            "vgg",
            replace(BASE, epochs=3, augment=None),
            norm=norm,
            options={"configuration": "E"},
            paper=paper,
        )
        for name, (norm, paper) in NORMS.items()
    ),
    claims=(
        Claim(
            "IterNorm is significantly faster than DBN (paper: 0.343 s against 1.366 s).",
            "IterNorm",
            "DBN",
            "seconds_per_step",
        ),
    ),
    choices=(
        "As dbn2018-tableB1: images are noise, the median of three epochs. BN is there for "
        "comparison.",
    ),
    quick=SMALL,
)
