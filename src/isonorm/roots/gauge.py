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

from typing import Protocol

import torch
from torch import Tensor


class Gauge(Protocol):
    def factor(self, sigma: Tensor) -> Tensor:
        """W, computed without a graph."""
        ...

    def split(self, w: Tensor) -> Tensor:
        """R, as a differentiable function of W."""
        ...


def whiten(sigma: Tensor, method: Gauge) -> Tensor:
    """W, differentiable to any order in reverse and forward mode."""
    return _Whiten.apply(sigma, method)


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
