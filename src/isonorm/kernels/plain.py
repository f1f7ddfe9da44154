"""The six steps of the explicit path in plain torch, on any device, chunk by chunk."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import NamedTuple

import torch
from torch import Tensor

from ..area import Block
from ..operation import add_eps
from ..recovery import Coloring, Recovery
from ..statistics import (
    Measured,
    Statistics,
    about_mean,
    measured_about,
    merge,
    working_dtype,
)
from .layouts import layout
from .outer import Outer, Square
from .plan import Gradients, Plan, Problem, Sums
from .tiles import Chunk, Layout, add_into

#: Chunks whose sums are about the mean of the first. The mean of 1/r of the samples is at most
#: √(r − 1) standard deviations from that of all, so that r times the variance is all that cancels.
CHUNKS_ABOUT_A_PIVOT = 8


class Work(NamedTuple):
    """A block of an (N, C, S) input, laid out for the passes over it."""

    block: Block
    ops: Layout


def prepare(
    x: Tensor,
    block: Block,
    plan: Plan,
    recovery: Recovery,
    extra: Tensor | None = None,
    g: Tensor | None = None,
) -> Work:
    assert extra is None and g is None and not plan.act, "only kernels fuse what follows"
    assert plan.operation.centers or plan.operation.method is None, "what is whitened is centered"
    return Work(block, layout(plan.area, block.view(x), working_dtype(x)))


def moments(work: Work, plan: Plan) -> Measured:
    """Step 1. Chunks that share problems merge, a run of them at a time; chunks of separate
    examples stand side by side.
    """
    (block, ops), area = work, plan.area
    if not ops.chunks:
        b, d, _ = area.problem_shape(block, ops.shape[0], ops.shape[3])
        mean, cov = (ops.source.new_zeros(shape, dtype=ops.dtype) for shape in ((b, d), (b, d, d)))
        return Measured(0, mean, cov, torch.zeros_like(mean) if plan.keeps_rest else None)
    run = CHUNKS_ABOUT_A_PIVOT if area.spans_batch else 1
    runs = [ops.chunks[i : i + run] for i in range(0, len(ops.chunks), run)]
    parts, pivots = [], []
    for chunks in runs:
        if plan.operation.centers:
            pivots.append(ops.mean(chunks[0]))
            parts.append(_about_pivot(chunks, pivots[-1], work, plan))
        else:
            parts.append(_about_zero(chunks, work, plan))
    if not area.spans_batch:
        means, covs = torch.cat([p.mean for p in parts]), torch.cat([p.cov for p in parts])
        total = Statistics(parts[0].count, means, covs)
        if not pivots:
            return Measured(*total, None)
        return measured_about(torch.cat(pivots), total, plan.keeps_rest)
    if not pivots:
        return Measured(*reduce(merge, parts), None)
    # Relative to the first pivot: means far from zero would be rounded before they are compared.
    for i in range(1, len(parts)):
        parts[i] = parts[i]._replace(mean=parts[i].mean + (pivots[i] - pivots[0]))
    return measured_about(pivots[0], reduce(merge, parts), plan.keeps_rest)


def _about_pivot(chunks: Sequence[Chunk], pivot: Tensor, work: Work, plan: Plan) -> Statistics:
    """Of a run of chunks, with a mean that is relative to the pivot."""
    ops, m = work.ops, _samples(chunks, work, plan)
    square, totals = Square(ops), []
    for chunk in chunks:
        tile = ops.centered_tile(chunk, pivot)
        totals.append(ops.total(tile))
        square.add(tile)
    delta = ops.joined(totals).div_(m)
    return about_mean(Statistics(m, torch.zeros_like(delta), square.total().div_(m)), delta)


def _about_zero(chunks: Sequence[Chunk], work: Work, plan: Plan) -> Statistics:
    """Of a run of chunks that is not centered: second moments."""
    ops, m = work.ops, _samples(chunks, work, plan)
    square = Square(ops)
    for chunk in chunks:
        square.add(ops.tile(chunk))
    moment = square.total().div_(m)
    return Statistics(m, moment.new_zeros(moment.shape[:2]), moment)


def _samples(chunks: Sequence[Chunk], work: Work, plan: Plan) -> int:
    """Of each problem, in these chunks."""
    examples = sum(chunk.values.shape[0] for chunk in chunks)
    return plan.area.problem_shape(work.block, examples, work.ops.shape[3])[2]


def root(cov: Tensor, plan: Plan) -> tuple[Tensor, Tensor]:
    """Step 2: W and the memo."""
    method = plan.root(cov.shape[-1], cov.device)
    if method is None:
        return (cov + plan.eps).rsqrt(), cov.new_empty(0)
    return method.forward(add_eps(cov, plan.eps))


def analyze(work: Work, plan: Plan) -> tuple[Measured, tuple[Tensor, Tensor]]:
    """Steps 1 and 2, where no other rank has a part in them."""
    statistics = moments(work, plan)
    return statistics, root(statistics.cov, plan)


def centering(
    work: Work, mean: Tensor, cov: Tensor, plan: Plan
) -> tuple[Tensor | None, Tensor | None]:
    """What steps 3 and 6 subtract from every number, and what they take off products: μ is one of
    them, the other None.

    Steps 1 and 4 always center: over many samples a mean in x, and in dy, adds up to sums beside
    which what is wanted is small.
    """
    if not plan.operation.centers:
        return None, None
    # Where γ and β vary along the samples, products are not all that needs x − μ.
    after = plan.folds_recovery and work.ops.spares_centering(mean, cov)
    return (None, mean) if after else (mean, None)


def apply(
    work: Work, y: Tensor, statistics: Measured, w: Tensor, recovery: Recovery, plan: Plan
) -> None:
    """Step 3: y = A(x − μ) + β."""
    (block, ops), out = work, work.block.view(y)
    bias = None if recovery.bias is None else block.per_channel(recovery.bias).to(w.dtype)
    before, after = centering(work, statistics.mean, statistics.cov, plan)
    tiles = ops.centered_tiles(before, out, again=True)
    if not plan.folds_recovery:  # γ and β vary along the samples
        shift = less_rest(None, w, statistics.rest)
        for rows, tile, part in tiles:
            z = ops.untile(ops.product(ops.part(w, rows), tile, _own(ops, shift, rows)))
            z = recovery.scale(z, block)
            part.values.copy_(z) if bias is None else add_into(part.values, z, bias)
        return
    a = folded(recovery, w, block)
    shift = less_rest(shift_of(recovery, block, w), a, statistics.rest)
    if after is not None:
        shared = torch.bmm(a, after.unsqueeze(-1))
        shift = shared.neg_() if shift is None else shift - shared
    a = ops.repeated(a, "matrix")
    shift = None if shift is None else ops.repeated(shift, "shift")
    for rows, tile, part in tiles:
        ops.write(part, (ops.part(a, rows), tile), shift=_own(ops, shift, rows))


def _own(ops: Layout, shift: Tensor | None, rows: slice) -> Tensor | None:
    return None if shift is None else ops.part(shift, rows)


def less_rest(shift: Tensor | None, matrix: Tensor, rest: Tensor | None) -> Tensor | None:
    """Return a (b, d, 1) shift of products with x − μ less what the mean's rest adds to them."""
    if rest is None:
        return shift
    if shift is None:
        return torch.bmm(matrix, rest.unsqueeze(-1)).neg_()
    return torch.baddbmm(shift, matrix, rest.unsqueeze(-1), alpha=-1)


