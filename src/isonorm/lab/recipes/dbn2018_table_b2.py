"""DBN Table B.2: seconds for an epoch of residual networks with one DBN."""

from __future__ import annotations

from dataclasses import replace

from ..plan import Plan
from ..recipe import Claim, Configuration, Quick, Recipe
from .common import BN, DBN, WIDE
from .dbn2018_table1 import PLAN

#: Seconds an epoch: training with BN and with DBN, inference with BN and with DBN.
PAPER = {
    "Res-56": (69.53, 86.80, 4.57, 5.12),
    "Res-44": (55.03, 72.06, 3.65, 4.36),
    "Res-32": (40.36, 57.47, 2.80, 3.33),
    "Res-20": (25.97, 42.87, 1.94, 2.44),
    "WideRes-40": (643.94, 659.55, 25.69, 26.08),
    "WideRes-28": (440, 457, 36.56, 38.10),
}
KINDS = {"BN": {}, "DBN-scale": {"first_norm": DBN}}


def network(name: str, norms: dict[str, str], paper: dict[str, float], label: str) -> Configuration:
    kind, depth = name.split("-")
    model, plan, options = {
        "Res": ("cifar_resnet", PLAN, {}),
        "WideRes": ("wrn", WIDE, {"widen": 10, "dropout": 0.3}),
    }[kind]
    three: Plan = replace(plan, epochs=3, augment=None)
    sizes = {"depth": int(depth), **options, **norms}
    return Configuration(label, model, three, norm=BN, options=sizes, paper=paper)


RECIPE = Recipe(
    paper="dbn2018",
    figure="tableB2",
    title="Time of residual networks with one DBN before the first block",
    data="noise-cifar",
    configurations=tuple(
        network(
            name,
            norms,
            {"seconds_per_epoch": times[place], "test_seconds": times[2 + place]},
            f"{kind}, {name}",
        )
        for name, times in PAPER.items()
        for place, (kind, norms) in enumerate(KINDS.items())
    ),
    claims=tuple(
        Claim(
            f"One DBN makes an epoch of {name} longer.",
            f"BN, {name}",
            f"DBN-scale, {name}",
            "seconds_per_epoch",
        )
        for name in PAPER
    ),
    choices=("As dbn2018-tableB1: images are noise, the median of three epochs.",),
    quick=Quick(
        width=0.05,
        depth={"cifar_resnet": 8, "wrn": 10},
        epochs=1,
        train_images=16,
        test_images=16,
    ),
)
