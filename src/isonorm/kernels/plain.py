"""The six steps of the explicit path in plain torch, on any device, chunk by chunk."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from math import prod

import torch
from torch import Tensor

from ..area import Block
from ..operation import add_eps
from ..recovery import Coloring, Recovery
from ..statistics import Statistics, merge, working_dtype
from .plan import Gradients, Plan, Problem, Sums
from .tiles import arithmetic, chunks


def moments(x: Tensor, block: Block, plan: Plan) -> Statistics:
    """Step 1. Chunks that share problems merge; chunks of separate examples stand side by side."""
    view, dtype = block.view(x), working_dtype(x)
    parts = []
    for rows in chunks(view):
        chunk = view[rows]
        ops = arithmetic(plan.area, chunk)
        m = plan.area.problem_shape(block, chunk.shape[0], chunk.shape[3])[2]
        mean = _chunk_mean(chunk, plan, dtype)
        tile = ops.tile(chunk, dtype, mean if plan.operation.centers else None)
        parts.append(Statistics(m, mean, ops.outer(tile, tile) / m))
    if not parts or not parts[0].count:
        b, d, _ = plan.area.problem_shape(block, x.shape[0], x.shape[2])
        mean, cov = (x.new_zeros(shape, dtype=dtype) for shape in ((b, d), (b, d, d)))
        return Statistics(0, mean, cov)
    if plan.area.spans_batch:
        return reduce(merge, parts)
    means, covs = torch.cat([p.mean for p in parts]), torch.cat([p.cov for p in parts])
    return Statistics(parts[0].count, means, covs)


def _chunk_mean(chunk: Tensor, plan: Plan, dtype: torch.dtype) -> Tensor:
    """The (b, d) means of a chunk's own samples; zeros where nothing is centred."""
    b, d, _ = plan.area.problem_shape(Block(0, *chunk.shape[1:3]), chunk.shape[0], chunk.shape[3])
    if not plan.operation.centers:
        return chunk.new_zeros((b, d), dtype=dtype)
    return chunk.mean(plan.area.axes("m"), dtype=dtype).reshape(b, d)


def root(cov: Tensor, plan: Plan, m: int) -> tuple[Tensor, Tensor]:
    """Step 2: W and the memo."""
    method = plan.root(cov.shape[-1], cov.device)
    if method is None:
        return (cov + plan.eps).rsqrt(), cov.new_empty(0)
    return method.forward(add_eps(cov, plan.eps), m)


def apply(
    x: Tensor, y: Tensor, mean: Tensor, w: Tensor, recovery: Recovery, block: Block, plan: Plan
) -> None:
    """Step 3: y = A(x − μ) + β."""
    view, out = block.view(x), block.view(y)
    folded = plan.folds_recovery
    a = _folded(recovery, w, block) if folded else w
    bias = None if recovery.bias is None else block.per_channel(recovery.bias).to(w.dtype)
    for rows, here in _chunks_with_problems(view, plan):
        chunk = view[rows]
        ops = arithmetic(plan.area, chunk)
        tile = ops.tile(chunk, w.dtype, mean[here] if plan.operation.centers else None)
        z = ops.untile(ops.product(a[here], tile))
        if not folded:
            z = recovery.scale(z, block)
        _write(out[rows], z, bias)


def sums(x: Tensor, dy: Tensor, p: Problem, recovery: Recovery, plan: Plan) -> Sums:
    """Step 4: f (b, d) and M (b, d, d); where γ is not part of A, its gradient and β's as well."""
    view, grad, dtype = p.block.view(x), p.block.view(dy), p.w.dtype
    f, outer = torch.zeros_like(p.mean), torch.zeros_like(p.cov)
    dweight = dbias = None
    if not plan.folds_recovery:
        dweight, dbias = (f.new_zeros(p.block.groups * p.block.size) for _ in range(2))
    for rows, here in _chunks_with_problems(view, plan):
        chunk, g = view[rows], grad[rows].to(dtype)
        ops = arithmetic(plan.area, chunk)
        tile = ops.tile(chunk, dtype, p.mean[here] if plan.operation.centers else None)
        if dweight is not None and dbias is not None:
            xhat = ops.untile(ops.product(p.w[here], tile))
            dbias += g.sum((0, 3)).flatten()
            dweight += (g * xhat).sum((0, 3)).flatten()
            g = recovery.scale(g, p.block)
        g = ops.tile(g, dtype)
        f[here] += ops.total(g)
        outer[here] += ops.outer(g, tile)
    return Sums(f, outer, dweight, dbias)


