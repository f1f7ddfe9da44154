"""Full whitening by polynomials: Σ^(-1/2) to working precision from matrix products alone.

Each step applies the odd polynomial x·q(x²), q = a + b·t + c·t², that comes closest to 1 over the
interval in which the singular values can still lie; its worst error defines the next interval. That
greedy choice is optimal among all compositions of such steps (Amsel et al., "The Polar Express",
2025; Grishina et al., CANS, 2025), and with a cushion, as the former have it, also kind to rounding
errors. Where the plain Newton step needs the small eigenvalues to grow by 3/2 at a time, these grow
them by up to 4 and more.

The coefficients are generated here, for the requested number of steps, by equioscillation.
"""

from __future__ import annotations

from functools import lru_cache

from . import recurrence
from .recurrence import Step

#: The smallest eigenvalue of Σ/‖Σ‖_F that is still fully whitened. Smaller ones are stretched, but
#: not all the way, as with ``newton``. It covers condition numbers up to 1e4 for d up to 10,000,
#: and 1e5 for d up to 100.
SPECTRAL_BOUND = 1e-6

#: What is left free above the interval while it is wide: rounding puts an eigenvalue of 1
#: beyond it, and from there the next steps would push it away.
ROOM = 1e-4

#: A step takes the interval to begin at this fraction of its end, if it begins below. Over a wider
#: one the minimax polynomial shrinks some eigenvalues far below 1, and growing them back would
#: amplify their rounding errors. This costs the smallest eigenvalues little growth, and no step.
CUSHION = 0.1

#: Enough for that bound: the error is then below float64 rounding.
DEFAULT_STEPS = 8

#: Of the cubics that solve a Lyapunov equation, in float32: enough for its accuracy, and a cushion
#: that costs one step and keeps it.
CUBIC_STEPS, CUBIC_CUSHION = 12, 0.3


class Polar(recurrence.Recurrence):
    """Σ^(-1/2) by ``num_iters`` minimax steps on Σ/‖Σ‖_F."""

    name = "polar"
    scale = staticmethod(recurrence.frobenius)
    minus_scale_gradient = staticmethod(recurrence.minus_frobenius_gradient)
    # A step multiplies small eigenvalues by up to 70, and their errors with them. In float64 that
    # is still nothing beside the rounding of Σ.
    wide = True

    def __init__(self, num_iters: int = DEFAULT_STEPS, bound: float = SPECTRAL_BOUND) -> None:
        self.num_iters = num_iters
        self.steps = minimax_steps(num_iters, bound)


def minimax_steps(
    num_steps: int, bound: float = SPECTRAL_BOUND, cushion: float = CUSHION
) -> tuple[Step, ...]:
    """Coefficients of ``num_steps`` greedy minimax steps for eigenvalues in [bound, 1].

    >>> [round(x, 2) for x in minimax_steps(1, bound=0.25)[0]]
    [2.67, -3.28, 1.64]
    """
    return _minimax_steps(num_steps, bound, cushion, 5)


def cubic_steps() -> tuple[Step, ...]:
    """The same with c = 0, for the equation SY + YS = E with S² = Σ/‖Σ‖_F: see
    ``docs/mathematics.md``.
    """
    return _minimax_steps(CUBIC_STEPS, SPECTRAL_BOUND, CUBIC_CUSHION, 3)


# The compiler takes the answer for a constant, where it could not trace the search for it.
minimax_steps._dynamo_marked_constant = True  # type: ignore[attr-defined]


@lru_cache
def _minimax_steps(num_steps: int, bound: float, cushion: float, degree: int) -> tuple[Step, ...]:
    closest = _closest_quintic if degree == 5 else _closest_cubic
    # The recurrence acts on eigenvalues, its polynomials on their square roots.
    low, high = bound**0.5, 1.0 + ROOM
    steps = []
    for _ in range(num_steps):
        cushioned = max(low, cushion * high)
        step = closest(cushioned, high)
        steps.append(step)
        high = 2.0 - _value(step, cushioned)  # the worst error, on the other side of 1
        low = _value(step, low)
        if high - low > 0.1:
            high *= 1.0 + ROOM
    return tuple(steps)


def _solve(system: list[list[float]]) -> list[float]:
    """The solution of n equations, each with its right-hand side last: in numbers, not tensors,
    since layers are also made on devices that hold none.
    """
    n = len(system)
    for k in range(n):
        pivot = max(range(k, n), key=lambda i: abs(system[i][k]))
        system[k], system[pivot] = system[pivot], system[k]
        system[k] = [entry / system[k][k] for entry in system[k]]
        for i in range(n):
            if i != k:
                factor = system[i][k]
                system[i] = [e - factor * p for e, p in zip(system[i], system[k], strict=True)]
    return [row[-1] for row in system]


def _value(step: Step, x: float) -> float:
    return x * (step.a + step.b * x**2 + step.c * x**4)


def _closest_cubic(low: float, high: float) -> Step:
    """The odd cubic closest to 1 on [low, high]: p(low) = p(high), as far below 1 as the extremum
    between them, where t = x² = −a/3b, is above.
    """
    if high - low < 1e-5:
        return recurrence.NEWTON
    sum_ = low * low + low * high + high * high  # −a/b
    b = -2 / (sum_ * low - low**3 + 2 / 3 * sum_ * (sum_ / 3) ** 0.5)
    return Step(-b * sum_, b)


def _closest_quintic(low: float, high: float) -> Step:
    """The odd quintic closest to 1 on [low, high], by Remez exchange on its four points of equal
    error.

    The error 1 − p alternates in sign at low < q < r < high, where q and r are p's own extrema.
    """
    if high - low < 1e-5:
        # The interval is a point to float64 accuracy.
        return recurrence.TAYLOR
    q, r = (3 * low + high) / 4, (low + 3 * high) / 4
    a = b = c = 0.0
    previous = float("inf")
    for _ in range(100):
        points = zip((low, q, r, high), (1.0, -1.0, 1.0, -1.0), strict=True)
        a, b, c, error = _solve([[x, x**3, x**5, sign, 1.0] for x, sign in points])
        # p′ = a + 3b·t + 5c·t² vanishes at t = q², r².
        center, spread = -0.3 * b / c, (9 * b * b - 20 * a * c) ** 0.5 / (10 * c)
        q, r = (center - spread) ** 0.5, (center + spread) ** 0.5
        if abs(error - previous) < 1e-15:
            break
        previous = error
    return Step(a, b, c)