def sums(work: Work, dy: Tensor, p: Problem, recovery: Recovery, plan: Plan) -> Sums:
    """Step 4: f (b, d) and M (b, d, d); where γ is not part of A, its gradient and β's as well."""
    (block, ops), grad = work, work.block.view(dy)
    fs, outer = [], Outer(ops)
    dweight = dbias = None
    if not plan.folds_recovery:
        dweight, dbias = (p.mean.new_zeros(block.groups * block.size) for _ in range(2))
        shift = less_rest(None, p.w, p.rest)
    for rows, tile, g in ops.centered_tiles(p.mean if plan.operation.centers else None, grad):
        if dweight is None or dbias is None:
            g = ops.tile(g)
        else:
            values = g.values.to(ops.dtype)
            xhat = ops.untile(ops.product(ops.part(p.w, rows), tile, _own(ops, shift, rows)))
            dbias += values.sum((0, 3)).flatten()
            dweight += (values * xhat).sum((0, 3)).flatten()
            g = ops.made(recovery.scale(values, block))
        fs.append(ops.total(g))
        outer.add(g, tile)
    if not fs:
        return Sums(torch.zeros_like(p.mean), torch.zeros_like(p.cov), dweight, dbias)
    return sums_about_mean(Sums(ops.joined(fs), outer.total(), dweight, dbias), p)


def sums_about_mean(s: Sums, p: Problem) -> Sums:
    """Return the sums of step 4 with M about the mean and its rest."""
    if p.rest is None:
        return s
    shared = (s.f.unsqueeze(-1), p.rest.unsqueeze(-2))
    return s._replace(outer=torch.addcmul(s.outer, *shared, value=-1))


