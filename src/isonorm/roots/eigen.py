"""Σ → W by eigendecomposition: ZCA, Σ^(-1/2) = DΛ^(-1/2)Dᵀ, and PCA, Λ^(-1/2)Dᵀ (DBN, Sections 3.1
and 3.2).

ZCA never differentiates an eigenvector. With S = Σ^(1/2), SS = Σ gives S·dS + dS·S = dΣ, so dW =
−W·dS·W takes one Lyapunov equation, whose solution in the eigenbasis divides by √λᵢ + √λⱼ: finite
for repeated eigenvalues, where DBN's 1/(λᵢ − λⱼ) is not. The product is the Daleckii–Krein kernel
−1/(√λᵢ√λⱼ(√λᵢ + √λⱼ)). The Lyapunov solution differentiates into Lyapunov solutions, so derivatives
of any order stay finite.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..symbolic import is_traced
from .gauge import Gauge
from .polar import Polar
from .recurrence import accurate, identity_like, trace


def eigenvalue_floor(dtype: torch.dtype, d: int) -> float:
    """The smallest eigenvalue taken at its word, relative to tr Σ/d: below it is the rounding of
    the sums that made Σ.
    """
    return 4 * torch.finfo(dtype).eps * d**0.5


def decompose(sigma: Tensor) -> tuple[Tensor, Tensor]:
    """Floored eigenvalues (ascending) and eigenvectors of a covariance, without exceptions.

    LAPACK refuses matrices with NaN or infinity, which a normalization must hand on as BatchNorm
    does: such a matrix is replaced by the identity for the decomposition and its eigenvalues come
    back as NaN.
    """
    d = sigma.shape[-1]
    unit = trace(sigma) / d  # decompose at scale 1, so that no intermediate under- or overflows
    scaled = sigma / unit
    finite = scaled.isfinite().all(-1).all(-1)[..., None, None]
    safe = accurate(torch.where(finite, scaled, identity_like(sigma)))
    values, vectors = (t.to(sigma.dtype) for t in torch.linalg.eigh(safe))
    values = values.clamp(min=eigenvalue_floor(sigma.dtype, d)) * unit[..., 0]
    return torch.where(finite[..., 0], values, float("nan")), vectors


def _sandwich(vectors: Tensor, middle: Tensor) -> Tensor:
    return vectors @ middle @ vectors.mT


class _Lyapunov(torch.autograd.Function):
    """X with S·X + X·S = E, for symmetric E; S = U·diag(s)·Uᵀ is given decomposed, and in whole
    to carry the graph.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(s_matrix: Tensor, e: Tensor, vectors: Tensor, s: Tensor) -> Tensor:
        inner = vectors.mT @ e @ vectors
        return _sandwich(vectors, inner / (s.unsqueeze(-1) + s.unsqueeze(-2)))

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        s_matrix, _, vectors, s = inputs
        ctx.save_for_backward(s_matrix, vectors, s, output)
        ctx.save_for_forward(s_matrix, vectors, s, output)

    @staticmethod
    def backward(ctx, *grads: Tensor):
        s_matrix, vectors, s, x = ctx.saved_tensors
        y = _Lyapunov.apply(s_matrix, 0.5 * (grads[0] + grads[0].mT), vectors, s)
        return -(y @ x + x @ y), y, None, None

    @staticmethod
    def jvp(ctx, ds_matrix: Tensor | None, de: Tensor | None, *_: Tensor | None) -> Tensor:
        s_matrix, vectors, s, x = ctx.saved_tensors
        rhs = torch.zeros_like(x) if de is None else de
        if ds_matrix is not None:
            rhs = rhs - ds_matrix @ x - x @ ds_matrix
        return _Lyapunov.apply(s_matrix, rhs, vectors, s)


