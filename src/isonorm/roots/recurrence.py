"""Σ → W by a polynomial recurrence: the one root, and the one derivative, of ``newton`` and
``polar``.

With Σ_N = Σ/s, spectrum in [0, 1], every iterate is a polynomial in Σ_N, so all of them commute,
and

    Z₀ = Σ_N,  P₀ = I;     Q = a·I + b·Z + c·Z²,   P ← P·Q,   B = Z·Q,   Z ← B·Q         W = P_T/√s

drives Z to I and P to Σ_N^(-1/2). IterNorm's P ← ½(3P − P³Σ_N) is the case a, b, c = 3/2, −1/2, 0
with s = tr Σ: since Z_k = P_k²Σ_N, the same numbers, at the same cost. Unlike the uncoupled form
this one does not amplify rounding errors when iterated past convergence.

A polynomial of a symmetric matrix has a self-adjoint derivative. The gradient with respect to Σ_N
is therefore the *directional* derivative in the direction of the incoming gradient: dots carried
along the same recurrence, forwards.

Index legend: b problems, d features; all matrices are (b, d, d).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Step(NamedTuple):
    """The coefficients of one Q = a·I + b·Z + c·Z²."""

    a: float
    b: float
    c: float = 0.0


NEWTON = Step(1.5, -0.5)

# A scale s(Σ) with spectrum(Σ/s) ⊂ [0, 1], and its derivative ∂s/∂Σ given Σ_N.
Scale = Callable[[Tensor], Tensor]
ScaleGradient = Callable[[Tensor], Tensor]


def trace(sigma: Tensor) -> Tensor:
    return sigma.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None]


def trace_gradient(sigma_n: Tensor) -> Tensor:
    return identity_like(sigma_n)


def frobenius(sigma: Tensor) -> Tensor:
    # The trace first: squares of a large Σ would overflow float32 where Σ itself does not.
    tr = trace(sigma)
    return tr * torch.linalg.matrix_norm(sigma / tr, keepdim=True)


def frobenius_gradient(sigma_n: Tensor) -> Tensor:
    return sigma_n


def identity_like(matrix: Tensor) -> Tensor:
    return torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)


def polynomial(z: Tensor, step: Step) -> Tensor:
    """Q = a·I + b·Z + c·Z²."""
    q = step.b * z if step.c == 0 else step.b * z + step.c * (z @ z)
    return q + step.a * identity_like(z)


def iterate(sigma_n: Tensor, steps: Sequence[Step]) -> tuple[Tensor, list[tuple[Tensor, ...]]]:
    """P_T, and for each step the (Z, Q, P, B) it started from or made."""
    z, p, trail = sigma_n, identity_like(sigma_n).expand_as(sigma_n), []
    for k, step in enumerate(steps):
        last = k + 1 == len(steps)  # the last Z, and the B that leads to it, are nobody's input
        q = polynomial(z, step)
        b = z if last else z @ q
        trail.append((z, q, p, b))
        p = q if k == 0 else p @ q
        z = z if last else b @ q
    return p, trail


def root(sigma: Tensor, steps: Sequence[Step], scale: Scale) -> Tensor:
    """W, as a differentiable composition."""
    s = scale(sigma)
    p, _ = iterate(sigma / s, steps)
    return p / s.sqrt()


def keeps_trail(num_steps: int, d: int, m: int) -> bool:
    """Whether the iterates may be kept for the backward pass: only where they are small beside the
    activation.

    Keeping Z, Q, P and B costs 4·T·d² numbers a problem against d·m activations; at most 1 % is
    allowed.
    """
    return 400 * num_steps * d <= m


def forward(sigma: Tensor, steps: Sequence[Step], scale: Scale, m: int) -> tuple[Tensor, Tensor]:
    """W without a graph, and what ``backward`` wants to keep: the trail (4T, b, d, d), or
    nothing.
    """
    s = scale(sigma)
    p, trail = iterate(sigma / s, steps)
    w = p / s.sqrt()
    if trail and keeps_trail(len(steps), sigma.shape[-1], m):
        return w, torch.stack([t for kept in trail for t in kept])
    return w, sigma.new_empty((0, *sigma.shape))


def backward(
    dw: Tensor,
    sigma: Tensor,
    w: Tensor,
    memo: Tensor,
    steps: Sequence[Step],
    scale: Scale,
    scale_gradient: ScaleGradient,
) -> Tensor:
    """dΣ (symmetric) from dW: L = P′(Σ_N)[sym(dW)/√s], then the chain rule through s (Eq. 6 of
    IterNorm, for s = tr).
    """
    s = scale(sigma)
    sigma_n = sigma / s
    if memo.shape[0]:
        trail = [tuple(memo[4 * k : 4 * k + 4]) for k in range(len(steps))]
    else:
        _, trail = iterate(sigma_n, steps)

    dz = 0.5 * (dw + dw.mT) / s.sqrt()
    dp = torch.zeros_like(dz)
    for k, (step, (z, q, p, b)) in enumerate(zip(steps, trail, strict=True)):
        dq = step.b * dz
        if step.c:
            zdz = z @ dz
            dq = dq + step.c * (zdz + zdz.mT)
        dp = dq if k == 0 else dp @ q + p @ dq
        if k + 1 < len(steps):
            h = b @ dq
            dz = h + h.mT + q @ dz @ q
    # dP is a derivative in a symmetric direction, so symmetric up to rounding; what uses it relies
    # on that.
    grad = 0.5 * (dp + dp.mT)
    through_scale = (grad * sigma_n).sum((-2, -1), keepdim=True) + 0.5 * (dw * w).sum(
        (-2, -1), keepdim=True
    )
    return (grad - through_scale * scale_gradient(sigma_n)) / s
