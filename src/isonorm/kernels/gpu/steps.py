"""Launching the kernels: the same six functions as ``kernels.plain``, for batch areas.

Forward is moments → sum of parts → statistics → root → apply; backward is sums → sum of parts →
gradients → apply. The d × d work of roots without a kernel (Cholesky, PCA, groups above 64) is
torch's.
"""

from __future__ import annotations

from functools import lru_cache
from math import gcd
from typing import NamedTuple

import torch
import triton
from torch import Tensor

from ...area import Block
from ...recovery import Recovery
from ...roots import Recurrence
from ...statistics import Statistics
from .. import plain
from ..plan import Gradients, Plan, Problem, Sums
from . import root as roots
from . import stream
from .launch import launch

#: Samples in a tile, by bytes an element.
TILE = {2: 128, 4: 64}
#: Channels a program standardizes together.
CHANNELS = 64
STAGES = 3
#: Programs for each multiprocessor: few for kernels that write partial sums, more for the others.
REDUCING_PROGRAMS = 4
APPLYING_PROGRAMS = 16
ROOT_WARPS = 4
#: Tiles a reducing program has at least, so that partial sums stay small beside what they sum.
TILES_TO_REDUCE = 4


class Layout(NamedTuple):
    """How a block of an (N, C, S) tensor is cut: groups of ``size`` channels, tiles of samples."""

    groups: int
    size: int
    d: int  # the power of two ≥ size that kernels use
    reducing: int  # programs a group for kernels that write partial sums
    applying: int  # and for the others
    arguments: tuple[
        int, ...
    ]  # n, s, sn, sc, ss, channels, tiles, size: as every kernel takes them
    constants: dict[str, object]


def layout(x: Tensor, block: Block, plan: Plan) -> Layout:
    """The layout for a tensor, worked out once for each shape."""
    precision = torch.get_float32_matmul_precision()
    return _layout(tuple(x.shape), x.stride(), x.dtype, x.device, block, plan, precision)


