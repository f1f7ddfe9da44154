"""What the recipes share: the papers' norms as isonorm names them, and their ways to train."""

from __future__ import annotations

from ..data import FlipAndCrop
from ..plan import Plan
from ..recipe import Claim
from ..schedules import Steps

PLAIN, BN, LN, GN = "plain", "batchnorm", "layernorm", "groupnorm"

# All papers average the whitening matrix for inference (IterNorm Eq. 8, DBN Algorithm 1).
DBN = "dbn:running=whitening"
DBN_ALL = "dbn:group_size=None:running=whitening"
ITERNORM = "iternorm:running=whitening"
ITERNORM_ALL = "iternorm:group_size=None:running=whitening"

#: What the papers' milliseconds of layers are compared with: those took so long on their GPUs that
#: launching them did not count.
TIME = "device_milliseconds"


def dbn(group_size: int | None) -> str:
    """DBN with groups of so many channels; None: all."""
    return f"dbn:group_size={group_size}:running=whitening"


def iternorm(group_size: int | None = None, num_iters: int = 5) -> str:
    """IterNorm with so many channels together, None: all, and T iterations."""
    return f"iternorm:group_size={group_size}:num_iters={num_iters}:running=whitening"


#: What no paper tells, for the choices of every recipe that whitens.
OPEN = (
    "ε is 1e-5 and a new batch has a weight of 0.1 in running averages, both of which the paper "
    "leaves open. An incomplete last batch is left out."
)
#: For those that search a grid by the training loss.
SEARCHED = "What a grid offers is chosen with the first seed; the others train with that."

#: The hidden layers of the MLPs for MNIST.
HIDDEN = {"hidden": (100, 100, 100)}

#: "A random flip and random crop with padding", mirrored at the edge as the published code does.
MIRRORED = FlipAndCrop(padding=4, border="reflect")
#: The same with borders of zeros, as He et al. and EquiNorm pad: the mean color, where images are
#: standardized.
PADDED = FlipAndCrop(padding=4)

#: Zagoruyko & Komodakis' setup, which both whitening papers follow for wide residual networks.
WIDE = Plan(
    epochs=200,
    batch_size=128,
    lr=0.1,
    momentum=0.9,
    nesterov=True,
    weight_decay=5e-4,
    schedule=Steps((60, 120, 160), 0.2),
    mean="channel",
    std="channel",
    augment=MIRRORED,
)


def lower(text: str, better: str, worse: str, *measures: str) -> tuple[Claim, ...]:
    """One claim for each measure in which the better configuration is lower."""
    return tuple(Claim(text, better, worse, measure) for measure in measures)
