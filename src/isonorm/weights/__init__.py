"""Normalizing weights, so that activations are normalized implicitly.

Equilibrium Normalization is a family of layers. Every other method is a
``torch.nn.utils.parametrize`` parametrization, put on a layer by a function of its name and taken
off by ``torch.nn.utils.parametrize.remove_parametrizations``.
"""

from ..layers import MeanOnlyBatchNorm as MeanOnlyBatchNorm
from .centered import centered_weight_norm as centered_weight_norm
from .equinorm import EquiConv1d as EquiConv1d
from .equinorm import EquiConv2d as EquiConv2d
from .equinorm import EquiConv3d as EquiConv3d
from .equinorm import EquiLinear as EquiLinear
from .equinorm import equinorm_from_pair as equinorm_from_pair
from .initialization import initialize_from_data as initialize_from_data
from .orthogonal import orthogonal as orthogonal
from .propagation import StandardizedActivation as StandardizedActivation
from .propagation import normalization_propagation as normalization_propagation
from .standardization import weight_standardization as weight_standardization
from .weight_norm import weight_norm as weight_norm