@lru_cache(maxsize=4096)
def _layout(
    shape: tuple[int, int, int],
    stride: tuple[int, int, int],
    dtype: torch.dtype,
    device: torch.device,
    block: Block,
    plan: Plan,
    precision: str,
) -> Layout:
    n, width, s = shape
    sn, sc, ss = stride
    matrix = "d" in plan.area.roles
    channels = block.groups * block.size
    size = block.size if matrix else CHANNELS
    d = max(16, triton.next_power_of_2(size))
    merged = s == 1 or n == 1 or sn == s * ss
    if s == 1:
        ss = sn
    tile = TILE[dtype.itemsize] // (2 if d > 64 else 1)
    if not merged and s % tile:
        tile = min(tile, 64)  # pieces of an image's row: the last is shorter, so keep them short
    tiles = triton.cdiv(n * s, tile) if merged else n * triton.cdiv(s, tile)
    align = gcd(sc, 16)
    promote = matrix and plan.operation.method != "newton" and dtype != torch.float32
    constants: dict[str, object] = {
        "D": d,
        "BM": tile,
        "MERGED": merged,
        "WHOLE": size == d and channels % size == 0,
        "I64": n * sn >= 2**31 or width * sc >= 2**31,
        "DIAG": not matrix,
        "ALIGN": align,
        "PROMOTE": promote,
        "PRECISION": product_precision(dtype, promote, precision),
        "num_warps": 4 if d <= 64 else 8,
        "num_stages": STAGES,
    }
    groups = triton.cdiv(channels, size)
    return Layout(
        groups,
        size,
        d,
        _programs(groups, tiles // TILES_TO_REDUCE, REDUCING_PROGRAMS, device),
        _programs(groups, tiles, APPLYING_PROGRAMS, device),
        (n, s, sn, sc // align, ss, channels, tiles, size),
        constants,
    )


def _programs(groups: int, most: int, wanted: int, device: torch.device) -> int:
    """Programs that share a group's tiles: enough to fill the device, at most ``most``."""
    return max(1, min(triton.cdiv(wanted * multiprocessors(device), groups), most))


def product_precision(dtype: torch.dtype, promoted: bool, precision: str) -> str:
    """16-bit operands multiply exactly; float32 follows ``torch.set_float32_matmul_precision``."""
    if promoted:
        return "tf32x3"
    if dtype != torch.float32:
        return "ieee"
    return "tf32x3" if precision == "highest" else "tf32"


@lru_cache(maxsize=16)
def multiprocessors(device: torch.device) -> int:
    if device.type != "cuda":  # Triton's interpreter
        return 2
    return torch.cuda.get_device_properties(device).multi_processor_count


@lru_cache(maxsize=64)
def coefficients(steps: tuple, device: torch.device) -> Tensor:
    """A recurrence's (a, b, c) for each step, on the device."""
    return torch.tensor(steps or [(0.0, 0.0, 0.0)], dtype=torch.float32, device=device)


def _reduced(sums: Tensor, lay: Layout) -> tuple[Tensor, Tensor]:
    """The (G, D) first and (G, D[, D]) second sums of all parts, added in a fixed order."""
    total = sums.sum(0) if sums.shape[0] > 1 else sums[0]
    first, second = total.split([lay.groups * lay.d, total.numel() - lay.groups * lay.d])
    return first.view(lay.groups, lay.d), second.view(lay.groups, lay.d, -1)


def _empty_sums(x: Tensor, lay: Layout) -> Tensor:
    row = lay.groups * lay.d * (2 if lay.constants["DIAG"] else lay.d + 1)
    return x.new_empty((lay.reducing, row), dtype=torch.float32)


class Work(NamedTuple):
    """A block of an (N, C, S) input and how the kernels cut it."""

    x: Tensor
    block: Block
    lay: Layout


def prepare(x: Tensor, block: Block, plan: Plan) -> Work:
    return Work(x, block, layout(x, block, plan))


def moments(work: Work, plan: Plan) -> Statistics:
    """Step 1."""
    x, block, lay = work
    b, d, m = plan.area.problem_shape(block, x.shape[0], x.shape[2])
    mean, cov = (
        x.new_empty((b, d), dtype=torch.float32),
        x.new_empty((b, d, d), dtype=torch.float32),
    )
    if m == 0:
        return Statistics(0, mean.zero_(), cov.zero_())
    center = plan.operation.centers
    partial = _empty_sums(x, lay)
    pivot = x.new_empty((lay.groups, lay.d), dtype=torch.float32)
    launch(
        stream.moments_kernel, (lay.groups, lay.reducing),
        x[:, block.channels], partial, pivot, *lay.arguments,
        CENTER=center, **lay.constants,
    )  # fmt: skip
    first, second = _reduced(partial, lay)
    launch(
        roots.statistics_kernel, (lay.groups,),
        first, second, pivot, mean, cov, m, lay.arguments[5], lay.size,
        D=lay.d, DIAG=lay.constants["DIAG"], CENTER=center, num_warps=4,
    )  # fmt: skip
    return Statistics(m, mean, cov)


def root(cov: Tensor, plan: Plan) -> tuple[Tensor, Tensor]:
    """Step 2."""
    b, d, _ = cov.shape
    if not plan.fuses_root(d, cov.device):
        w, memo = plain.root(cov, plan)
        return w.contiguous(), memo
    recurrence = plan.root(d, cov.device)
    assert isinstance(recurrence, Recurrence)
    w = torch.empty_like(cov)
    memo = cov.new_empty(plan.memo_shape(b, d, cov.device))
    launch(
        roots.root_kernel, (b,),
        cov, coefficients(recurrence.steps, cov.device), w, memo, plan.eps, d,
        T=len(recurrence.steps), **_root_constants(recurrence, d, "tf32x3"),
    )  # fmt: skip
    return w, memo


def _root_constants(recurrence: Recurrence, d: int, precision: str) -> dict[str, object]:
    quintic = recurrence.name == "polar"
    return {
        "D": max(16, triton.next_power_of_2(d)),
        "QUINTIC": quintic,
        "FROBENIUS": quintic,
        "PRECISION": precision,
        "num_warps": ROOT_WARPS if d > 16 else 1,
        "num_stages": 1,
    }


def apply(work: Work, y: Tensor, mean: Tensor, w: Tensor, recovery: Recovery, plan: Plan) -> None:
    """Step 3."""
    x, block, lay = work
    if x.numel() == 0:
        return
    weight, bias = (
        None if t is None else t[block.channels] for t in (recovery.gain, recovery.bias)
    )
    launch(
        stream.apply_kernel, (lay.groups, lay.applying),
        x[:, block.channels], y[:, block.channels], w, mean,
        mean if weight is None else weight, mean if bias is None else bias,
        *lay.arguments, WEIGHT=weight is not None, BIAS=bias is not None, **lay.constants,
    )  # fmt: skip


def _like(dy: Tensor, x: Tensor) -> Tensor:
    """dy with x's strides, which the kernels walk both by."""
    return dy if dy.stride() == x.stride() else torch.empty_like(x).copy_(dy)


def sums(work: Work, dy: Tensor, p: Problem, recovery: Recovery, plan: Plan) -> Sums:
    """Step 4."""
    x, _, lay = work
    if p.m == 0:
        return Sums(torch.zeros_like(p.mean), torch.zeros_like(p.cov))
    partial = _empty_sums(x, lay)
    here = p.block.channels
    launch(
        stream.backward_sums_kernel,
        (lay.groups, lay.reducing),
        x[:, here],
        _like(dy, x)[:, here],
        p.mean,
        partial,
        *lay.arguments,
        **lay.constants,
    )
    first, second = _reduced(partial, lay)
    if lay.constants["DIAG"]:
        return Sums(first.view(-1)[: p.b, None], second.view(-1)[: p.b, None, None])
    coarse = x.dtype == torch.bfloat16 and plan.operation.method == "newton"
    return Sums(first[:, : p.d], second[:, : p.d, : p.d], coarse=coarse)


def gradients(p: Problem, s: Sums, recovery: Recovery, plan: Plan, m: Tensor | int) -> Gradients:
    """Step 5."""
    fused = plan.fuses_root(p.d, p.w.device)
    if isinstance(m, Tensor) or ("d" in plan.area.roles and not fused):
        return plain.gradients(p, _contiguous(s), recovery, plan, m)
    weight = None if recovery.gain is None else recovery.gain[p.block.channels]
    dweight = p.w.new_empty(p.b * p.d)
    a, slope, shift = torch.empty_like(p.w), torch.empty_like(p.w), torch.empty_like(p.mean)
    if fused:
        recurrence = plan.root(p.d, p.w.device)
        assert isinstance(recurrence, Recurrence)
        launch(
            roots.root_backward_kernel, (p.b,),
            s.f, s.outer, s.f.stride(0), s.outer.stride(0), s.outer.stride(1), p.cov, p.w, p.memo,
            coefficients(recurrence.steps, p.w.device), dweight if weight is None else weight,
            dweight, a, slope, shift, m, plan.eps, p.b * p.d, p.d,
            T=len(recurrence.steps), WEIGHT=weight is not None,
            **_root_constants(recurrence, p.d, "tf32" if s.coarse else "tf32x3"),
        )  # fmt: skip
    else:
        launch(
            roots.scale_backward_kernel, (triton.cdiv(p.b, 256),),
            s.f, s.outer, p.w, dweight if weight is None else weight, dweight, a, slope, shift,
            m, p.b,
            BLOCK=256, WEIGHT=weight is not None, CENTER=plan.operation.centers, num_warps=2,
        )  # fmt: skip
    return Gradients(dweight, s.f.reshape(-1), a, slope, shift)


def _contiguous(s: Sums) -> Sums:
    return Sums(s.f.contiguous(), s.outer.contiguous())


def backward_apply(
    work: Work, dy: Tensor, dx: Tensor, p: Problem, grads: Gradients, recovery: Recovery, plan: Plan
) -> None:
    """Step 6."""
    x, _, lay = work
    if x.numel() == 0:
        return
    here = p.block.channels
    launch(
        stream.backward_apply_kernel, (lay.groups, lay.applying),
        x[:, here], _like(dy, x)[:, here], dx[:, here],
        grads.a.contiguous(), grads.slope.contiguous(), p.mean, grads.shift,
        *lay.arguments, **lay.constants,
    )  # fmt: skip
