"""Conditioning of activations: what the covariance of a layer's input or output looks like.

Activations are (N, C, *); as in the papers, every position of every example is a sample of C
features. Eigenvalues come in descending order, and everything is computed in float64 where the
device has it.
"""

from __future__ import annotations

from math import ceil, inf, nan
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..statistics import measure
from ._layers import Layers, observe


class Conditioning(NamedTuple):
    """A covariance in five numbers."""

    condition_number: float
    effective_rank: float
    off_diagonal_energy: float
    largest: float  # eigenvalue
    smallest: float


def covariance(x: Tensor) -> Tensor:
    """Σ of (N, C, *) activations, (C, C), divided by the number of samples."""
    return measure(features_of(x)).cov[0]


def spectrum(x: Tensor) -> Tensor:
    """The eigenvalues of the covariance of (N, C, *) activations, largest first.

    >>> x = torch.randn(10000, 3) * torch.tensor([1.0, 3.0, 2.0])
    >>> spectrum(x).round().tolist()
    [9.0, 4.0, 1.0]
    """
    return eigenvalues(covariance(x))


def condition_number(x: Tensor, fraction: float = 1.0) -> float:
    """λ₁/λ_C of the covariance of (N, C, *) activations; infinite where it is singular to rounding.

    ``fraction`` < 1 stops at that part of the eigenvalues, λ₁/λ_⌈fraction·C⌉: large networks have a
    few directions without variance, and the rest is what matters then.

    >>> x = torch.randn(10000, 3) * torch.tensor([1.0, 3.0, 2.0])
    >>> round(condition_number(x)), round(condition_number(x, fraction=0.5))
    (9, 2)
    """
    statistics = measure(features_of(x))
    return condition_of(eigenvalues(statistics.cov[0]), fraction, rounding_of(x, statistics.mean))


def effective_rank(x: Tensor) -> float:
    """exp(entropy) of the eigenvalues as shares of their sum (Roy & Vetterli 2007): 1 to C.

    >>> round(effective_rank(torch.randn(10000, 5)), 1)
    5.0
    """
    return rank_of(spectrum(x))


def off_diagonal_energy(x: Tensor) -> float:
    """The share of squared correlations that lie between different channels: 0 where none are
    correlated, 1 − 1/C where all are one.

    >>> x = torch.randn(100, 1)
    >>> round(off_diagonal_energy(torch.cat([x, 2 * x, -x, x], dim=1)), 6)
    0.75
    """
    return off_diagonal_of(covariance(x))


def condition(x: Tensor) -> Conditioning:
    """All of the above from one eigendecomposition.

    >>> c = condition(torch.randn(1000, 4))
    >>> 1 < c.condition_number < 2 and 3.9 < c.effective_rank < 4
    True
    """
    statistics = measure(features_of(x))
    return summary_of(statistics.cov[0], rounding_of(x, statistics.mean))


def layer_conditioning(
    model: nn.Module, inputs: Any, *, layers: Layers = None, of: str = "output"
) -> dict[str, Conditioning]:
    """The conditioning of each layer's input or output while the model sees ``inputs``.

    >>> import isonorm
    >>> model = nn.Sequential(nn.BatchNorm1d(8), isonorm.DBN(8), nn.ReLU())
    >>> found = layer_conditioning(model, torch.randn(500, 8).cumsum(1))  # correlated channels
    >>> found["1"].condition_number < 1.2 < 5 < found["0"].condition_number
    True

    Args:
        model: runs once, in its present mode; its buffers stay as they are.
        inputs: what the model is called with; a tuple holds several arguments.
        layers: names, a pattern such as ``"layer1.*"``, or a function of name and module; None:
            all linear, convolution and normalization layers.
        of: "input" or "output".
    """
    return observe(model, inputs, condition, layers=layers, of=of)


# --- from matrices and their eigenvalues ----------------------------------------------------------


def eigenvalues(matrix: Tensor) -> Tensor:
    """Those of a symmetric positive semi-definite matrix, largest first; rounding below 0 is 0."""
    if not matrix.isfinite().all():
        return torch.full_like(matrix[..., 0], float("nan"))
    return torch.linalg.eigvalsh(matrix).flip(-1).clamp(min=0)


class Rounding(NamedTuple):
    """What the dtype of data does to their covariance."""

    eps: float
    offset: float  # the largest |mean| of a channel

    def variance(self, largest: float) -> float:
        """How much may be rounding where the largest eigenvalue is this: eps² of it, from
        arithmetic; and a number is stored with an error of half an eps of itself, mean included.
        """
        return self.eps**2 * max(largest, (self.offset / 2) ** 2)


EXACT = Rounding(0.0, 0.0)


def rounding_of(x: Tensor, mean: Tensor | None = None) -> Rounding:
    """That of x, from the means of its channels; None: of moments about zero, whose largest
    eigenvalue has the means in it.
    """
    if not x.is_floating_point():
        return EXACT
    return Rounding(torch.finfo(x.dtype).eps, 0.0 if mean is None else mean.abs().max().item())


def summary_of(matrix: Tensor, rounding: Rounding = EXACT) -> Conditioning:
    values = eigenvalues(matrix)
    return Conditioning(
        condition_of(values, rounding=rounding),
        rank_of(values),
        off_diagonal_of(matrix),
        values[0].item(),
        values[-1].item(),
    )


def condition_of(values: Tensor, fraction: float = 1.0, rounding: Rounding = EXACT) -> float:
    """λ₁/λ_p from descending eigenvalues, infinite where λ_p is rounding: that of the eigenvalues
    (``torch.linalg.matrix_rank``'s bound), or that of the data.
    """
    if not 0 < fraction <= 1:
        raise ValueError(f"fraction must be above 0 and at most 1; got {fraction}.")
    largest, smallest = values[0].item(), values[ceil(fraction * len(values)) - 1].item()
    floor = max(largest * len(values) * torch.finfo(values.dtype).eps, rounding.variance(largest))
    return inf if smallest <= floor else largest / smallest


def rank_of(values: Tensor) -> float:
    share = values / values.sum()
    return torch.special.entr(share).sum().exp().item()


def off_diagonal_of(cov: Tensor) -> float:
    if not cov.isfinite().all():
        return nan
    scale = cov.diagonal().sqrt()
    correlation = cov / (scale[:, None] * scale)
    # a channel without variance is correlated with nothing
    squares = correlation.nan_to_num(0, 0, 0).square()
    total = squares.sum().item()
    return 0.0 if total == 0 else 1 - squares.diagonal().sum().item() / total


def wide(x: Tensor) -> Tensor:
    """x in the precision of the analysis."""
    return x.float() if x.device.type == "mps" else x.double()


def features_of(x: Tensor) -> Tensor:
    """(1, C, m) from (N, C, *)."""
    if x.dim() < 2 or x.numel() == 0 or x.is_complex():
        raise ValueError(
            f"expected real activations (N, C, *), not empty; got {x.dtype} of shape "
            f"{tuple(x.shape)}."
        )
    return wide(x.detach()).transpose(0, 1).flatten(1).unsqueeze(0)
