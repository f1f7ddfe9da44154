"""Launching the kernels: the same functions as ``kernels.plain``, for batch areas.

Forward is moments → sum of parts → root → apply; backward is sums → sum of parts → gradients →
apply. Across ranks the statistics and the sums come out in between. The d × d work of roots without
a kernel (Cholesky, PCA, groups above 64) is torch's.
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import lru_cache
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
from .launch import Launcher, Launchers
from .layout import Layout, layout, padded

#: Warps of the kernels on d × d matrices.
ROOT_WARPS = 4


@lru_cache(maxsize=64)
def coefficients(steps: tuple, device: torch.device) -> Tensor:
    """A recurrence's (a, b, c) for each step, on the device."""
    return torch.tensor(steps or [(0.0, 0.0, 0.0)], dtype=torch.float32, device=device)


def _reduced(partial: Tensor) -> Tensor:
    """The sums of all parts, added in a fixed order: (G, D) first ones, then (G, D[, D]) second."""
    return partial.sum(0) if partial.shape[0] > 1 else partial


def _empty_sums(x: Tensor, lay: Layout) -> Tensor:
    row = lay.groups * lay.d * (2 if lay.constants["DIAG"] else lay.d + 1)
    return x.new_empty((lay.reducing, row), dtype=torch.float32)


def _whole(t: Tensor, block: Block, dim: int = 0) -> Tensor:
    """A block's channels of a tensor; itself, without a call, where the block is all of them."""
    if block.groups * block.size == t.shape[dim]:
        return t
    return t[block.channels] if dim == 0 else t[:, block.channels]


class Work(NamedTuple):
    """A block of an (N, C, S) input, how the kernels cut it, and what they fuse with it."""

    x: Tensor
    block: Block
    lay: Layout
    extra: Tensor | None  # forward: the residual; backward: see ``explicit.extra_to_save``
    g: Tensor | None  # where step 4 leaves act′(s)·dy, for the residual and for step 6


def prepare(
    x: Tensor, block: Block, plan: Plan, extra: Tensor | None = None, g: Tensor | None = None
) -> Work:
    extra, g = (None if t is None else _whole(t, block, 1) for t in (extra, g))
    return Work(_whole(x, block, 1), block, layout(x, block, plan), extra, g)


class Map(NamedTuple):
    """γ·W and β as the kernels take them: any pointer where there is none, and flags."""

    tensors: tuple[Tensor, Tensor, Tensor]
    dtypes: tuple[torch.dtype, torch.dtype]
    flags: dict[str, object]


def _map(w: Tensor, recovery: Recovery, block: Block) -> Map:
    weight, bias = (None if t is None else _whole(t, block) for t in (recovery.gain, recovery.bias))
    flags: dict[str, object] = {"WEIGHT": weight is not None, "BIAS": bias is not None}
    weight, bias = w if weight is None else weight, w if bias is None else bias
    return Map((w, weight, bias), (weight.dtype, bias.dtype), flags)


def _sums_about_pivot(work: Work, plan: Plan) -> tuple[int, Tensor, Tensor, Tensor | None]:
    """m, the pivot (where μ will lie), room for Σ, and the sums; None of an empty batch."""
    x, block, lay, *_ = work
    b, d, m = plan.area.problem_shape(block, x.shape[0], x.shape[2])
    mean, cov = (x.new_empty(shape, dtype=torch.float32) for shape in ((b, d), (b, d, d)))
    if m == 0:
        return m, mean.zero_(), cov.zero_(), None
    partial = _empty_sums(x, lay)
    lay.launcher("moments_kernel", lay.reducing, CENTER=plan.operation.centers)(x, partial, mean)
    return m, mean, cov, _reduced(partial)


def moments(work: Work, plan: Plan) -> Statistics:
    """Step 1."""
    lay = work.lay
    m, mean, cov, total = _sums_about_pivot(work, plan)
    if total is None:
        return Statistics(0, mean, cov)
    if lay.constants["DIAG"]:
        _scale(work, mean, cov, cov, total, m, plan, scale=False)
    else:
        constants = {"D": lay.d, "CENTER": plan.operation.centers, "num_warps": 4}
        numbers = (m, lay.channels, lay.size)
        _small("statistics_kernel", lay.groups, numbers, constants, cov.device)(total, mean, cov)
    return Statistics(m, mean, cov)


