"""How a weight tensor is read: the weights of each output, output by output.

Index legend: k groups, o outputs of a group, n weights of an output (its fan-in).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter
from torch.nn.utils import parametrize

from ..scalars import plain

TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, *TRANSPOSED)


class Layout(NamedTuple):
    """Outputs lie along dimension ``dim``, of ``groups`` equal parts of dimension 0."""

    dim: int
    groups: int

    def rows(self, weight: Tensor) -> Tensor:
        """The weight as (k, o, n).

        >>> weight = nn.ConvTranspose2d(4, 6, 3, groups=2).weight  # (4, 3, 3, 3)
        >>> Layout(dim=1, groups=2).rows(weight).shape
        torch.Size([2, 3, 18])
        """
        return weight.unflatten(0, (self.groups, -1)).movedim(self.dim + 1, 1).flatten(2)

    def weight(self, rows: Tensor, like: Tensor) -> Tensor:
        """The inverse of ``rows``, in the shape of another weight."""
        shape = like.unflatten(0, (self.groups, -1)).movedim(self.dim + 1, 1).shape
        return rows.reshape(shape).movedim(1, self.dim + 1).flatten(0, 1)

    def per_row(self, values: Tensor) -> Tensor:
        """(k·o,) values, one an output, as (k, o, 1)."""
        return values.unflatten(0, (self.groups, -1)).unsqueeze(-1)


def layout_of(module: nn.Module, name: str, dim: int | None) -> Layout:
    """The layout of a layer's weight; ``dim=None`` finds the outputs as torch's ``spectral_norm``
    does: dimension 1 in transposed convolutions, 0 elsewhere.
    """
    weight = getattr(module, name, None)
    if not isinstance(weight, Tensor):
        raise ValueError(f"{type(module).__name__} has no parameter called {name!r}.")
    if isinstance(weight, UninitializedParameter):
        raise ValueError(
            f"{name} of {type(module).__name__} has no shape yet: run the model once before."
        )
    if weight.ndim < 2:
        raise ValueError(
            f"{name} must hold several weights for each output, in 2 or more dimensions; got shape "
            f"{tuple(weight.shape)}."
        )
    dim = plain(dim)
    if dim is None:
        transposed = isinstance(module, TRANSPOSED)
        groups = module.groups if isinstance(module, CONVOLUTIONS) else 1
        return Layout(int(transposed), groups)
    if not isinstance(dim, int) or not -weight.ndim <= dim < weight.ndim:
        raise ValueError(
            f"dim must be None or a dimension of {name}, of shape {tuple(weight.shape)}; got "
            f"{dim!r}."
        )
    return Layout(dim % weight.ndim, 1)


def register(
    module: nn.Module, name: str, dim: int | None, make: Callable[[Layout], nn.Module]
) -> nn.Module:
    """The module, its weight read through the parametrization that ``make`` makes of its layout."""
    layout = layout_of(module, name, dim)
    parametrize.register_parametrization(module, name, make(layout))
    return module


def check_centerable(layout: Layout, weight: Tensor, method: str) -> None:
    if layout.rows(weight).shape[-1] < 2:
        raise ValueError(
            f"{method} subtracts the mean of each output's weights, and needs two or more of them; "
            f"got a weight of shape {tuple(weight.shape)}, with one."
        )


def check_first(module: nn.Module, name: str, method: str) -> None:
    """Two parts, g and v, can only be what lies below all other parametrizations."""
    if parametrize.is_parametrized(module, name):
        raise ValueError(
            f"{method} splits a weight into a gain and a direction, and must come before any other "
            f"parametrization; {name} of this layer has one already: take it off by "
            "torch.nn.utils.parametrize.remove_parametrizations."
        )
