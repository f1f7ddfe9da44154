"""Σ → W by Cholesky factorization, Σ = LLᵀ, W = L^(-1): the cheapest exact whitening, and an
ordered one.

Channel i is decorrelated from the channels before it, so permuting channels changes more than their
order.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .gauge import Gauge
from .recurrence import identity_like, trace


class Cholesky(Gauge):
    """L^(-1), lower triangular with a positive diagonal."""

    name = "cholesky"

    def factor(self, sigma: Tensor) -> Tensor:
        """L^(-1) of Σ plus the smallest shift of a fixed ladder, relative to tr Σ/d, under which Σ
        factors.

        All rungs are tried and the choice is made on the device: nobody waits for the outcome, as a
        retry would. The first is the rounding unit; the last exceeds the error bound of the
        factorization, so that it succeeds on every covariance.
        """
        d = sigma.shape[-1]
        unit = torch.finfo(sigma.dtype).eps
        eye = identity_like(sigma)
        scale = trace(sigma) / d
        lower = None
        for shift in (unit * 100 * d, unit * 100, unit):
            attempt, info = torch.linalg.cholesky_ex(sigma / scale + shift * eye)
            works = (info == 0)[..., None, None]
            lower = attempt if lower is None else torch.where(works, attempt, lower)
        assert lower is not None
        return torch.linalg.solve_triangular(lower, eye, upper=False) / scale.sqrt()

    def split(self, w: Tensor) -> Tensor:
        return torch.ones_like(w).tril(-1) + 0.5 * identity_like(w)
