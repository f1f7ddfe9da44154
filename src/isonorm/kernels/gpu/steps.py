"""The six steps by kernels: the same functions as ``kernels.plain``.

Forward is moments → sum of parts → root → apply; backward is sums → sum of parts → gradients →
apply. Across ranks the statistics and the sums come out in between. The d × d work of roots without
a kernel (Cholesky, PCA, large groups) is torch's.

Where a problem's samples are of several channels (layer, group and batch_group standardize all
channels of a group together), the kernels go channel by channel, and small tensors with a number
for each channel are put together here.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ...area import Block
from ...recovery import Affine, Coloring, Recovery
from ...statistics import Measured
from .. import plain
from ..plan import Gradients, Plan, Problem, Sums
from .passes import Kinds, Pass, find_pass


class Work(NamedTuple):
    """A block of an (N, C, S) input with its recovery, what is fused with it, and its kernels."""

    x: Tensor
    block: Block
    weight: Tensor | None
    bias: Tensor | None
    extra: Tensor | None  # forward: the residual; backward: see ``explicit.extra_to_save``
    g: Tensor | None  # where step 4 leaves act′(s)·dy, for the residual and for step 6
    run: Pass

    def parameters(self) -> tuple[Tensor, Tensor]:
        """γ and β; any tensor where there is none."""
        return (
            self.x if self.weight is None else self.weight,
            self.x if self.bias is None else self.bias,
        )


def prepare(
    x: Tensor,
    block: Block,
    plan: Plan,
    recovery: Recovery,
    extra: Tensor | None = None,
    g: Tensor | None = None,
) -> Work:
    weight = recovery.weight if isinstance(recovery, Affine) else None  # Γ is part of the matrix
    weight, bias = (None if t is None else t.contiguous() for t in (weight, recovery.bias))
    kinds = Kinds(
        *(None if t is None else t.dtype for t in (weight, bias, extra)), through=g is not None
    )
    run = find_pass(x, block, plan, kinds)
    if block.num_channels() != x.shape[1]:
        weight, bias = (None if t is None else t[block.channels] for t in (weight, bias))
        extra, g = (None if t is None else _part(t, block) for t in (extra, g))
        x = _part(x, block)
    return Work(x, block, weight, bias, extra, g, run)


def _part(t: Tensor, block: Block) -> Tensor:
    """A block's channels of an (N, C, S) tensor; itself where the block is all of them."""
    return t if block.num_channels() == t.shape[1] else t[:, block.channels]


def _sums_about_pivot(work: Work) -> tuple[Tensor, Tensor]:
    """The pivots, where the means will lie, and the sums about them."""
    x, run = work.x, work.run
    mean = x.new_empty(run.mean_shape, dtype=torch.float32)
    total = x.new_empty((run.moments.grid[1], run.lay.row), dtype=torch.float32)
    run.moments(x, total, mean)
    if run.sum_moments is not None:
        run.sum_moments(total)
    return mean, total


def moments(work: Work, plan: Plan) -> Measured:
    """Step 1."""
    x, run = work.x, work.run
    if x.numel() == 0:
        shapes = (run.b, run.d), (run.b, run.d, run.d)
        mean, cov = (x.new_zeros(shape, dtype=torch.float32) for shape in shapes)
        if work.block.missing:
            rest = run.d - work.block.missing
            cov[-1, rest:, rest:].fill_diagonal_(1.0)  # as kernels leave it
        return Measured(0, mean, cov, torch.zeros_like(mean) if plan.keeps_rest else None)
    mean, total = _sums_about_pivot(work)
    if not run.several_channels:
        cov = x.new_empty((run.b, run.d, run.d), dtype=torch.float32)
        if run.lay.diagonal:
            run.statistics(*run.to_solve(total, mean, None, cov, cov, None))
            return Measured(run.m, mean, cov, None)
        rest = torch.empty_like(mean)
        run.statistics(total, mean, rest, cov)
        return Measured(run.m, mean, cov, rest)
    variance = torch.empty_like(mean)
    run.statistics(*run.to_solve(total, mean, None, variance, variance, None))
    center = mean.mean(1, keepdim=True)
    cov = (variance + (mean - center).square()).mean(1)
    return Measured(run.m, center, cov.view(run.b, 1, 1), None)


