"""IterNorm Section 3.3: the cost formulas, beside operations counted on the layers."""

from __future__ import annotations

from ..measuring.words import Formula, Layer, Measurement
from ..recipe import Claim
from .common import iternorm

ITERATIONS = (3, 5, 7)
DIMENSIONS = (64, 128)
CONV, FOLDED = "3 × 3 convolution", "convolution with IterNorm merged"
SAMPLES = 64 * 32 * 32


def shape(d: int) -> tuple[int, int, int, int]:
    return 64, d, 32, 32


def relative(t: int, d: int) -> float:
    """The cost of IterNorm for a 3 × 3 convolution, as the paper states it."""
    return 2 / 9 + t * d / SAMPLES


RECIPE = Measurement(
    paper="iternorm2019",
    figure="cost",
    title="Operations of IterNorm beside a 3 × 3 convolution's: the formulas of Section 3.3",
    measures=(
        "operations",
        "operations_per_convolution",
        "operations_per_formula",
        "root_operations",
        "training_operations",
    ),
    seeds=1,
    configurations=tuple(
        layer
        for d in DIMENSIONS
        for layer in (
            Layer(f"{CONV}, d = {d}", "conv", shape(d), Formula(passes=9)),
            *(
                Layer(
                    f"IterNorm-iter{t}, d = {d}",
                    iternorm(None, t),
                    shape(d),
                    Formula(passes=2, roots=t),
                    paper={
                        "operations_per_convolution": relative(t, d),
                        "root_operations": t * d**3,
                    },
                )
                for t in ITERATIONS
            ),
            Layer(
                f"IterNorm-iter5 in groups of 32, d = {d}",
                iternorm(32, 5),
                shape(d),
                Formula(passes=2, roots=5, group_size=32),
            ),
            Layer(f"{FOLDED}, d = {d}", f"folded:{iternorm(None, 5)}", shape(d), Formula(passes=9)),
        )
    ),
    claims=tuple(
        claim
        for d in DIMENSIONS
        for claim in (
            Claim(
                f"d = {d}: the 3 × 3 convolution costs 9hwmd².",
                f"{CONV}, d = {d}",
                1.01,
                "operations_per_formula",
            ),
            *(
                Claim(
                    f"d = {d}: IterNorm with T = {t} costs 2hwmd² + Td³ (at most 1 % more).",
                    f"IterNorm-iter{t}, d = {d}",
                    1.01,
                    "operations_per_formula",
                )
                for t in ITERATIONS
            ),
            *(
                Claim(
                    f"d = {d}: the cost of T = {t} iterations is Td³.",
                    f"IterNorm-iter{t}, d = {d}",
                    t * d**3,
                    "root_operations",
                    margin=1.0,
                )
                for t in ITERATIONS
            ),
            *(
                Claim(
                    f"d = {d}, T = {t}: for the convolution it costs 2/9 + Td/mhw, or less.",
                    f"IterNorm-iter{t}, d = {d}",
                    relative(t, d),
                    "operations_per_convolution",
                )
                for t in ITERATIONS
            ),
            Claim(
                f"d = {d}: group-wise whitening improves the efficiency.",
                f"IterNorm-iter5 in groups of 32, d = {d}",
                f"IterNorm-iter5, d = {d}",
                "operations",
            ),
            Claim(
                f"d = {d}: merged into a convolution, IterNorm costs nothing in inference.",
                f"{FOLDED}, d = {d}",
                f"{CONV}, d = {d}",
                "operations",
                margin=1.0,
            ),
        )
    ),
    choices=(
        "The sizes are the supplement's: m = 64, h = w = 32, d = 64 and 128. An operation is a "
        "multiplication (with its addition) in a matrix product.",
        "2hwmd² + Td³ over 9hwmd² is 2/9 + Td/9mhw: the paper's 2/9 + Td/mhw has lost the 9, and "
        "is taken as a bound.",
        "An iteration P ← ½(3P − P³Σ) is three products, not one; isonorm takes 3(T − 1) for T "
        "iterations, since P₀ is the identity.",
    ),
)
