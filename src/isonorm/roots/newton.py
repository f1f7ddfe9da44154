"""IterNorm's root: T Newton steps on the trace-normalized covariance (Huang et al. 2019, Eq. 3–5).

T steps are not full whitening, and are not meant to be: directions with small eigenvalues are left
short, which is the method's trade between conditioning and stochasticity (Section 4). White input
of d = 64 leaves T = 5 with variance 0.59.
"""

from __future__ import annotations

from torch import Tensor

from . import recurrence


class Newton(recurrence.Recurrence):
    """P_T(Σ/tr Σ)/√tr Σ, exactly its T steps. ``num_iters=0`` divides by √tr Σ."""

    name = "newton"
    scale = staticmethod(recurrence.trace)
    minus_scale_gradient = staticmethod(recurrence.minus_trace_gradient)

    def __init__(self, num_iters: int) -> None:
        self.num_iters = num_iters
        self.steps = (recurrence.NEWTON,) * num_iters
        # More steps stretch directions without variance, and rounding with them, too far.
        self.wide = num_iters not in recurrence.UNWATCHED_STEPS


class BoundedNewton(Newton):
    """The same steps on Σ/‖Σ‖_F, whose eigenvalues are larger: ONI's bound, tighter than the
    trace (Huang et al., Controllable Orthogonalization in Training DNNs, CVPR 2020).
    """

    scale = staticmethod(recurrence.frobenius)
    minus_scale_gradient = staticmethod(recurrence.minus_frobenius_gradient)


def reference(sigma: Tensor, num_iters: int) -> Tensor:
    """Algorithm 1, lines 7–12, letter by letter: what the coupled form is judged by."""
    tr = recurrence.trace(sigma)
    sigma_n = sigma / tr  # Eq. 4
    p = recurrence.identity_like(sigma).expand_as(sigma)
    for _ in range(num_iters):
        p = 0.5 * (3 * p - p @ p @ p @ sigma_n)  # Eq. 3
    return p / tr.sqrt()  # Eq. 5
