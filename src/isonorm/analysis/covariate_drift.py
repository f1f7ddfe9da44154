"""Covariate drift: how a layer's statistics move between steps (EquiNorm Section 5.1)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor, nn

from ..statistics import Statistics, measure
from ._layers import Layers, observe
from .conditioning import features_of


class Drift(NamedTuple):
    """Movement of a layer's statistics, 0 where nothing moved; without unit in every part."""

    mean: float  # root mean square over channels of (μ′ − μ)/σ
    scale: float  # root mean square over channels of log σ′/σ
    covariance: float  # ‖Σ′ − Σ‖/‖Σ‖, Frobenius


def drift(before: Tensor, after: Tensor) -> Drift:
    """How far the statistics of (N, C, *) activations have moved.

    >>> import torch
    >>> x = torch.randn(100, 4)
    >>> round(drift(x, 1.1 * x).scale, 4)  # log 1.1
    0.0953
    """
    return drift_of(measure(features_of(before)), measure(features_of(after)))


def drift_of(before: Statistics, after: Statistics) -> Drift:
    """The same from statistics, (1, C) and (1, C, C)."""
    if before.cov.shape != after.cov.shape:
        raise ValueError(
            f"a layer keeps its channels between steps; got {before.cov.shape[-1]} before and "
            f"{after.cov.shape[-1]} after."
        )
    sigma, sigma_after = (s.cov.diagonal(dim1=-2, dim2=-1).sqrt() for s in (before, after))
    alive = (sigma != 0) & (sigma_after != 0)  # a channel without variance has no unit to move in
    shift = ((after.mean - before.mean) / sigma)[alive]
    stretch = (sigma_after / sigma)[alive].log()
    change, size = (after.cov - before.cov).norm(), before.cov.norm()
    return Drift(_rms(shift), _rms(stretch), (change / size).item() if change != 0 else 0.0)


def layer_drift(
    model: nn.Module,
    inputs: Any,
    step: Callable[[], object],
    *,
    layers: Layers = None,
    of: str = "output",
) -> dict[str, Drift]:
    """The drift of each layer across ``step()``, which trains the model, seen on the same inputs.

    >>> import torch
    >>> model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, affine=False))
    >>> moved = layer_drift(model, torch.randn(64, 4), lambda: model[0].weight.data.mul_(2))
    >>> round(moved["0"].scale, 2), round(moved["1"].scale, 2)  # the norm holds its output still
    (0.69, 0.0)
    """

    def look() -> dict[str, Statistics]:
        return observe(model, inputs, lambda x: measure(features_of(x)), layers=layers, of=of)

    before = look()
    step()
    after = look()
    return {name: drift_of(before[name], after[name]) for name in before}


def _rms(values: Tensor) -> float:
    return values.square().mean().sqrt().item() if values.numel() else 0.0