def _scale(
    work: Work, mean: Tensor, cov: Tensor, w: Tensor, total: Tensor, m: int, plan: Plan, scale: bool
) -> None:
    lay = work.lay
    constants = {"D": lay.d, "CENTER": plan.operation.centers, "SCALE": scale, "num_warps": 2}
    numbers = (plan.eps, m, lay.channels, lay.groups)
    _small("scale_kernel", lay.groups, numbers, constants, cov.device)(total, mean, cov, w)


def analyze(work: Work, plan: Plan) -> tuple[Statistics, tuple[Tensor, Tensor]]:
    """Steps 1 and 2."""
    diagonal = work.lay.constants["DIAG"]
    if not diagonal and not plan.fuses_root(work.lay.size, work.x.device):
        statistics = moments(work, plan)
        return statistics, root(statistics.cov, plan)
    m, mean, cov, total = _sums_about_pivot(work, plan)
    if total is None:
        return Statistics(0, mean, cov), root(cov, plan)
    if diagonal:
        w, memo = torch.empty_like(cov), cov.new_empty(0)
        _scale(work, mean, cov, w, total, m, plan, scale=True)
    else:
        w, memo = _iterate(total, mean, cov, plan, m, work.lay.channels)
    return Statistics(m, mean, cov), (w, memo)


def root(cov: Tensor, plan: Plan) -> tuple[Tensor, Tensor]:
    """Step 2 of statistics that came from all ranks."""
    b, d, _ = cov.shape
    if plan.fuses_root(d, cov.device):
        return _iterate(None, cov, cov, plan, 1, b * d)
    w, memo = plain.root(cov, plan)
    return w.contiguous(), memo


def _iterate(
    total: Tensor | None, mean: Tensor, cov: Tensor, plan: Plan, m: int, channels: int
) -> tuple[Tensor, Tensor]:
    """W and the memo, from Σ or, on the way through μ and Σ, from sums."""
    b, d, _ = cov.shape
    recurrence = plan.root(d, cov.device)
    assert isinstance(recurrence, Recurrence)
    w, memo = torch.empty_like(cov), cov.new_empty(plan.memo_shape(b, d, cov.device))
    flags = {"SUMS": total is not None, "CENTER": plan.operation.centers}
    constants = flags | _root_constants(recurrence, d, "tf32x3")
    steps = coefficients(recurrence.steps, cov.device)
    total = cov if total is None else total
    _small("root_kernel", b, (plan.eps, m, channels, d), constants, cov.device)(
        total, mean, cov, steps, w, memo
    )
    return w, memo


_small_launchers = Launchers()


def _small(
    name: str, groups: int, numbers: tuple, constants: dict[str, object], *kinds: Hashable
) -> Launcher:
    """A kernel on d × d matrices, one program a group; ``kinds`` are the device, and dtypes that
    may vary.
    """
    return _small_launchers.get(
        (name, groups, numbers, *constants.values(), *kinds),
        lambda: Launcher(getattr(roots, name), (groups,), numbers, constants),
    )


def _root_constants(recurrence: Recurrence, d: int, precision: str) -> dict[str, object]:
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


def apply(work: Work, y: Tensor, mean: Tensor, w: Tensor, recovery: Recovery, plan: Plan) -> None:
    """Step 3."""
    x, block, lay, residual, _ = work
    if x.numel() == 0:
        return
    (w, weight, bias), dtypes, flags = _map(w, recovery, block)
    flags |= {"RESIDUAL": residual is not None, "ACT": plan.act}
    residual = x if residual is None else residual
    run = lay.launcher("apply_kernel", lay.applying, *dtypes, residual.dtype, **flags)
    run(x, _whole(y, block, 1), w, mean, weight, bias, residual)


