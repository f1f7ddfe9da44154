"""IterNorm Figure 7: how many iterations, and how many channels together."""

from __future__ import annotations

from ..recipe import Claim, Configuration, Recipe
from .common import OPEN, lower
from .iternorm2019_fig6 import BASE, SMALL

ITERATIONS = (0, 1, 3, 5, 7)
GROUPS = (512, 256, 64, 32, 1)
VGG = {"configuration": "E"}
#: Large group sizes by configuration, and by how much more error they would be worse.
LARGE, INSENSITIVE = {"T = 5": 512, "group size 256": 256}, 0.005

RECIPE = Recipe(
    paper="iternorm2019",
    figure="fig7",
    title="VGG on CIFAR-10: IterNorm's iterations T and group size",
    data="cifar10",
    seeds=3,
    configurations=(
        *(
            Configuration(
                f"T = {t}",
                "vgg",
                BASE,
                norm=f"iternorm:group_size=None:num_iters={t}:running=whitening",
                options=VGG,
            )
            for t in ITERATIONS
        ),
        *(
            Configuration(
                f"group size {g}",
                "vgg",
                BASE,
                norm=f"iternorm:group_size={g}:running=whitening",
                options=VGG,
            )
            for g in GROUPS[1:]  # 512 is "T = 5"
        ),
    ),
    claims=(
        *(
            Claim(
                f"The smallest (T = 0) and the largest (T = 7) iteration number both have worse "
                f"training efficiency: T = 5 against T = {t}.",
                "T = 5",
                f"T = {t}",
                "average_train_error",
            )
            for t in (0, 7)
        ),
        Claim("When T = 7, IterNorm has significantly worse test performance.", "T = 5", "T = 7"),
        *(
            Claim(
                "IterNorm is not sensitive to a large group size, in training and testing: "
                f"{LARGE[large]} against 64.",
                large,
                "group size 64",
                measure,
                margin=INSENSITIVE,
            )
            for large in LARGE
            for measure in ("average_train_error", "test_error")
        ),
        *(
            claim
            for name in (*LARGE, "group size 64", "group size 32")
            for claim in lower(
                f"In groups, IterNorm is better than BatchNorm, which is group size 1 ({name}).",
                name,
                "group size 1",
                "average_train_error",
                "test_error",
            )
        ),
    ),
    choices=(
        "As iternorm2019-fig6's base configuration; group size 512 is (a)'s T = 5.",
        "Not sensitive: at most half a percent more error than with groups of 64.",
        OPEN,
    ),
    quick=SMALL,
)
