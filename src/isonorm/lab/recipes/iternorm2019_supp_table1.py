"""IterNorm, supplement, Table 1: milliseconds of layers, forward and backward."""

from __future__ import annotations

from ..measuring.words import Layer, Measurement
from ..recipe import Claim
from .common import BN, DBN_ALL, TIME, dbn, iternorm

DIMENSIONS = (64, 128)
CONV, FAST = "'nn' convolution", "'cudnn' convolution"
#: Layer → how isonorm names it, and the paper's milliseconds at d = 64 and 128.
LAYERS = {
    CONV: ("unfold", 8.89, 17.46),
    FAST: ("conv", 5.65, 13.62),
    "DBN": (DBN_ALL, 15.92, 35.02),
    **{
        f"IterNorm-iter{t}": (iternorm(None, t), *paper)
        for t, paper in {3: (6.59, 13.32), 5: (7.40, 13.92), 7: (8.21, 14.68)}.items()
    },
    "DBN, groups of 16": (dbn(16),),
    "BN": (BN,),
}

RECIPE = Measurement(
    paper="iternorm2019",
    figure="supp-table1",
    title="Time of IterNorm, DBN and 3 × 3 convolutions on 64 × d × 32 × 32",
    measures=(TIME, "milliseconds"),
    configurations=tuple(
        Layer(
            f"{name}, d = {d}",
            layer,
            (64, d, 32, 32),
            paper={TIME: times[place]} if times else {},
        )
        for place, d in enumerate(DIMENSIONS)
        for name, (layer, *times) in LAYERS.items()
    ),
    claims=tuple(
        Claim(f"d = {d}: {text}.", f"{lower}, d = {d}", f"{higher}, d = {d}", TIME)
        for d in DIMENSIONS
        for text, lower, higher in (
            ("IterNorm-iter5 is faster than the 'nn' convolution", "IterNorm-iter5", CONV),
            ("IterNorm-iter5 is slightly slower than 'cudnn'", FAST, "IterNorm-iter5"),
            ("IterNorm-iter5 is significantly faster than DBN", "IterNorm-iter5", "DBN"),
            ("IterNorm-iter7 is significantly faster than DBN", "IterNorm-iter7", "DBN"),
        )
    ),
    choices=(
        "'cudnn' is torch's own convolution, on a GPU cuDNN's fastest algorithm, in float32 "
        "without TF32; 'nn' unfolds the images into columns and multiplies, as Torch7's nn does.",
        "The paper does not tell DBN's groups: all channels, as IterNorm's are. Groups of 16, and "
        "BN, are there for comparison.",
        "The paper averages 100 passes. Today's GPUs are done with a layer before the host has "
        "launched it, so that a pass is replayed as a CUDA graph, many times in each of 20 rounds; "
        "beside that stands the time of 20 passes launched one by one. Of either the median, with "
        "5 inputs; every layer has its turn before the next input.",
        "A result is compared with a float64 reference before it is timed. On a GPU, isonorm's "
        "kernels take up to 128 channels together, for DBN up to 64: its d = 128 is plain torch.",
    ),
)