def gradients(p: Problem, s: Sums, recovery: Recovery, plan: Plan, m: Tensor | int) -> Gradients:
    """Step 5: the gradients of the recovery, and what step 6 needs."""
    m = m.clamp(min=1) if isinstance(m, Tensor) else max(m, 1)
    folded = plan.folds_recovery
    a = _folded(recovery, p.w, p.block) if folded else p.w
    dw = _transform_gradient(recovery, s.outer, p) if folded else s.outer
    method = plan.root(dw.shape[-1], dw.device)
    if method is None:
        dsigma = -0.5 * dw * p.w**3
    else:
        dsigma = method.backward(dw, add_eps(p.cov, plan.eps), p.w, p.memo)
    shift = torch.zeros_like(s.f)
    if plan.operation.centers:
        shift = (a.mT @ s.f.unsqueeze(-1)).squeeze(-1) / -m
    dweight, dbias = parameter_gradients(p, s, recovery, plan)
    return Gradients(dweight, dbias, a, dsigma * (2 / m), shift)


def parameter_gradients(
    p: Problem, s: Sums, recovery: Recovery, plan: Plan
) -> tuple[Tensor | None, Tensor | None]:
    """Gradients of γ (or Γ) and β, by channel (or group) of the block: A = diag(γ)W and dA = M."""
    if not plan.folds_recovery:
        return s.dweight, s.dbias
    groups, size = p.block.groups, p.block.size
    dbias = s.f.reshape(-1, groups * size).sum(0)
    if isinstance(recovery, Coloring):
        return (s.outer @ p.w.mT).view(-1, groups, size, size).sum(0), dbias
    return (p.w * s.outer).sum(-1).view(-1, groups * size).sum(0), dbias


def _transform_gradient(recovery: Recovery, outer: Tensor, p: Problem) -> Tensor:
    """dW from dA = M."""
    grouped = outer.reshape(-1, p.block.groups, p.block.size, p.d)
    if isinstance(recovery, Coloring):
        return (recovery.matrix(p.block).to(outer.dtype).mT @ grouped).view(outer.shape)
    return recovery.fold(grouped, p.block).view(outer.shape)


def backward_apply(
    x: Tensor,
    dy: Tensor,
    dx: Tensor,
    p: Problem,
    grads: Gradients,
    recovery: Recovery,
    plan: Plan,
) -> None:
    """Step 6: dx = Aᵀ·dy + slope·(x − μ) + shift."""
    view, grad, out = (p.block.view(t) for t in (x, dy, dx))
    dtype = p.w.dtype
    for rows, here in _chunks_with_problems(view, plan):
        chunk, g = view[rows], grad[rows].to(dtype)
        ops = arithmetic(plan.area, chunk)
        if not plan.folds_recovery:
            g = recovery.scale(g, p.block)
        z = ops.product(grads.a.mT[here], ops.tile(g, dtype))
        tile = ops.tile(chunk, dtype, p.mean[here] if plan.operation.centers else None)
        z = ops.add_product(grads.slope[here], tile, to=z)
        shift = grads.shift[here].reshape(plan.area.statistic_shape(chunk))
        _write(out[rows], ops.untile(z), shift)


def _write(out: Tensor, values: Tensor, shift: Tensor | None) -> None:
    """out = values + shift, in one pass where the dtypes allow."""
    if shift is None:
        out.copy_(values)
    elif out.dtype == values.dtype:
        torch.add(values, shift, out=out)
    else:
        out.copy_(values.add_(shift))


def _folded(recovery: Recovery, w: Tensor, block: Block) -> Tensor:
    """A from W (b, d, d), whose problems are the block's groups, once or once for each example."""
    return recovery.fold(w.view(-1, block.groups, block.size, w.shape[-1]), block).view_as(w)


def _chunks_with_problems(view: Tensor, plan: Plan) -> Iterator[tuple[slice, slice]]:
    """Each chunk of examples with the problems it belongs to: all of them where the area spans
    the batch.
    """
    for rows in chunks(view):
        if plan.area.spans_batch:
            yield rows, slice(None)
        else:
            per_example = prod(view.shape[axis] for axis in plan.area.axes("b") if axis > 0)
            yield rows, slice(rows.start * per_example, rows.stop * per_example)
