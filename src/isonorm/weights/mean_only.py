"""Mean-only batch normalization (Salimans & Kingma, 2016, Section 4): the companion of weight
normalization, which settles the scale and leaves the mean to the batch.
"""

from __future__ import annotations

from typing import Unpack

from torch import nn

from .. import area as areas
from ..layers.named import _only
from ..layers.normalize import BatchOptions, Normalize


class MeanOnlyBatchNorm(Normalize):
    """t ← t − μ[t] + b over the batch, and over the running mean in eval.

    The composition ``area.batch(1)`` × ``"center"`` with a bias and no gain; the keywords are those
    of :class:`isonorm.BatchNorm`. A bias of the layer before it has no effect.

    >>> import torch
    >>> y = MeanOnlyBatchNorm(3)(7 + torch.randn(50, 3))
    >>> torch.allclose(y.mean(0), torch.zeros(3), atol=1e-5)
    True
    """

    _echoes = ("affine",)

    def __init__(
        self, num_features: int, *, affine: bool = True, **options: Unpack[BatchOptions]
    ) -> None:
        super().__init__(
            num_features,
            area=areas.batch(1),
            operation="center",
            recovery="affine" if affine else None,
            **_only(BatchOptions, options, self),
        )
        self.affine = affine

    def _initial_parameters(self, device=None, dtype=None) -> dict[str, nn.Parameter]:
        parameters = super()._initial_parameters(device, dtype)
        parameters.pop("weight", None)  # the weights before it have their own gain
        return parameters