def _backward_sums(work: Work, dy: Tensor, p: Problem, recovery: Recovery, plan: Plan) -> Tensor:
    x, block, lay, extra, g = work
    partial = _empty_sums(x, lay)
    tensors, dtypes, flags = _map(p.w, recovery, block)
    flags |= {"EXTRA": extra is not None, "ACT": plan.act}
    extra, g = x if extra is None else extra, x if g is None else g
    run = lay.launcher("backward_sums_kernel", lay.reducing, *dtypes, extra.dtype, **flags)
    run(x, _whole(dy, block, 1), p.mean, partial, *tensors, extra, g)
    return _reduced(partial)


def sums(work: Work, dy: Tensor, p: Problem, recovery: Recovery, plan: Plan) -> Sums:
    """Step 4."""
    lay = work.lay
    if p.m == 0:
        return Sums(torch.zeros_like(p.mean), torch.zeros_like(p.cov))
    total = _backward_sums(work, dy, p, recovery, plan).view(-1)
    first, second = total[: lay.groups * lay.d], total[lay.groups * lay.d :]
    if lay.constants["DIAG"]:
        return Sums(first[: p.b].view(p.b, 1), second[: p.b].view(p.b, 1, 1))
    f, outer = first.view(lay.groups, lay.d), second.view(lay.groups, lay.d, lay.d)
    return Sums(f[:, : p.d].contiguous(), outer[:, : p.d, : p.d].contiguous())


def differentiate(
    work: Work, dy: Tensor, p: Problem, recovery: Recovery, plan: Plan, m: int
) -> Gradients:
    """Steps 4 and 5."""
    lay, diagonal = work.lay, work.lay.constants["DIAG"]
    if p.m == 0 or not (diagonal or plan.fuses_root(p.d, p.w.device)):
        return plain.gradients(p, sums(work, dy, p, recovery, plan), recovery, plan, m)
    total = _backward_sums(work, dy, p, recovery, plan)
    weight = None if recovery.gain is None else _whole(recovery.gain, work.block)
    dweight, dbias = p.w.new_empty(p.b * p.d), p.w.new_empty(p.b * p.d)
    a, slope, shift = torch.empty_like(p.w), torch.empty_like(p.w), torch.empty_like(p.mean)
    flags = {"WEIGHT": weight is not None}
    weight = dweight if weight is None else weight
    if diagonal:
        block = 256
        constants = {"BLOCK": block, "CENTER": plan.operation.centers, "num_warps": 2} | flags
        numbers = (m, p.b, lay.groups * lay.d)
        programs = triton.cdiv(p.b, block)
        _small("scale_backward_kernel", programs, numbers, constants, p.w.device, weight.dtype)(
            total, p.w, weight, dweight, dbias, a, slope, shift
        )
    else:
        recurrence = plan.root(p.d, p.w.device)
        assert isinstance(recurrence, Recurrence)
        # The sums have bfloat16's accuracy: what is made of them needs no more than TF32's.
        coarse = work.x.dtype == torch.bfloat16 and plan.operation.method == "newton"
        constants = flags | _root_constants(recurrence, p.d, "tf32" if coarse else "tf32x3")
        numbers = (m, plan.eps, p.b * p.d, p.d)
        steps = coefficients(recurrence.steps, p.w.device)
        _small("root_backward_kernel", p.b, numbers, constants, p.w.device, weight.dtype)(
            total, p.cov, p.w, p.memo, steps, weight, dweight, dbias, a, slope, shift
        )
    return Gradients(dweight, dbias, a, slope, shift)


def backward_apply(
    work: Work, dy: Tensor, dx: Tensor, p: Problem, grads: Gradients, recovery: Recovery, plan: Plan
) -> None:
    """Step 6."""
    x, block, lay, _, g = work
    if x.numel() == 0:
        return
    tensors, dtypes, flags = _map(p.w, recovery, block)
    flags["ACT"] = plan.act if g is None else ""  # g has been through the activation already
    g = _whole(dy, block, 1) if g is None else g
    lay.launcher("backward_apply_kernel", lay.applying, *dtypes, **flags)(
        x, g, _whole(dx, block, 1),
        grads.a.contiguous(), grads.slope.contiguous(), p.mean, grads.shift, *tensors,
    )  # fmt: skip
