"""Orthogonal weights: a proxy, whitened (Huang et al., "Orthogonal Weight Normalization", AAAI
2018, and "Controllable Orthogonalization in Training DNNs" (ONI), CVPR 2020).

For the proxy V, (outputs × fan-in) of a layer,

    W = (V·Vᵀ)^(-1/2)·V

has orthonormal rows: the rows of V are whitened as features are by DBN and IterNorm, by the same
roots. With more outputs than fan-in the columns are orthonormal instead, W = V·(Vᵀ·V)^(-1/2).
``newton`` with T steps is ONI, where T controls how far singular values are drawn to 1. ONI bounds
V·Vᵀ by its Frobenius norm, from which fewer steps are needed than from IterNorm's trace.
"""

from __future__ import annotations

from dataclasses import replace
from math import isfinite

import torch
from torch import Tensor, nn

from .. import operation
from ..checks import check_options
from ..operation import Operation
from ..roots.newton import BoundedNewton, Newton
from ..roots.recurrence import identity_like
from ..scalars import plain
from ..statistics import no_autocast, working_dtype
from .layout import Layout, register


class Orthogonal(nn.Module):
    """V → W, group by group."""

    def __init__(
        self, layout: Layout, whiten: Operation, centered: bool, scale: float, eps: float
    ) -> None:
        super().__init__()
        self.layout, self.whiten = layout, whiten
        self.centered, self.scale, self.eps = centered, scale, eps

    def _proxy(self, weight: Tensor) -> Tensor:
        rows = self.layout.rows(weight).to(working_dtype(weight))
        return rows - rows.mean(-1, keepdim=True) if self.centered else rows

    def forward(self, weight: Tensor) -> Tensor:
        root = self.whiten.root
        assert root is not None
        with no_autocast(weight):
            v = self._proxy(weight)
            is_tall = v.shape[-2] > v.shape[-1]
            v = v.mT if is_tall else v
            gram = v @ v.mT
            w = root.on(gram.device)(gram + self.eps * identity_like(gram)) @ v
            w = self.scale * (w.mT if is_tall else w)
            return self.layout.weight(w, weight).to(weight.dtype)

    @torch.no_grad()
    def right_inverse(self, weight: Tensor) -> Tensor:
        """The orthogonal matrix nearest to the weight: of all proxies with the same W the best
        conditioned.
        """
        v = self._proxy(weight)
        u, _, vh = torch.linalg.svd(v, full_matrices=False)
        return self.layout.weight(u @ vh, weight).to(weight.dtype)

    def extra_repr(self) -> str:
        return (
            f"{self.whiten!r}, dim={self.layout.dim}, centered={self.centered}, "
            f"scale={self.scale}, eps={self.eps}"
        )


def orthogonal(
    module: nn.Module,
    name: str = "weight",
    dim: int | None = None,
    *,
    method: str = "polar",
    num_iters: int | None = None,
    centered: bool = False,
    scale: float = 1.0,
    eps: float = 1e-12,
) -> nn.Module:
    """Orthonormal weights: rows of length 1, each at right angles to all others of its group.

    >>> layer = orthogonal(nn.Conv2d(4, 6, 3))
    >>> rows = layer.weight.flatten(1)
    >>> torch.allclose(rows @ rows.T, torch.eye(6), atol=1e-5)
    True

    Args:
        module: a layer, changed and returned.
        name: of its weight.
        dim: the dimension of the outputs; None finds it.
        method: the root, as of ``isonorm.operation.whiten``: "polar" (orthogonal to working
            precision, by matrix products), "newton" (ONI's T steps), "zca" (by
            eigendecomposition), "pca", "cholesky" (Gram–Schmidt).
        num_iters: of "newton" (5) and "polar".
        centered: subtract the mean of each row of the proxy first, as both papers do; an output's
            weights then sum to zero, and there must be fewer outputs than fan-in.
        scale: multiplies the result; ONI uses √2 before a ReLU.
        eps: added to the diagonal of V·Vᵀ: a proxy of zeros gives zeros.

    Rows are the kernels of a convolution, as in the papers; the convolution as an operator is not
    orthogonal. Groups are orthogonal each for itself. V·Vᵀ has the square of the proxy's condition
    number κ, which is 1 at first: in float32 "polar" leaves W·Wᵀ within about 3e-9·κ² of I.
    """
    eps, scale = plain(eps), plain(scale)
    check_options(eps, None)
    whiten = operation.whiten(method, num_iters)
    if isinstance(whiten.root, Newton):
        whiten = replace(whiten, root=BoundedNewton(whiten.root.num_iters))
    number = isinstance(scale, int | float) and not isinstance(scale, bool)
    if not number or not isfinite(scale) or scale <= 0:
        raise ValueError(f"scale must be a positive number; got {scale!r}.")

    def make(layout: Layout) -> nn.Module:
        _, outputs, fan_in = layout.rows(getattr(module, name)).shape
        if centered and outputs >= fan_in:
            raise ValueError(
                f"centered=True leaves room for {fan_in - 1} orthogonal outputs of {fan_in} "
                f"weights each; got {outputs} in a group: use centered=False."
            )
        return Orthogonal(layout, whiten, centered, scale, eps)

    return register(module, name, dim, make)
