"""What a pass over one shape of input needs, settled once: its kernels with all their numbers.

A layer sees the same shape in every step of training. All that follows from it, and from the plan,
is found here and kept with the plan, so that a step costs allocations and launches alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from ...area import Block
from ...roots import Recurrence
from ...roots.polar import cubic_steps
from ...roots.recurrence import Step
from ..choice import float32_precision
from ..plan import MOST_SHAPES, Plan, is_short
from .launch import Launcher
from .layout import CHANNELS, Layout, layout, padded
from .parts import sum_parts_kernel
from .root import root_backward_kernel, root_kernel, statistics_kernel
from .scale import scale_backward_kernel, scale_kernel

#: Constants of a kernel by name.
Constants = dict[str, object]

#: Running averages are ``fast_path``'s to ask for.
NO_AVERAGE: Constants = {"AVERAGE": ""}

#: Parts, columns and warps of a program that adds up few parts, so many at most, and of one with
#: more.
MOST_OF_FEW = 32
FEW, MANY = (8, 64, 1), (64, 32, 4)
#: Problems that a program differentiates.
SCALES = 256


class Pass(NamedTuple):
    """The kernels of the six steps for one block of one shape of input.

    ``root`` and ``gradients`` are None where the d × d work is torch's: methods without a kernel,
    large groups, and areas whose samples are of several channels.
    """

    lay: Layout
    b: int
    d: int
    m: int
    mean_shape: tuple[int, int]  # (b, d); (b, c) where a problem's samples are of c channels
    memo_shape: tuple[int, ...]
    gain_shape: tuple[int, ...]  # of dγ and dβ, for each example that has statistics of its own
    several_channels: bool  # whether a problem's samples are of several channels
    moments: Launcher
    statistics: Launcher
    root: Launcher | None
    apply: Launcher
    sums: Launcher
    gradients: Launcher | None
    backward_apply: Launcher
    backward_rest: Launcher | None  # adds the term that the former had no room for
    sum_moments: Launcher | None  # of several programs' parts
    sum_sums: Launcher | None

    # The kernels of single channels have no memo, no rest of the mean, and in backward no use for
    # the covariance. Whoever launches asks here for the order, with tensors or with addresses.

    def to_solve(self, total, mean, rest, cov, w, memo, averages: Sequence | None = None) -> tuple:
        """What ``root`` takes, and of single channels ``statistics``, too; where there are no
        running averages, any tensor takes their places.
        """
        running = averages or (total,) * 3
        if self.lay.diagonal:
            return (total, mean, cov, w, *running)
        return (total, mean, rest, cov, w, memo, *running)

    def to_differentiate(self, total, rest, cov, w, memo, weight, outputs: Sequence) -> tuple:
        """What ``gradients`` takes; it leaves dγ, dβ, A, slope and shift."""
        given = (w,) if self.lay.diagonal else (rest, cov, w, memo)
        return (total, *given, weight, *outputs)


class Kinds(NamedTuple):
    """What a pass has besides its input, by dtype: γ, β, and a residual or what backward keeps of
    the activation (``explicit.extra_to_save``).
    """

    weight: torch.dtype | None
    bias: torch.dtype | None
    extra: torch.dtype | None
    through: bool = False  # whether step 4 keeps act′(s)·dy, for the residual and for step 6
    rest: bool = True  # whether μ has a rest: what its rounding has left out


def find_pass(x: Tensor, block: Block, plan: Plan, kinds: Kinds) -> Pass:
    """The pass for an input, settled once."""
    precision = float32_precision()
    key = (x.shape, x.stride(), x.dtype, x.device, block, kinds, precision)
    found = plan.passes.get(key)
    if found is None:
        if len(plan.passes) >= MOST_SHAPES:
            plan.passes.clear()
        found = plan.passes[key] = _settle(x, block, plan, kinds, precision)
    return found


def _settle(x: Tensor, block: Block, plan: Plan, kinds: Kinds, precision: str) -> Pass:
    lay = layout(tuple(x.shape), x.stride(), x.dtype, x.device, block, plan, precision)
    b, d, m = shape = plan.area.problem_shape(block, x.shape[0], x.shape[2])
    diagonal = "d" not in plan.area.roles
    several_channels = diagonal and plan.area.features != "channels"
    gain: Constants = {"WEIGHT": kinds.weight is not None}
    if several_channels:
        small = _Small(_statistics_of_channels(lay, m // block.size, plan))
    elif diagonal:
        small = _standardizing(lay, m, plan, gain)
    else:
        small = _whitening(lay, shape, x, plan, gain, block.missing)
    affine: Constants = gain | {"BIAS": kinds.bias is not None}
    fused: Constants = affine | {"ACT": plan.act}
    # A residual's gradient has been through the activation when step 6 sees it.
    remade: Constants = affine | {
        "ACT": "" if kinds.through else plan.act,
        "THROUGH": kinds.through,
    }
    moments = lay.launcher("moments_kernel", {"CENTER": plan.operation.centers})
    applied: Constants = {"RESIDUAL": kinds.extra is not None, "REST": kinds.rest}
    read: Constants = {"EXTRA": kinds.extra is not None, "THROUGH": kinds.through}
    sums = lay.launcher("backward_sums_kernel", fused | read)
    terms = ("of x", "of dy") if lay.crowded else ("both",)
    backward_apply, *rest = (
        lay.launcher("backward_apply_kernel", remade | {"TERMS": term}) for term in terms
    )
    return Pass(
        lay=lay,
        b=b,
        d=d,
        m=m,
        mean_shape=(b, block.size if several_channels else d),
        memo_shape=plan.memo_shape(b, d, x.device),
        gain_shape=(lay.channels,) if lay.examples == 1 else (lay.examples, lay.channels),
        several_channels=several_channels,
        moments=moments,
        statistics=small.statistics,
        root=small.root,
        apply=lay.launcher("apply_kernel", fused | applied),
        sums=sums,
        gradients=small.gradients,
        backward_apply=backward_apply,
        backward_rest=rest[0] if rest else None,
        sum_moments=_sum_of_parts(moments, lay),
        sum_sums=_sum_of_parts(sums, lay),
    )


class _Small(NamedTuple):
    """The kernels between those that stream the activation."""

    statistics: Launcher
    root: Launcher | None = None
    gradients: Launcher | None = None


def _statistics_of_channels(
    lay: Layout, count: int, plan: Plan, *, scale: bool = False
) -> Launcher:
    """μ and σ² of each channel by itself, from ``count`` samples; with W, if it is to scale."""
    constants: Constants = {
        "D": lay.d,
        "CENTER": plan.operation.centers,
        "SCALE": scale,
        "num_warps": 2,
    } | NO_AVERAGE
    numbers = (plan.eps, 0.0, 1.0, count, lay.channels, lay.groups)
    return _launcher(scale_kernel, lay.problems, numbers, constants, lay)


def _standardizing(lay: Layout, m: int, plan: Plan, gain: Constants) -> _Small:
    lanes = lay.examples * lay.channels
    numbers = (m, lanes, lay.channels, lay.problems * lay.d, lay.groups * lay.d)
    constants = gain | {"BLOCK": SCALES, "CENTER": plan.operation.centers, "num_warps": 2}
    return _Small(
        _statistics_of_channels(lay, m, plan),
        _statistics_of_channels(lay, m, plan, scale=True),
        _launcher(scale_backward_kernel, triton.cdiv(lanes, SCALES), numbers, constants, lay),
    )


def _whitening(
    lay: Layout, shape: tuple[int, int, int], x: Tensor, plan: Plan, gain: Constants, missing: int
) -> _Small:
    b, d, m = shape
    features, grain = b * d - missing, gcd(d, 16) if d % 16 else 1
    center: Constants = {"CENTER": plan.operation.centers, "ONE_SIDED": lay.one_sided}
    places: Constants = {"D": padded(d), "WIDE": lay.d, "SPAN": lay.span}
    constants = center | places | {"num_warps": 4}
    statistics = _launcher(statistics_kernel, b, (m, features, d), constants, lay)
    if not plan.fuses_root(d, x.device):
        return _Small(statistics)
    recurrence = plan.root(d, x.device)
    assert isinstance(recurrence, Recurrence)
    short = is_short(recurrence)
    # Small products can afford float32's own.
    accurate = "ieee" if padded(d) == 16 else "tf32x3"
    forward = backward = "float16x3" if short else accurate
    if short and (x.dtype == torch.bfloat16 or lay.precision == "tf32"):
        backward = "float16"  # what becomes of gradients in bfloat16, or in TF32, needs no more
    half = short and x.dtype == torch.bfloat16
    ragged: Constants = {"RAGGED": missing > 0, "GRAIN": grain}
    if half:
        forward = "float16"  # W meets x in bfloat16, whose rounding loses several times as much
    derivative = cubic_steps() if recurrence.name == "polar" else recurrence.steps
    return _Small(
        statistics,
        _launcher(
            root_kernel,
            b,
            (plan.eps, 0.0, 1.0, m, features, d // grain),
            center
            | places
            | NO_AVERAGE
            | ragged
            | _root_constants(recurrence, recurrence.steps, d, forward, half),
            lay,
        ),
        _launcher(
            root_backward_kernel,
            b,
            (m, plan.eps, features, d // grain, lay.groups * lay.span),
            gain | places | ragged | _root_constants(recurrence, derivative, d, backward, half),
            lay,
        ),
    )


def _sum_of_parts(reducing: Launcher, lay: Layout) -> Launcher | None:
    """Adds up what the programs of a kernel leave, where there are several."""
    _, parts = reducing.grid
    if parts == 1:
        return None
    rows, columns, warps = FEW if parts <= MOST_OF_FEW else MANY
    constants: Constants = {"PARTS": rows, "COLUMNS": columns, "num_warps": warps}
    programs = triton.cdiv(lay.row, columns)
    return _launcher(sum_parts_kernel, programs, (parts, lay.row), constants, lay)


def _launcher(
    kernel: Any, programs: int, numbers: tuple, constants: Constants, lay: Layout
) -> Launcher:
    """A kernel on sums, or on what becomes of them."""
    constants = constants | {"OVERLAP": lay.overlap}
    return Launcher(kernel, (programs,), numbers, constants, early=lay.overlap)


def _root_constants(
    recurrence: Recurrence, steps: Sequence[Step], d: int, precision: str, half: bool
) -> Constants:
    quintic = recurrence.name == "polar"
    return {
        "STEPS": tuple(float(number) for step in steps for number in step),
        "QUINTIC": quintic,
        "FROBENIUS": quintic,
        "PRECISION": precision,
        "HALF_MEMO": half,
        "WHOLE": d == padded(d),
        "num_warps": 1 if d <= 16 else 4 if d <= CHANNELS else 8,
        "num_stages": 2 if half and d <= CHANNELS else 1,  # of the memo, on its way
    }


def averaging(root: Launcher, matrix: str, momentum: float, unbiased: float) -> Launcher:
    """A root's kernel that moves running averages besides: of "covariance", each multiplied by
    ``unbiased``, or of "whitening".
    """
    eps, _, _, *rest = root.numbers
    numbers = (eps, momentum, unbiased, *rest)
    constants = root.constants | {"AVERAGE": matrix}
    return Launcher(root.kernel, root.grid, numbers, constants, early=root.early)
