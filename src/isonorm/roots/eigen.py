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
from torch.autograd import forward_ad

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


def _divided(s: Tensor, p: int) -> Tensor:
    """Return Σ sᵢᵃ·sⱼᵇ over a + b = p − 1: (sᵢᵖ − sⱼᵖ)/(sᵢ − sⱼ), finite where they are equal."""
    si, sj = s.unsqueeze(-1), s.unsqueeze(-2)
    total = si + sj if p > 1 else torch.ones_like(si + sj)
    for k in range(3, p + 1):
        total = total * sj + si ** (k - 1)
    return total


class _Lyapunov(torch.autograd.Function):
    """Y with Σ Xᵃ·Y·Xᵇ = E over a + b = p − 1, for symmetric E: for p = 2, X·Y + Y·X = E.
    X = U·diag(s)·Uᵀ is given decomposed, and in whole to carry the graph.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, e: Tensor, vectors: Tensor, s: Tensor, p: int) -> Tensor:
        return _sandwich(vectors, (vectors.mT @ e @ vectors) / _divided(s, p))

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        x, _, vectors, s, ctx.p = inputs
        ctx.save_for_backward(x, vectors, s, output)
        ctx.save_for_forward(x, vectors, s, output)

    @staticmethod
    def backward(ctx, *grads: Tensor):
        x, vectors, s, y = ctx.saved_tensors
        z = _Lyapunov.apply(x, 0.5 * (grads[0] + grads[0].mT), vectors, s, ctx.p)
        return -_through_powers(x, y, z, ctx.p), z, None, None, None

    @staticmethod
    def jvp(ctx, dx: Tensor | None, de: Tensor | None, *_: Tensor | None) -> Tensor:
        x, vectors, s, y = ctx.saved_tensors
        rhs = torch.zeros_like(y) if de is None else de
        if dx is not None:
            rhs = rhs - _through_powers(x, y, dx, ctx.p)
        return _Lyapunov.apply(x, rhs, vectors, s, ctx.p)


def _through_powers(x: Tensor, y: Tensor, z: Tensor, p: int) -> Tensor:
    """Return the derivative of Σ Xᵃ·Y·Xᵇ in X, in the direction Z; its adjoint is the same."""
    powers = [identity_like(x), x]
    while len(powers) < p:
        powers.append(powers[-1] @ x)
    total = torch.zeros_like(x)
    for i in range(p - 1):
        for j in range(p - 1 - i):
            inner = y @ z if j == 0 else y @ powers[j] @ z
            k = p - 2 - i - j
            total = total + (inner if i == k == 0 else powers[i] @ inner @ powers[k])
    return total + total.mT


class Roots(torch.autograd.Function):
    """X = Σ^(1/p) and W = Σ^(-1/p), with U and s = λ^(1/p) beside them for the derivative."""

    generate_vmap_rule = True

    @staticmethod
    def forward(sigma: Tensor, p: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        values, vectors = decompose(sigma)
        s = values.sqrt() if p == 2 else values ** (1 / p)
        x, w = (_sandwich(vectors, torch.diag_embed(of)) for of in (s, 1 / s))
        return x, w, vectors, s

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        ctx.p = inputs[1]
        ctx.mark_non_differentiable(*output[2:])
        ctx.save_for_backward(*output)
        ctx.save_for_forward(*output)

    @staticmethod
    def backward(ctx, *grads: Tensor) -> tuple[Tensor, None]:
        x, w, vectors, s = ctx.saved_tensors
        dx, dw = (0.5 * (grad + grad.mT) for grad in grads[:2])
        return _Lyapunov.apply(x, dx - w @ dw @ w, vectors, s, ctx.p), None

    @staticmethod
    def jvp(ctx, dsigma: Tensor, _):
        x, w, vectors, s = ctx.saved_tensors
        dx = _Lyapunov.apply(x, 0.5 * (dsigma + dsigma.mT), vectors, s, ctx.p)
        return dx, -w @ dx @ w, None, None


@torch.library.custom_op("isonorm::roots", mutates_args=())
def _roots_op(sigma: Tensor, p: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """``Roots`` for a compiler, which cannot trace a rule for forward mode."""
    return Roots.forward(sigma, p)


@_roots_op.register_fake
def _(sigma, p):
    return *(torch.empty_like(sigma) for _ in range(3)), sigma.new_empty(sigma.shape[:-1])


def _op_context(ctx, inputs, output) -> None:
    ctx.p = inputs[1]
    ctx.save_for_backward(*output)


def _op_backward(ctx, *grads):
    x, w, vectors, s = ctx.saved_tensors
    dx, dw = (0.5 * (grad + grad.mT) for grad in grads[:2])
    return _Lyapunov.forward(x, dx - w @ dw @ w, vectors, s, ctx.p), None


_roots_op.register_autograd(_op_backward, setup_context=_op_context)


def power_roots(sigma: Tensor, p: int) -> tuple[Tensor, Tensor]:
    """Return Σ^(1/p) and Σ^(-1/p), eigenvalues below ``eigenvalue_floor`` raised to it."""
    # An operator has no rule for forward mode, whose tangents it would silently take for zero.
    forward = torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0
    roots = _roots_op if torch.compiler.is_compiling() and not forward else Roots.apply
    x, w, _, _ = roots(sigma, p)
    return x, w


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
        return power_roots(sigma, 2)[1]

    def forward(self, sigma: Tensor) -> tuple[Tensor, Tensor]:
        _, w, vectors, s = Roots.forward(sigma, 2)
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