def analyze(work: Work, plan: Plan) -> tuple[Measured, tuple[Tensor, Tensor]]:
    """Steps 1 and 2."""
    x, run = work.x, work.run
    if run.root is None or x.numel() == 0:
        statistics = moments(work, plan)
        w, memo = root(statistics.cov, plan)
        if run.root is not None:  # of nothing, and for nobody, but of the size that is expected
            memo = x.new_empty(run.memo_shape, dtype=torch.float32)
        return statistics, (w, memo)
    mean, total = _sums_about_pivot(work)
    cov = x.new_empty((run.b, run.d, run.d), dtype=torch.float32)
    w = torch.empty_like(cov)
    rest = torch.empty_like(mean) if plan.keeps_rest else None
    memo = x.new_empty(run.memo_shape, dtype=torch.float32)
    run.root(*run.to_solve(total, mean, rest, cov, w, memo))
    return Measured(run.m, mean, cov, rest), (w, memo)


def root(cov: Tensor, plan: Plan) -> tuple[Tensor, Tensor]:
    """Step 2 by torch: for roots without a kernel, and for statistics of all ranks."""
    w, memo = plain.root(cov, plan)
    return w.contiguous(), memo


def _matrix(w: Tensor, work: Work, recovery: Recovery) -> Tensor:
    """The matrix that the kernels multiply by: W, or ΓW; the diagonal of a standardization."""
    if isinstance(recovery, Coloring):
        return plain.folded(recovery, w, work.block).contiguous()
    return _lanes(w, work)


def _lanes(t: Tensor, work: Work) -> Tensor:
    """A number for each problem as one for each channel the kernels walk."""
    if not work.run.several_channels:
        return t
    return t.reshape(-1, 1).repeat(1, work.block.size).view(-1)  # kernels want a copy, always


def apply(
    work: Work, y: Tensor, statistics: Measured, w: Tensor, recovery: Recovery, plan: Plan
) -> None:
    """Step 3."""
    x, block, run = work.x, work.block, work.run
    if x.numel() == 0:
        return
    residual = x if work.extra is None else work.extra
    matrix, mean = _matrix(w, work, recovery), _lanes(statistics.mean, work)
    rest = mean if statistics.rest is None else statistics.rest
    run.apply(x, _part(y, block), matrix, mean, rest, *work.parameters(), residual)


def _backward_sums(work: Work, dy: Tensor, p: Problem, recovery: Recovery) -> Tensor:
    x, run = work.x, work.run
    total = x.new_empty((run.sums.grid[1], run.lay.row), dtype=torch.float32)
    extra, g = x if work.extra is None else work.extra, x if work.g is None else work.g
    mean, w = _lanes(p.mean, work), _matrix(p.w, work, recovery)
    rest = mean if p.rest is None else p.rest
    run.sums(x, _part(dy, work.block), mean, rest, total, w, *work.parameters(), extra, g)
    if run.sum_sums is not None:
        run.sum_sums(total)
    return total


def sums(work: Work, dy: Tensor, p: Problem, recovery: Recovery, plan: Plan) -> Sums:
    """Step 4."""
    run, lay = work.run, work.run.lay
    if work.x.numel() == 0:
        nothing = [None if t is None else torch.zeros_like(t) for t in (work.weight, work.bias)]
        return Sums(torch.zeros_like(p.mean), torch.zeros_like(p.cov), *nothing)
    total = _backward_sums(work, dy, p, recovery)[0]
    if not lay.diagonal:
        f, outer = _unpadded(total, work)
        own = Sums(f.reshape(p.mean.shape), outer.reshape(p.cov.shape))
        return plain.sums_about_mean(own, p)
    first, second = total[: lay.problems * lay.d], total[lay.problems * lay.d :]
    lanes = [t.view(lay.examples, -1)[:, : lay.channels] for t in (first, second)]
    if not run.several_channels:
        f, outer = (t.reshape(-1) for t in lanes)
        return Sums(f.view(p.b, 1), outer.view(p.b, 1, 1))
    f, outer = lanes
    scales = _lanes(p.w, work).view_as(f)
    dweight, dbias = (outer * scales).sum(0), f.sum(0)
    if work.weight is not None:
        weight = work.weight.to(f.dtype)
        f, outer = f * weight, outer * weight
    f, outer = (t.reshape(p.b, -1).sum(1) for t in (f, outer))
    return Sums(f.view(p.b, 1), outer.view(p.b, 1, 1), dweight, dbias)


