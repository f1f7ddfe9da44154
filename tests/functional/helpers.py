"""Inputs with something to normalize, and random questions to their gradients."""

from __future__ import annotations

import torch
from torch import Tensor

from isonorm import area as areas
from isonorm.functional import normalize
from isonorm.recovery import Affine

#: Areas that whiten, with their corner cases, for 8 channels.
WHITENING = {
    "batch, all channels": areas.batch(),
    "batch, groups of 3 and a last of 2": areas.batch(3),
    "instance, groups of 3 and a last of 2": areas.instance(3),
    "group": areas.group(4),
}


def double(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def correlated(n: int, c: int, *positions: int) -> Tensor:
    """Correlated channels of different scales, far from symmetric: eigenvalues lie well apart."""
    mix = torch.randn(c, c) / c**0.5 + torch.diag(torch.linspace(1, 2.5, c))
    x = torch.einsum("ij,nj...->ni...", mix, torch.randn(n, c, *positions)) + 0.5
    return x.double().requires_grad_()


def gradients(y: Tensor, inputs: tuple[Tensor, ...], seed: int = 1) -> tuple[Tensor, ...]:
    """The gradients of a random functional of y."""
    generator = torch.Generator().manual_seed(seed)
    cotangent = torch.randn(y.shape, generator=generator, dtype=torch.float64).to(y.dtype)
    return torch.autograd.grad(y, inputs, cotangent)


def affine_whiten(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return normalize(x, area=areas.batch(2), operation="whiten", recovery=Affine(weight, bias))[0]
