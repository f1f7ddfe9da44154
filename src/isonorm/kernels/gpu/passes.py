"""What a pass over one shape of input needs, settled once: its kernels with all their numbers.

A layer sees the same shape in every step of training. All that follows from it, and from the plan,
is found here and kept with the plan, so that a step costs allocations and launches alone.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
import triton
from torch import Tensor

from ...area import Block
from ...roots import Recurrence
from ..plan import MOST_SHAPES, Plan
from . import root as roots
from .launch import Launcher
from .layout import Layout, layout, padded

#: Warps of the kernels on d × d matrices.
ROOT_WARPS = 4
#: Newton steps whose iterates and gradients stay in float16's range.
SHORT = 7
#: Parts and columns that a program adds up at a time, and problems it differentiates.
PARTS, COLUMNS, SCALES = 64, 32, 256


class Pass(NamedTuple):
    """The kernels of the six steps for one block of one shape of input.

    ``root`` and ``gradients`` are None where the d × d work is torch's: methods without a kernel,
    groups above 64, and areas whose samples are of several channels.
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
    sum_parts: Launcher | None
    steps: Tensor | None  # the coefficients of the recurrence


def find_pass(
    x: Tensor,
    block: Block,
    plan: Plan,
    weight: torch.dtype | None,
    bias: torch.dtype | None,
    extra: torch.dtype | None,
) -> Pass:
    """The pass for an input, with parameters and something fused of these dtypes, if any."""
    precision = torch.get_float32_matmul_precision()
    key = (x.shape, x.stride(), x.dtype, x.device, block, weight, bias, extra, precision)
    found = plan.passes.get(key)
    if found is None:
        if len(plan.passes) >= MOST_SHAPES:
            plan.passes.clear()
        found = plan.passes[key] = _settle(x, block, plan, weight, bias, extra, precision)
    return found


def _settle(
    x: Tensor,
    block: Block,
    plan: Plan,
    weight: torch.dtype | None,
    bias: torch.dtype | None,
    extra: torch.dtype | None,
    precision: str,
) -> Pass:
    device, center = x.device, plan.operation.centers
    lay = layout(tuple(x.shape), x.stride(), x.dtype, device, block, plan, precision)
    b, d, m = plan.area.problem_shape(block, x.shape[0], x.shape[2])
    diagonal = "d" not in plan.area.roles
    several_channels = diagonal and plan.area.features != "channels"
    recurrence = plan.root(d, device) if plan.fuses_root(d, device) else None
    assert recurrence is None or isinstance(recurrence, Recurrence)
    map_flags: dict[str, object] = {"WEIGHT": weight is not None, "BIAS": bias is not None}
    gain: dict[str, object] = {"WEIGHT": weight is not None}

    numbers: tuple
    root = gradients = None
    if diagonal:
        count = m // block.size if several_channels else m  # of one channel
        constants: dict[str, object] = {"D": lay.d, "CENTER": center, "num_warps": 2}
        numbers = (plan.eps, count, lay.channels, lay.groups)
        statistics = _small("scale_kernel", lay.problems, numbers, {**constants, "SCALE": False})
        if not several_channels:
            root = _small("scale_kernel", lay.problems, numbers, {**constants, "SCALE": True})
            lanes = lay.examples * lay.channels
            numbers = (m, lanes, lay.channels, lay.problems * lay.d, lay.groups * lay.d)
            constants = gain | {"BLOCK": SCALES, "CENTER": center, "num_warps": 2}
            programs = triton.cdiv(lanes, SCALES)
            gradients = _small("scale_backward_kernel", programs, numbers, constants)
    else:
        constants = {"D": lay.d, "CENTER": center, "num_warps": 4}
        statistics = _small("statistics_kernel", b, (m, b * d, d), constants)
        if recurrence is not None:
            short = plan.operation.method == "newton" and len(recurrence.steps) <= SHORT
            half = short and x.dtype != torch.float32
            precision = "float16x3" if half else "tf32x3"
            constants = {"CENTER": center} | root_constants(recurrence, d, precision)
            root = _small("root_kernel", b, (plan.eps, m, b * d, d), constants)
            if half and x.dtype == torch.bfloat16:
                precision = "float16"  # what is made of gradients in bfloat16 needs no more
            constants = gain | root_constants(recurrence, d, precision)
            numbers = (m, plan.eps, b * d, d, lay.groups)
            gradients = _small("root_backward_kernel", b, numbers, constants)
    sum_parts = None
    if lay.reducing > 1:
        constants = {"PARTS": PARTS, "COLUMNS": COLUMNS, "num_warps": 4}
        programs = triton.cdiv(lay.row, COLUMNS)
        sum_parts = _small("sum_parts_kernel", programs, (lay.reducing, lay.row), constants)
    fused: dict[str, object] = {"ACT": plan.act}
    # A residual's gradient has been through the activation when step 6 sees it.
    remade: dict[str, object] = {"ACT": "" if extra is not None else plan.act}
    return Pass(
        lay,
        b,
        d,
        m,
        (b, block.size if several_channels else d),
        plan.memo_shape(b, d, device),
        (lay.channels,) if lay.examples == 1 else (lay.examples, lay.channels),
        several_channels,
        lay.reducer("moments_kernel", CENTER=center),
        statistics,
        root,
        lay.mapper("apply_kernel", RESIDUAL=extra is not None, **map_flags, **fused),
        lay.reducer("backward_sums_kernel", EXTRA=extra is not None, **map_flags, **fused),
        gradients,
        lay.mapper("backward_apply_kernel", **map_flags, **remade),
        sum_parts,
        None if recurrence is None else coefficients(recurrence.steps, device),
    )


def _small(name: str, programs: int, numbers: tuple, constants: dict[str, object]) -> Launcher:
    """A kernel on d × d matrices or on sums."""
    return Launcher(getattr(roots, name), (programs,), numbers, constants)


def root_constants(recurrence: Recurrence, d: int, precision: str) -> dict[str, object]:
    quintic = recurrence.name == "polar"
    return {
        "T": len(recurrence.steps),
        "D": padded(d),
        "QUINTIC": quintic,
        "FROBENIUS": quintic,
        "PRECISION": precision,
        "num_warps": ROOT_WARPS if d > 16 else 1,
        "num_stages": 1,
    }


@lru_cache(maxsize=64)
def coefficients(steps: tuple, device: torch.device) -> Tensor:
    """A recurrence's (a, b, c) for each step, on the device."""
    return torch.tensor(steps or [(0.0, 0.0, 0.0)], dtype=torch.float32, device=device)
