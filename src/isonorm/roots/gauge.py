"""The derivative of a whitening matrix that is pinned by a shape rather than by symmetry: PCA and
Cholesky.

W·Σ·Wᵀ = I fixes W up to a rotation, and dW up to a skew part. With F = W·dΣ·Wᵀ every such root has

    dW = −(R ∘ F)·W,     Rᵢⱼ + Rⱼᵢ = 1

where R says how the rotation is pinned: Cholesky keeps W lower triangular, so R is 1 below the
diagonal, 0 above; PCA keeps the rows of W eigenvectors, so Rᵢⱼ = λⱼ/(λⱼ − λᵢ). Nothing is divided
by a pivot and nothing but W is needed, so derivatives of any order follow by differentiating this
line.
"""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor

from ..symbolic import is_traced


class Gauge:
    """A root given by how it factors Σ and by its R."""

    name: str

    def factor(self, sigma: Tensor) -> Tensor:
        """W, computed without a graph."""
        raise NotImplementedError

    def split(self, w: Tensor) -> Tensor:
        """R, as a differentiable function of W."""
        raise NotImplementedError

    def on(self, device: torch.device) -> Self:
        return self

    def __call__(self, sigma: Tensor) -> Tensor:
        if is_traced():  # a graph with an autograd function in it could not be saved
            return self.factor(sigma)
        return _Whiten.apply(sigma, self)

    def forward(self, sigma: Tensor) -> tuple[Tensor, Tensor]:
        return self.factor(sigma), sigma.new_empty(0)  # W is memo enough

    def backward(self, dw: Tensor, sigma: Tensor, w: Tensor, memo: Tensor) -> Tensor:
        return gradient(dw, w, self.split(w))

    def memo_shape(self, b: int, d: int) -> tuple[int, ...]:
        return (0,)


def gradient(dw: Tensor, w: Tensor, split: Tensor) -> Tensor:
    """dΣ = −sym(Wᵀ(R ∘ dW·Wᵀ)W), the adjoint of dW = −(R ∘ W·dΣ·Wᵀ)W."""
    grad = -(w.mT @ (split * (dw @ w.mT)) @ w)
    return 0.5 * (grad + grad.mT)


class _Whiten(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(sigma: Tensor, method: Gauge) -> Tensor:
        return method.factor(sigma)

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        ctx.method = inputs[1]
        ctx.save_for_backward(output)
        ctx.save_for_forward(output)

    @staticmethod
    def backward(ctx, *grads: Tensor):
        (w,) = ctx.saved_tensors
        return gradient(grads[0], w, ctx.method.split(w)), None

    @staticmethod
    def jvp(ctx, dsigma: Tensor, _) -> Tensor:
        (w,) = ctx.saved_tensors
        direction = 0.5 * (dsigma + dsigma.mT)
        return -(ctx.method.split(w) * (w @ direction @ w.mT)) @ w
