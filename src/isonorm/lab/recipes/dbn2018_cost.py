"""DBN Appendix B: the cost formulas, and the time of full whitening beside a convolution."""

from __future__ import annotations

from ..measuring.words import Formula, Layer, Measurement
from ..recipe import Claim
from .common import TIME, dbn

SHAPE = (64, 64, 32, 32)
CONV = "3 × 3 convolution"
GROUPS = {8: "DBN-G8", 16: "DBN-G16", 32: "DBN-G32", 64: "DBN, full"}


def overhead(k: int) -> float:
    """Of DBN with groups of K, relative to the convolution."""
    m, d, h, w = SHAPE
    return k / (9 * d) + k**2 / (9 * d * m * h * w)


RECIPE = Measurement(
    paper="dbn2018",
    figure="cost",
    title="Operations and time of DBN beside a 3 × 3 convolution's: the formulas of Appendix B",
    measures=(
        TIME,
        "operations",
        "operations_per_convolution",
        "operations_per_formula",
        "training_operations",
    ),
    calls=2,
    configurations=(
        Layer(CONV, "conv", SHAPE, Formula(passes=9), paper={TIME: 32}),
        *(
            Layer(
                name,
                dbn(k),
                SHAPE,
                Formula(passes=1, roots=1, group_size=k),
                paper={"operations_per_convolution": overhead(k)}
                | ({TIME: 71} if name == "DBN, full" else {}),
            )
            for k, name in GROUPS.items()
        ),
    ),
    claims=(
        Claim("The convolution costs O(d²mhw·9).", CONV, 1.01, "operations_per_formula"),
        *(
            Claim(
                f"{name} costs O(dKmhw + dK²): at most three times that.",
                name,
                3.0,
                "operations_per_formula",
            )
            for name in GROUPS.values()
        ),
        Claim(
            "The relative overhead is negligible when K is small: less than a tenth of the "
            "convolution's cost with K = 16.",
            "DBN-G16",
            0.1,
            "operations_per_convolution",
        ),
        Claim(
            "Full whitening takes longer than the highly optimized convolution (paper: 71 ms "
            "against 32 ms).",
            CONV,
            "DBN, full",
            TIME,
        ),
    ),
    choices=(
        "The input of the paper's times, 64 × 32 × 32 with a batch of 64, for the formulas, too. "
        "An operation is a multiplication (with its addition) in a matrix product.",
        "Of an O(·) the paper does not tell the factor: here a covariance and its application are "
        "two passes, and an eigendecomposition counts as 4.5·K³.",
        "10 passes, as in the paper: two with each of five inputs, after a warm-up. On a GPU they "
        "are rounds of passes, replayed as a CUDA graph without the time to launch them.",
        "Negligible: less than a tenth.",
    ),
)
