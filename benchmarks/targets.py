"""How much faster than the plain algorithm the layer has to be on a CPU, and whether it is."""

from __future__ import annotations

from typing import NamedTuple

from .cases import BATCHED, ITERNORM, LOOPED, SHAPES, Case
from .measure import ratio

#: Where whitening is meant to be used: the convolutional shapes, in groups of these sizes.
DEMANDING_SHAPES, DEMANDING_GROUP_SIZES = SHAPES[:2], (16, 64)
DEMANDING = {LOOPED: 2.0, BATCHED: 1.5}
#: Everywhere else: never slower.
ELSEWHERE = {LOOPED: 1.0, BATCHED: 1.0}


class Verdict(NamedTuple):
    case: str
    other: str
    required: float  # times faster
    measured: float
    passed: bool

    def __str__(self) -> str:
        word = "met" if self.passed else "MISSED"
        found = f"{self.case}: {self.measured:.2f} × as fast as {self.other}"
        return f"{word:6}  {found}, at least {self.required:g} wanted"


def required(case: Case) -> dict[str, float]:
    demanding = case.shape in DEMANDING_SHAPES and case.group_size in DEMANDING_GROUP_SIZES
    return DEMANDING if demanding else ELSEWHERE


def judge(case: Case, times: dict[str, list[float]]) -> list[Verdict]:
    """
    >>> times = {ITERNORM: [1.0, 1.0], LOOPED: [3.0, 3.0], BATCHED: [1.2, 1.2]}
    >>> [verdict.passed for verdict in judge(Case((32, 64, 56, 56), 16), times)]
    [True, False]
    """
    verdicts = []
    for other, least in required(case).items():
        speedup = ratio(times[other], times[ITERNORM]).median
        verdicts.append(Verdict(str(case), other, least, speedup, speedup >= least))
    return verdicts
