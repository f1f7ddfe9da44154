"""DBN Tables B.3 and B.4: seconds for an iteration of the ImageNet networks."""

from __future__ import annotations

from dataclasses import replace

from ..recipe import Claim, Recipe
from .common import BN, DBN
from .imagenet import PLAN, QUICK, resnet

#: Seconds an iteration: training with BN and with DBN.
SINGLE = {101: (1.24, 1.35), 50: (0.69, 0.80), 34: (0.34, 0.45), 18: (0.20, 0.31)}
SEVERAL = {101: (1.52, 4.21), 50: (0.51, 1.12), 34: (1.21, 2.04), 18: (0.81, 1.45)}
NORMS = {"BN": {"norm": BN}, "DBN-scale": {"norm": BN, "first_norm": DBN}}


def timed(
    figure: str, title: str, batch_size: int, paper: dict[int, tuple[float, float]]
) -> Recipe:
    plan = replace(PLAN, epochs=3, batch_size=batch_size)
    return Recipe(
        paper="dbn2018",
        figure=figure,
        title=title,
        data="noise-imagenet",
        configurations=tuple(
            replace(resnet(name, depth, plan, norms), paper={"seconds_per_step": times[place]})
            for depth, times in paper.items()
            for place, (name, norms) in enumerate(NORMS.items())
        ),
        claims=tuple(
            Claim(
                f"One DBN makes an iteration of Res-{depth} longer.",
                f"BN, Res-{depth}",
                f"DBN-scale, Res-{depth}",
                "seconds_per_step",
            )
            for depth in paper
        ),
        choices=(
            "Images are noise: time does not depend on what they show. 2,560 of them, three times; "
            "the median.",
            "Inference is in test_seconds, for 320 images; the paper's is for an iteration.",
        ),
        quick=replace(QUICK, train_images=8, test_images=8),
    )


RECIPE = timed(
    "tableB4", "Time of ImageNet's ResNets with one DBN, batch 32 on one GPU", 32, SINGLE
)
