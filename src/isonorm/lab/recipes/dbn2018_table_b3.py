"""DBN Table B.3: the same with batches of 256, on several GPUs."""

from .dbn2018_table_b4 import SEVERAL, timed

RECIPE = timed(
    "tableB3",
    "Time of ImageNet's ResNets with one DBN, batch 256: add --devices 2, 4 or 8",
    256,
    SEVERAL,
)