def gradients(p: Problem, s: Sums, recovery: Recovery, plan: Plan, m: Tensor | int) -> Gradients:
    """Step 5: the gradients of the recovery, and what step 6 needs."""
    folds = plan.folds_recovery
    a = folded(recovery, p.w, p.block) if folds else p.w
    dw = _transform_gradient(recovery, s.outer, p) if folds else s.outer
    method = plan.root(dw.shape[-1], dw.device)
    if method is None:
        dsigma = -0.5 * dw * p.w**3
    else:
        dsigma = method.backward(dw, add_eps(p.cov, plan.eps), p.w, p.memo)
    if plan.operation.centers:
        shift = torch.bmm(a.mT, s.f.unsqueeze(-1)).squeeze(-1).div_(-m)
    else:
        shift = torch.zeros_like(s.f)
    dweight, dbias = parameter_gradients(p, s, recovery, plan)
    return Gradients(dweight, dbias, a, dsigma.mul_(2 / m), shift)


def differentiate(
    work: Work, dy: Tensor, p: Problem, recovery: Recovery, plan: Plan, m: int
) -> Gradients:
    """Steps 4 and 5, where no other rank has a part in them."""
    return gradients(p, sums(work, dy, p, recovery, plan), recovery, plan, m)


def parameter_gradients(
    p: Problem, s: Sums, recovery: Recovery, plan: Plan
) -> tuple[Tensor | None, Tensor | None]:
    """Gradients of γ (or Γ) and β, by channel (or group) of the block: A = diag(γ)W and dA = M."""
    if not plan.folds_recovery:
        return s.dweight, s.dbias
    groups, size = p.block.groups, p.block.size
    if isinstance(recovery, Coloring):
        dgain = (s.outer @ p.w.mT).view(-1, groups, size, size)
    else:
        dgain = (p.w * s.outer).sum(-1).view(-1, groups * size)[:, : p.block.num_channels()]
    dbias = s.f.reshape(-1, groups * size)[:, : p.block.num_channels()]
    if plan.area.spans_batch:  # every group is one problem
        return dgain[0], dbias[0]
    return dgain.sum(0), dbias.sum(0)


def _transform_gradient(recovery: Recovery, outer: Tensor, p: Problem) -> Tensor:
    """dW from dA = M."""
    grouped = outer.reshape(-1, p.block.groups, p.block.size, p.d)
    if isinstance(recovery, Coloring):
        return (recovery.matrix(p.block).to(outer.dtype).mT @ grouped).view(outer.shape)
    return recovery.fold(grouped, p.block).view(outer.shape)


def backward_apply(
    work: Work, dy: Tensor, dx: Tensor, p: Problem, grads: Gradients, recovery: Recovery, plan: Plan
) -> None:
    """Step 6: dx = Aᵀ·dy + slope·(x − μ) + shift."""
    (block, ops), grad, out = work, work.block.view(dy), work.block.view(dx)
    # turned after it is repeated: products take either, copies do not
    a, slope = ops.repeated(grads.a, "matrix").mT, ops.repeated(grads.slope, "slope")
    before, after = centering(work, p.mean, p.cov, plan)
    shift = less_rest(grads.shift.unsqueeze(-1), grads.slope, p.rest)
    assert shift is not None
    if after is not None:
        shift = torch.baddbmm(shift, grads.slope, after.unsqueeze(-1), alpha=-1)
    shift = ops.repeated(shift, "shift")
    for rows, tile, g, part in ops.centered_tiles(before, grad, out, again=True):
        if plan.folds_recovery:
            g = ops.tile(g)
        else:
            g = ops.made(recovery.scale(g.values.to(ops.dtype), block))
        terms = (ops.part(a, rows), g), (ops.part(slope, rows), tile)
        ops.write(part, *terms, shift=ops.part(shift, rows))


def shift_of(recovery: Recovery, block: Block, w: Tensor) -> Tensor | None:
    """β as (b, d, 1), for the problems of W (b, d, d), if there is one."""
    if recovery.bias is None:
        return None
    shift = block.part(recovery.bias).to(w.dtype).view(-1, w.shape[1], 1)
    # Where every example has problems of its own, once for each.
    return shift if len(shift) == len(w) else shift.repeat(len(w) // len(shift), 1, 1)


def folded(recovery: Recovery, w: Tensor, block: Block) -> Tensor:
    """A from W (b, d, d), whose problems are the block's groups, once or once for each example."""
    return recovery.fold(w.view(-1, block.groups, block.size, w.shape[-1]), block).view_as(w)
