"""Normalizing gradients: optimizers whose steps are scaled layer by layer, and wrappers that
normalize gradients for any optimizer.

A layer is a parameter tensor. Parameters of fewer than ``min_ndim=2`` dimensions (biases, the gains
of a normalization) take the plain step of the method: no trust ratio and no weight decay.
"""

from .centralize import centralize as centralize
from .lamb import LAMB as LAMB
from .lans import LANS as LANS
from .lars import LARS as LARS
from .normalize import normalize_gradients as normalize_gradients
from .schedules import warmup_polynomial as warmup_polynomial