def _unpadded(total: Tensor, work: Work) -> tuple[Tensor, Tensor]:
    """The first and the second sums as they lie in all sums: (b/k, k, d) and (b/k, k, d, d), where
    programs take k groups each.
    """
    d, lay = work.run.d, work.run.lay
    first, second = total.split([lay.problems * lay.d, lay.problems * lay.d**2])
    first = first.view(-1, lay.d)[:, : lay.size].unflatten(1, (lay.span, d))
    second = second.view(-1, lay.d, lay.d)[:, : lay.size, : lay.size]
    blocks = second.unflatten(1, (lay.span, d)).unflatten(3, (lay.span, d))
    return first, blocks.diagonal(dim1=1, dim2=3).movedim(-1, 1)


def differentiate(
    work: Work, dy: Tensor, p: Problem, recovery: Recovery, plan: Plan, m: int
) -> Gradients:
    """Steps 4 and 5."""
    run, w = work.run, p.w
    if work.x.numel() == 0:
        own = plain.parameter_gradients(p, sums(work, dy, p, recovery, plan), recovery, plan)
        return Gradients(*own, w, torch.zeros_like(w), torch.zeros_like(p.mean))
    if run.gradients is None:
        return plain.gradients(p, sums(work, dy, p, recovery, plan), recovery, plan, m)
    total = _backward_sums(work, dy, p, recovery)
    if isinstance(recovery, Coloring):
        return _differentiate_colored(work, total, p, recovery, plan)
    dweight, dbias = w.new_empty(run.gain_shape), w.new_empty(run.gain_shape)
    a, slope, shift = torch.empty_like(w), torch.empty_like(w), torch.empty_like(p.mean)
    weight = w if work.weight is None else work.weight
    outputs = (dweight, dbias, a, slope, shift)
    run.gradients(*run.to_differentiate(total, p.rest, p.cov, w, p.memo, weight, outputs))
    if run.lay.examples == 1:
        return Gradients(dweight, dbias, a, slope, shift)
    return Gradients(dweight.sum(0), dbias.sum(0), a, slope, shift)


def _differentiate_colored(
    work: Work, total: Tensor, p: Problem, recovery: Coloring, plan: Plan
) -> Gradients:
    """Step 5 with A = ΓW: of Γᵀ times the sums the kernel makes what it makes of them without Γ."""
    run, w = work.run, p.w
    assert run.gradients is not None
    f, outer = _unpadded(total[0], work)
    own = Sums(f.reshape(p.mean.shape).clone(), outer.reshape(p.cov.shape))
    about_mean = plain.sums_about_mean(own, p)
    dcolor, dbias = plain.parameter_gradients(p, about_mean, recovery, plan)
    color = recovery.matrix(work.block).to(w.dtype).repeat(run.lay.examples, 1, 1)
    outer.copy_((color.mT @ own.outer).view(outer.shape))
    f.copy_((color.mT @ own.f.unsqueeze(-1)).view(f.shape))
    unused, bare = w.new_empty(run.gain_shape), torch.empty_like(w)
    slope, shift = torch.empty_like(w), torch.empty_like(p.mean)
    outputs = (unused, unused, bare, slope, shift)
    run.gradients(*run.to_differentiate(total, p.rest, p.cov, w, p.memo, w, outputs))
    return Gradients(dcolor, dbias, color @ w, slope, shift)


def backward_apply(
    work: Work, dy: Tensor, dx: Tensor, p: Problem, grads: Gradients, recovery: Recovery, plan: Plan
) -> None:
    """Step 6."""
    x, block, run = work.x, work.block, work.run
    if x.numel() == 0:
        return
    g = _part(dy, block) if work.g is None else work.g
    a = _lanes(grads.a.contiguous(), work)
    if run.several_channels and work.weight is not None:
        a = (a.view(run.lay.examples, -1) * work.weight.to(a.dtype)).reshape(-1)
    mean = _lanes(p.mean, work)
    tensors = (
        x, g, _part(dx, block), a, _lanes(grads.slope.contiguous(), work),
        mean, mean if p.rest is None else p.rest, _lanes(grads.shift, work),
        _matrix(p.w, work, recovery), *work.parameters(),
    )  # fmt: skip
    run.backward_apply(*tensors)
    if run.backward_rest is not None:
        run.backward_rest(*tensors)