class _InverseSquareRoot(torch.autograd.Function):
    """W = Σ^(-1/2), with U and s = √λ beside it for the derivative."""

    generate_vmap_rule = True

    @staticmethod
    def forward(sigma: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        values, vectors = decompose(sigma)
        s = values.sqrt()
        return _sandwich(vectors, torch.diag_embed(1 / s)), vectors, s

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        w, vectors, s = output
        ctx.mark_non_differentiable(vectors, s)
        ctx.save_for_backward(inputs[0], w, vectors, s)
        ctx.save_for_forward(inputs[0], w, vectors, s)

    @staticmethod
    def backward(ctx, *grads: Tensor) -> Tensor:
        return _InverseSquareRoot._derivative(ctx, 0.5 * (grads[0] + grads[0].mT))

    @staticmethod
    def jvp(ctx, dsigma: Tensor):
        return _InverseSquareRoot._derivative(ctx, 0.5 * (dsigma + dsigma.mT)), None, None

    @staticmethod
    def _derivative(ctx, direction: Tensor) -> Tensor:
        """−W·dS·W with S·dS + dS·S = direction. W and S commute, so W may go inside.
        Self-adjoint: jvp is vjp.
        """
        sigma, w, vectors, s = ctx.saved_tensors
        return -_Lyapunov.apply(sigma @ w, w @ direction @ w, vectors, s)


class ZCA:
    """Σ^(-1/2): the whitening that moves the data least (DBN Eq. 4).

    On a GPU an eigendecomposition of small matrices is slow and waits for the host, so there the
    same matrix comes from polynomials: equal to float32 rounding for eigenvalues down to
    ``polar.SPECTRAL_BOUND`` of ‖Σ‖_F, and short of full whitening below.
    """

    name = "zca"

    def on(self, device: torch.device) -> ZCA | Polar:
        return self if device.type in ("cpu", "meta") else Polar()

    def __call__(self, sigma: Tensor) -> Tensor:
        if is_traced():  # a graph with an autograd function in it could not be saved
            return Polar()(sigma)
        return _InverseSquareRoot.apply(sigma)[0]

    def forward(self, sigma: Tensor) -> tuple[Tensor, Tensor]:
        w, vectors, s = _InverseSquareRoot.forward(sigma)
        return w, torch.cat([vectors, s.unsqueeze(-2)], dim=-2)

    def backward(self, dw: Tensor, sigma: Tensor, w: Tensor, memo: Tensor) -> Tensor:
        vectors, s = memo[..., :-1, :], memo[..., -1, :]
        si, sj = s.unsqueeze(-1), s.unsqueeze(-2)
        inner = vectors.mT @ (0.5 * (dw + dw.mT)) @ vectors
        return _sandwich(vectors, inner / (-si * sj * (si + sj)))

    def memo_shape(self, b: int, d: int) -> tuple[int, ...]:
        return (b, d + 1, d)


class PCA(Gauge):
    """Λ^(-1/2)Dᵀ, eigenvalues downwards, each eigenvector's first element positive (DBN Section
    3.1).

    It swaps axes from batch to batch, which is why DBN does not use it; here to study that.
    """

    name = "pca"

    def factor(self, sigma: Tensor) -> Tensor:
        values, vectors = decompose(sigma)
        values, vectors = values.flip(-1), vectors.flip(-1)
        first = vectors[..., :1, :]
        vectors = torch.where(first < 0, -vectors, vectors)
        return vectors.mT / values.sqrt().unsqueeze(-1)

    def split(self, w: Tensor) -> Tensor:
        """Rᵢⱼ = λⱼ/(λⱼ − λᵢ), ½ on the diagonal; 0, no rotation, between eigenvalues that cannot
        be told apart.
        """
        d = w.shape[-1]
        values = 1 / (w * w).sum(-1)  # rows of W have length λ^(-1/2)
        li, lj = values.unsqueeze(-1), values.unsqueeze(-2)
        gap = lj - li
        resolution = values.amax(-1)[..., None, None] * (torch.finfo(w.dtype).eps * 4 * d)
        distinct = gap.abs() > resolution
        safe = torch.where(distinct, gap, torch.ones_like(gap))
        return torch.where(distinct, lj / safe, torch.zeros_like(gap)) + 0.5 * identity_like(w)
