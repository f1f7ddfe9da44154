"""What the recipes on ImageNet share (He et al.'s setup, which all papers follow)."""

from __future__ import annotations

from collections.abc import Mapping

from ..plan import Plan
from ..recipe import Configuration, Quick
from ..schedules import Steps
from .common import OPEN

#: "SGD with a mini-batch size of 256, momentum of 0.9 and weight decay of 0.0001".
PLAN = Plan(
    epochs=100,
    batch_size=256,
    lr=0.1,
    momentum=0.9,
    weight_decay=1e-4,
    schedule=Steps((30, 60, 90), 0.1),
    mean="channel",
    std="channel",
)
QUICK = Quick(width=0.06, depth=18, epochs=1, batch_size=8)
CHOICES = (
    "'The same experimental setup as described in [11]': crops of 8 to 100 % of the area and "
    "flips, as the Torch implementation of ResNet has them, without its jitter of colors and "
    "lighting; tested on one crop in the middle. Momentum without Nesterov, as He et al. have it; "
    "IterNorm's published script has it with.",
    "Several GPUs take statistics of their share of a batch each; here a device does of what it is "
    "given, and --sync-statistics of the whole batch.",
    OPEN,
)


def resnet(
    name: str, depth: int, plan: Plan, norms: Mapping[str, str], *errors: float
) -> Configuration:
    """A residual network with the paper's top-1 and top-5 errors in percent."""
    measures = ("test_error", "test_top5_error")
    return Configuration(
        f"{name}, Res-{depth}",
        "resnet",
        plan,
        norm=norms["norm"],
        options={"depth": depth, **{key: norms[key] for key in norms if key != "norm"}},
        paper=dict(zip(measures, errors, strict=False)),
    )
