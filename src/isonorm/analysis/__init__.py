"""Seeing what a normalization does: disturbance, conditioning, curvature, invariance.

Everything here takes any layer, of this package or of torch, and leaves it as it was. Curvature
needs hessian-eigenthings, and ``isonorm.analysis.plots``, which is imported apart, matplotlib: both
come with ``isonorm[lab]``.
"""

from .disturbance import Disturbance as Disturbance
from .disturbance import snd as snd
from .disturbance import snd_with_error as snd_with_error
