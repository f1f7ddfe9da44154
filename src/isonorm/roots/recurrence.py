"""Σ → W by a polynomial recurrence: the one root, and the one derivative, of ``newton`` and
``polar``.

With Σ_N = Σ/s, spectrum in [0, 1], every iterate is a polynomial in Σ_N, so all of them commute,
and

    Z₀ = Σ_N,  P₀ = I;     Q = a·I + b·Z + c·Z²,   P ← P·Q,   B = Z·Q,   Z ← B·Q         W = P_T/√s

drives Z to I and P to Σ_N^(-1/2). IterNorm's P ← ½(3P − P³Σ_N) is the case a, b, c = 3/2, −1/2, 0
with s = tr Σ: since Z_k = P_k²Σ_N, the same numbers, at the same cost. Unlike the uncoupled form
this one does not amplify rounding errors when iterated past convergence.

Z is made symmetric again after every step. In directions without variance Newton's step multiplies
what rounding leaves of Z − Zᵀ by 9/4, and P by 3/2. The derivative takes Z and P to be symmetric,
and in dx its large terms cancel against those of W: whatever is not symmetric would be left.

A polynomial of a symmetric matrix has a self-adjoint derivative. The gradient with respect to Σ_N
is therefore the *directional* derivative in the direction of the incoming gradient: dots carried
along the same recurrence, forwards.

Index legend: b problems, d features; all matrices are (b, d, d).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Self

import torch
from torch import Tensor


class Step(NamedTuple):
    """The coefficients of one Q = a·I + b·Z + c·Z²."""

    a: float
    b: float
    c: float = 0.0


NEWTON = Step(1.5, -0.5)
#: The quintic step of an interval that is a point: the Taylor polynomial at 1.
TAYLOR = Step(1.875, -1.25, 0.375)


def trace(sigma: Tensor) -> Tensor:
    return sigma.diagonal(dim1=-2, dim2=-1).sum(-1).unsqueeze(-1).unsqueeze(-1)


def minus_trace_gradient(grad: Tensor, factor: Tensor, sigma_n: Tensor) -> Tensor:
    grad.diagonal(dim1=-2, dim2=-1).sub_(factor.squeeze(-1))  # ∂tr Σ/∂Σ = I
    return grad


def frobenius(sigma: Tensor) -> Tensor:
    # The trace first: squares of a large Σ would overflow float32 where Σ itself does not.
    tr = trace(sigma)
    return tr * torch.linalg.matrix_norm(sigma / tr, keepdim=True)


def minus_frobenius_gradient(grad: Tensor, factor: Tensor, sigma_n: Tensor) -> Tensor:
    return grad.addcmul_(factor, sigma_n, value=-1)  # ∂‖Σ‖/∂Σ = Σ/‖Σ‖


def identity_like(matrix: Tensor) -> Tensor:
    return torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)


def accurate(sigma: Tensor) -> Tensor:
    """Σ in float64, on devices that have it."""
    return sigma if sigma.device.type == "mps" else sigma.double()


def polynomial(z: Tensor, step: Step) -> Tensor:
    """Q = a·I + b·Z + c·Z²."""
    q = step.b * z if step.c == 0 else step.b * z + step.c * (z @ z)
    return q + step.a * identity_like(z)


def iterate(sigma_n: Tensor, steps: Sequence[Step], watch: Watch) -> Tensor:
    """P_T, as the recurrence stands above."""
    z, p = sigma_n, identity_like(sigma_n).expand_as(sigma_n)
    for k, step in enumerate(steps):
        q = polynomial(z, step)
        arrived = watch(z, step)
        if arrived is not None:
            q = torch.where(arrived, identity_like(z), q)
        p = q if k == 0 else p @ q
        if k + 1 < len(steps):  # the last Z is nobody's input
            z = z @ q @ q
    return p


#: Numbers of Newton's steps after which rounding has not grown to anything in float32.
UNWATCHED_STEPS = range(15)


class Watch:
    """Says of each problem when a long iteration has arrived and should stop.

    Newton's step, and the Taylor step that ends ``polar``, bring every eigenvalue of Z in [0, 1]
    closer to 1, so that ‖Z − I‖ falls. Once it stops falling, nothing is left to gain. But
    rounding, ``unit``, may have left a singular covariance an eigenvalue of −u, which a step
    multiplies by a²: after few steps it is still nothing, after many it would be everything.
    Problems are stopped from the step on that could make something of it.
    """

    def __init__(self, unit: float) -> None:
        self.size = unit  # what a rounding error may have grown to
        self.distance: Tensor | None = None

    def __call__(self, z: Tensor, step: Step) -> Tensor | None:
        """(b, 1, 1): the problems for which the step must not be taken, or None."""
        self.size *= step.a**2
        if self.size < 1e-2 or step not in (NEWTON, TAYLOR):
            return None
        distance = torch.linalg.matrix_norm((z - identity_like(z)).detach(), keepdim=True)
        before, self.distance = self.distance, distance
        if before is None:
            return None
        arrived = distance >= before
        self.distance = torch.where(arrived, torch.zeros_like(distance), distance)
        return arrived


def _varying(z: Tensor, step: Step) -> tuple[Tensor, float]:
    """(R, α) with Q = a·I + α·R: a product with Q is then one ``baddbmm``, and Q itself is never
    made.
    """
    return (z, step.b) if step.c == 0 else (torch.baddbmm(z, z, z, beta=step.b, alpha=step.c), 1.0)


def _times(
    left: Tensor | None, step: Step, r: Tensor, alpha: float, out: Tensor | None = None
) -> Tensor:
    """left·Q; nothing on the left is P₀ = I."""
    if left is None:
        q = torch.mul(r, alpha, out=out)
        q.diagonal(dim1=-2, dim2=-1).add_(step.a)
        return q
    return torch.baddbmm(left, left, r, beta=step.a, alpha=alpha, out=out)


def _next_iterate(b: Tensor, step: Step, r: Tensor, alpha: float, out: Tensor) -> Tensor:
    """Return the next Z = B·Q, exactly symmetric: X + Xᵀ."""
    x = torch.baddbmm(b, b, r, beta=0.5 * step.a, alpha=0.5 * alpha)
    return torch.add(x, x.mT, out=out)


def _keep(arrived: Tensor | None, before: Tensor | None, after: Tensor) -> Tensor:
    """What a step made, except for problems that have arrived, which none has before the first."""
    if arrived is None or before is None:
        return after
    return torch.where(arrived, before, after, out=after)


def _next_direction(
    z: Tensor, dz_q: Tensor, dq: Tensor, step: Step, r: Tensor, alpha: float
) -> Tensor:
    """dZ of the next Z = Q·Z·Q, which is Q·dZ·Q + Q·Z·dQ + dQ·Z·Q, symmetric: X + Xᵀ. May use the
    memory of dZ·Q.

    With Newton's dQ = b·dZ both parts are products of Z with dZ·Q or its transpose, and all of it
    is one.
    """
    if step.c == 0:
        both = torch.add(dz_q.mT, dz_q, alpha=0.5)
        x = dz_q.baddbmm_(z, both, beta=0.5 * step.a, alpha=step.b)
    else:
        x = torch.baddbmm(dz_q, r, dz_q, beta=0.5 * step.a, alpha=0.5 * alpha)
        x.baddbmm_(z, torch.baddbmm(dq, r, dq, beta=step.a, alpha=alpha))
    return x + x.mT


class Recurrence:
    """W = P_T/√s, by the steps and the scale of a subclass."""

    name: str
    scale: staticmethod[[Tensor], Tensor]  # s(Σ) with spectrum(Σ/s) ⊂ [0, 1]
    # grad − factor·∂s/∂Σ, given Σ_N; may use grad's memory
    minus_scale_gradient: staticmethod[[Tensor, Tensor, Tensor], Tensor]

    steps: tuple[Step, ...]
    #: Whether the iteration is in float64, whatever Σ is. Iterates of twice the size are not kept:
    #: it is cheap to make them again.
    wide = False

    def on(self, device: torch.device) -> Self:
        return self

    def __call__(self, sigma: Tensor) -> Tensor:
        wide = self.widened(sigma)
        s = self.scale(wide)
        return (iterate(wide / s, self.steps, self._watch(sigma)) / s.sqrt()).to(sigma.dtype)

    def widened(self, sigma: Tensor) -> Tensor:
        """Return Σ in the precision of the iteration."""
        return accurate(sigma) if self.wide else sigma

    def _watch(self, sigma: Tensor) -> Watch:
        return Watch(torch.finfo(sigma.dtype).eps)

    def memo_shape(self, b: int, d: int) -> tuple[int, ...]:
        return (0,) if self.wide else self._trail_shape(b, d)

    def _trail_shape(self, b: int, d: int) -> tuple[int, int, int, int, int]:
        return (max(len(self.steps) - 1, 0), 2, b, d, d)

    def forward(self, sigma: Tensor) -> tuple[Tensor, Tensor]:
        """Return W without a graph, and the memo: Z_k and P_k for k = 1 … T − 1, (T − 1, 2, b, d,
        d), where they are kept.
        """
        w, memo = self._solve(sigma)
        return w.to(sigma.dtype), sigma.new_empty(0) if self.wide else memo

    def _solve(self, sigma: Tensor) -> tuple[Tensor, Tensor]:
        watch, sigma = self._watch(sigma), self.widened(sigma)
        s, steps = self.scale(sigma), self.steps
        memo = sigma.new_empty(self._trail_shape(*sigma.shape[:2]))
        z, p = sigma / s, None
        for step, kept in zip(steps, memo.unbind(), strict=False):  # the last Z is nobody's input
            next_z, next_p = kept.unbind()
            arrived = watch(z, step)
            r, alpha = _varying(z, step)
            b = _times(z, step, r, alpha)
            p = _keep(arrived, p, _times(p, step, r, alpha, out=next_p))
            z = _keep(arrived, z, _next_iterate(b, step, r, alpha, out=next_z))
        if steps:
            p = _keep(watch(z, steps[-1]), p, _times(p, steps[-1], *_varying(z, steps[-1])))
        else:
            p = identity_like(sigma)
        return p / s.sqrt(), memo

    def backward(self, dw: Tensor, sigma: Tensor, w: Tensor, memo: Tensor) -> Tensor:
        """Return dΣ, symmetric, from dW."""
        if self.wide:
            w, memo = self._solve(sigma)
        return self._differentiate(dw.to(w.dtype), sigma, w, memo).to(dw.dtype)

    def _differentiate(self, dw: Tensor, sigma: Tensor, w: Tensor, memo: Tensor) -> Tensor:
        """Return L = P′(Σ_N)[sym(dW)/√s], taken through s by the chain rule (Eq. 6 of IterNorm, for
        s = tr). Dots run along with the iterates they belong to.
        """
        watch, sigma = self._watch(sigma), self.widened(sigma)
        s, steps = self.scale(sigma), self.steps
        sigma_n = sigma / s
        trail = [(sigma_n, None), *(kept.unbind() for kept in memo.unbind())]
        dz = (dw + dw.mT).mul_(s.rsqrt().mul_(0.5))
        dp = torch.zeros_like(dz)
        for k, step in enumerate(steps):
            (z, p), arrived = trail[k], watch(trail[k][0], step)
            r, alpha = _varying(z, step)
            dq, slope = dz, step.b  # slope·dq = dQ
            if step.c:
                zdz = torch.bmm(z, dz)
                dq, slope = zdz.add(zdz.mT).mul_(step.c).add_(dz, alpha=step.b), 1.0
            if p is None:  # P₀ = I does not move
                next_dp = dq * slope
            else:
                next_dp = _times(dp, step, r, alpha).baddbmm_(p, dq, alpha=slope)
            dp = _keep(arrived, dp, next_dp)
            if k + 1 < len(steps):
                dz_q = _times(dz, step, r, alpha)
                dz = _keep(arrived, dz, _next_direction(z, dz_q, dq, step, r, alpha))
        # dP is a derivative in a symmetric direction, so symmetric up to rounding; what uses it
        # relies on that.
        grad = (dp + dp.mT).mul_(0.5)
        through_scale = (grad * sigma_n).addcmul_(dw, w, value=0.5).sum((-2, -1), keepdim=True)
        return self.minus_scale_gradient(grad, through_scale, sigma_n).div_(s)
