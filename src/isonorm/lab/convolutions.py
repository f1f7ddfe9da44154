"""Convolutions and linear layers by name: plain ones, or with their weights normalized."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from ..weights import centered_weight_norm, equinorm_from_pair, orthogonal, weight_norm
from ..weights.equilibrium import balance_signs_
from .models import he_conv
from .models.parts import ConvFactory, LinearFactory

#: Puts a parametrization on a layer's weight, and returns the layer.
Parametrization = Callable[[nn.Module], nn.Module]


def equi_conv(*sizes: int, statistics_fraction: float = 1.0, **options: Any) -> nn.Module:
    """A convolution in equilibrium with He et al.'s initialization, as EquiNorm Section 6.1 has it.

    Its β is its bias, asked for or not.
    """
    return in_equilibrium(he_conv(*sizes, **options), statistics_fraction)


def equi_linear(
    in_features: int, out_features: int, *, bias: bool = True, statistics_fraction: float = 1.0
) -> nn.Module:
    """A linear layer in equilibrium with torch's initialization. Its β is its bias."""
    return in_equilibrium(nn.Linear(in_features, out_features, bias=bias), statistics_fraction)


def in_equilibrium(layer: nn.Conv2d | nn.Linear, statistics_fraction: float) -> nn.Module:
    """The layer that takes the place of a plain one and of the BatchNorm behind it.

    It begins with the plain one's weights, as far as their signs are balanced: equal seeds mean
    equal initial weights here, too.
    """
    norm = nn.BatchNorm2d if isinstance(layer, nn.Conv2d) else nn.BatchNorm1d
    made = equinorm_from_pair(
        layer, norm(layer.weight.shape[0]), statistics_fraction=statistics_fraction
    )
    with torch.no_grad():
        balance_signs_(made.weight)
    return made


def parametrized(
    put: Parametrization, make: Callable[..., nn.Module], *sizes: int, **options: Any
) -> nn.Module:
    """A layer that begins with the weights of a plain one, normalized by a parametrization."""
    return put(make(*sizes, **options))


#: Parametrizations of isonorm.weights that need no norm and no other activation beside them.
PARAMETRIZATIONS: dict[str, Parametrization] = {
    "weightnorm": weight_norm,
    "centered-weightnorm": centered_weight_norm,
    "orthogonal": orthogonal,
}

CONVOLUTIONS: dict[str, ConvFactory] = {
    "plain": he_conv,
    "equinorm": equi_conv,
    "equinorm-quarter": partial(equi_conv, statistics_fraction=0.25),
    **{name: partial(parametrized, put, he_conv) for name, put in PARAMETRIZATIONS.items()},
}

#: The linear layers that belong to these convolutions.
LINEARS: dict[str, LinearFactory] = {
    "plain": nn.Linear,
    "equinorm": equi_linear,
    "equinorm-quarter": partial(equi_linear, statistics_fraction=0.25),
    **{name: partial(parametrized, put, nn.Linear) for name, put in PARAMETRIZATIONS.items()},
}
