"""The explicit path: forward and backward in six steps, keeping x and a few d × d matrices.

    forward   1  moments   read x               →  count, μ, Σ
              2  root      d × d only           →  W, and A = diag(γ)W
              3  apply     read x, write y      →  y = A(x − μ) + β
    backward  4  moments   read x, dy           →  M = Σ dy(x − μ)ᵀ,  f = Σ dy
              5  root      d × d only           →  dγ, dβ, dΣ
              6  apply     read x, dy, write dx →  dx = Aᵀ(dy − f/m) + (dΣ + dΣᵀ)(x − μ)/m

Where features are channels γ (or a coloring Γ) is part of A. Elsewhere (layer, group, batch_group,
position) it varies along the samples: steps 4 and 6 then see γ·dy for dy, and step 4 sums dy and
dy·x̂ per channel besides.

Tensors that belong to problems travel packed: one flat tensor for all blocks of the area, usually
one block.

Index legend: b problems, d features, m samples.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from ..area import Block
from ..operation import add_eps
from ..recovery import Affine, Coloring, Recovery
from ..statistics import Statistics, all_reduce, merge, reduce_across, working_dtype
from .plan import Plan
from .tiles import arithmetic, chunks


class Saved(NamedTuple):
    """What forward leaves for backward and for the running estimates, packed."""

    count: Tensor  # () the number of samples over all ranks, or empty where shapes alone tell it
    mean: Tensor
    cov: Tensor
    w: Tensor
    memo: Tensor


class _Problem(NamedTuple):
    """One block with its problem shape and its parts of the packed tensors."""

    block: Block
    b: int
    d: int
    m: int
    mean: Tensor  # (b, d)
    cov: Tensor  # (b, d, d)
    w: Tensor  # (b, d, d)
    memo: Tensor


def recovery_of(weight: Tensor | None, bias: Tensor | None, color: Tensor | None) -> Recovery:
    return Affine(weight, bias) if color is None else Coloring(color, bias)


def forward(x: Tensor, recovery: Recovery, plan: Plan) -> tuple[Tensor, Saved]:
    """Steps 1 to 3 on an (N, C, S) tensor."""
    dtype = working_dtype(x)
    shapes = plan.problem_shapes(*x.shape)
    measured = [_moments(block.view(x), plan, dtype, b, d) for block, b, d, _ in shapes]
    count = x.new_empty(0)
    if plan.group:
        measured = reduce_across(plan.group, measured)
        count = torch.as_tensor(measured[0].count)
    y = torch.empty_like(x)
    transforms, memos = [], []
    for (block, _, _, m), stats in zip(shapes, measured, strict=True):
        w, memo = _root(stats.cov, plan, m)
        transforms.append(w)
        memos.append(memo)
        _apply(block.view(x), block.view(y), w, stats.mean, recovery, block, plan)
    means, covs = [s.mean for s in measured], [s.cov for s in measured]
    return y, Saved(count, _pack(means), _pack(covs), _pack(transforms), _pack(memos))


def backward(
    dy: Tensor,
    dmean: Tensor | None,
    dcov: Tensor | None,
    x: Tensor,
    recovery: Recovery,
    saved: Saved,
    plan: Plan,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Steps 4 to 6: dx, the gradient of the recovery's weight or color, and that of its bias.

    ``dmean`` and ``dcov`` are the gradients of the statistics themselves, for losses that use them.
    The parameters' gradients stay sums over this rank, as data parallelism expects; dx uses sums
    over all of them.
    """
    dtype = working_dtype(x)
    problems = list(unpack(saved, plan, *x.shape))
    folded = plan.folds_recovery
    dx = torch.empty_like(x)
    dweight = _zeros_of(recovery[0], dtype)
    dbias = _zeros_of(recovery.bias, dtype)

    sums: list[Tensor] = []
    for p in problems:
        f, outer = _backward_moments(p, x, dy, recovery, plan, dtype, dweight, dbias)
        if folded and dweight is not None:
            _parameter_gradient(recovery, outer, p, dweight)
        if folded and dbias is not None:
            dbias[p.block.channels] = f.reshape(-1, p.block.groups * p.block.size).sum(0)
        sums += [f, outer]
    if not plan.operation.centers:
        dmean = None  # that mean is the constant zero
    sums += [grad.to(dtype) for grad in (dmean, dcov) if grad is not None]
    if plan.group:
        sums = all_reduce(sums, plan.group)
    extra = sums[2 * len(problems) :]
    dmeans = _unpack(extra.pop(0), [p.mean.shape for p in problems]) if dmean is not None else None
    dcovs = _unpack(extra.pop(0), [p.cov.shape for p in problems]) if dcov is not None else None

    for i, p in enumerate(problems):
        f, outer = sums[2 * i], sums[2 * i + 1]
        m = saved.count.to(dtype) if saved.count.numel() else p.m
        dw = _transform_gradient(recovery, outer, p) if folded else outer
        dsigma = _root_backward(dw, p, plan)
        if dcovs is not None:
            dsigma = dsigma + 0.5 * (dcovs[i] + dcovs[i].mT)
        a = _folded(recovery, p.w, p.block) if folded else p.w
        shift = (
            (a.mT @ f.unsqueeze(-1)).squeeze(-1) / -m
            if plan.operation.centers
            else torch.zeros_like(f)
        )
        if dmeans is not None:
            shift = shift + dmeans[i] / m
        _backward_apply(p, x, dy, dx, a.mT, dsigma * (2 / m), shift, recovery, plan, dtype)
    cast = lambda grad, like: None if grad is None else grad.to(like.dtype)  # noqa: E731
    return dx, cast(dweight, recovery[0]), cast(dbias, recovery.bias)


def _pack(parts: list[Tensor]) -> Tensor:
    return parts[0].reshape(-1) if len(parts) == 1 else torch.cat([p.reshape(-1) for p in parts])


def _unpack(packed: Tensor, shapes: list[tuple[int, ...]]) -> list[Tensor]:
    sizes = [torch.Size(shape).numel() for shape in shapes]
    return [part.view(shape) for part, shape in zip(packed.split(sizes), shapes, strict=True)]


def unpack(saved: Saved, plan: Plan, *input_shape: int) -> Iterator[_Problem]:
    """The blocks of an (N, C, S) input with their parts of what forward saved."""
    shapes = plan.problem_shapes(*input_shape)
    means = _unpack(saved.mean, [(b, d) for _, b, d, _ in shapes])
    covs, ws = (_unpack(t, [(b, d, d) for _, b, d, _ in shapes]) for t in (saved.cov, saved.w))
    memos = _unpack(saved.memo, [plan.memo_shape(b, d, m, saved.w.device) for _, b, d, m in shapes])
    for (block, b, d, m), mean, cov, w, memo in zip(shapes, means, covs, ws, memos, strict=True):
        yield _Problem(block, b, d, m, mean, cov, w, memo)


def _zeros_of(parameter: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    return None if parameter is None else torch.zeros_like(parameter, dtype=dtype)


def _moments(view: Tensor, plan: Plan, dtype: torch.dtype, b: int, d: int) -> Statistics:
    """Step 1. Chunks that share problems merge; chunks of separate examples stand side by side."""
    parts = []
    for rows in chunks(view):
        chunk = view[rows]
        ops = arithmetic(plan.area, chunk)
        tile = ops.tile(chunk, dtype)
        m = plan.area.problem_shape(Block(0, *chunk.shape[1:3]), chunk.shape[0], chunk.shape[3])[2]
        mean = ops.total(tile) / m
        if plan.operation.centers:
            tile = tile - ops.column(mean)
        else:
            mean = torch.zeros_like(mean)
        parts.append(Statistics(m, mean, ops.outer(tile, tile) / m))
    if not parts or not parts[0].count:
        return Statistics(
            0, view.new_zeros((b, d), dtype=dtype), view.new_zeros((b, d, d), dtype=dtype)
        )
    if plan.area.spans_batch:
        return reduce(merge, parts)
    return Statistics(
        parts[0].count, torch.cat([p.mean for p in parts]), torch.cat([p.cov for p in parts])
    )


def _root(cov: Tensor, plan: Plan, m: int) -> tuple[Tensor, Tensor]:
    """Step 2."""
    root = plan.root(cov.device)
    if root is None:
        return (cov + plan.eps).rsqrt(), cov.new_empty(0)
    return root.forward(add_eps(cov, plan.eps), m)


def _apply(
    view: Tensor, out: Tensor, w: Tensor, mean: Tensor, recovery: Recovery, block: Block, plan: Plan
) -> None:
    """Step 3."""
    folded = plan.folds_recovery
    a = _folded(recovery, w, block) if folded else w
    bias = None if recovery.bias is None else block.per_channel(recovery.bias).to(w.dtype)
    for rows, here in _chunks_with_problems(view, plan):
        chunk = view[rows]
        ops = arithmetic(plan.area, chunk)
        z = ops.untile(ops.product(a[here], _centred(ops, chunk, mean[here], plan, w.dtype)))
        if not folded:
            z = recovery.scale(z, block)
        if bias is not None:
            z = z.add_(bias)
        out[rows].copy_(z)


def _backward_moments(
    p: _Problem,
    x: Tensor,
    dy: Tensor,
    recovery: Recovery,
    plan: Plan,
    dtype: torch.dtype,
    dweight: Tensor | None,
    dbias: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Step 4: f (b, d) and M (b, d, d); where γ is not part of A, its gradient and β's on the
    way.
    """
    view, grad = p.block.view(x), p.block.view(dy)
    f = torch.zeros_like(p.mean)
    outer = torch.zeros_like(p.cov)
    for rows, here in _chunks_with_problems(view, plan):
        chunk, g = view[rows], grad[rows].to(dtype)
        ops = arithmetic(plan.area, chunk)
        tile = _centred(ops, chunk, p.mean[here], plan, dtype)
        if not plan.folds_recovery:
            if dbias is not None:
                dbias[p.block.channels] += g.sum((0, 3)).flatten()
            if dweight is not None:
                xhat = ops.untile(ops.product(p.w[here], tile))
                dweight[p.block.channels] += (g * xhat).sum((0, 3)).flatten()
            g = recovery.scale(g, p.block)
        g = ops.tile(g, dtype)
        f[here] += ops.total(g)
        outer[here] += ops.outer(g, tile)
    return f, outer


def _parameter_gradient(recovery: Recovery, outer: Tensor, p: _Problem, dweight: Tensor) -> None:
    """Step 5 for the recovery: A = diag(γ)W or ΓW, and dA = M."""
    block = p.block
    if isinstance(recovery, Coloring):
        first = block.start // dweight.shape[-1]
        part = (outer @ p.w.mT).view(-1, block.groups, block.size, block.size).sum(0)
        dweight[first : first + block.groups, : block.size, : block.size] = part
    else:
        dweight[block.channels] = (p.w * outer).sum(-1).view(-1, block.groups * block.size).sum(0)


def _transform_gradient(recovery: Recovery, outer: Tensor, p: _Problem) -> Tensor:
    """Step 5: dW from dA = M."""
    grouped = outer.view(-1, p.block.groups, p.block.size, p.d)
    if isinstance(recovery, Coloring):
        return (recovery.matrix(p.block).to(outer.dtype).mT @ grouped).view_as(outer)
    return recovery.fold(grouped, p.block).view_as(outer)


def _root_backward(dw: Tensor, p: _Problem, plan: Plan) -> Tensor:
    """Step 5: dΣ from dW."""
    root = plan.root(dw.device)
    if root is None:
        return -0.5 * dw * p.w**3
    return root.backward(dw, add_eps(p.cov, plan.eps), p.w, p.memo)


def _backward_apply(
    p: _Problem,
    x: Tensor,
    dy: Tensor,
    dx: Tensor,
    a_t: Tensor,
    slope: Tensor,
    shift: Tensor,
    recovery: Recovery,
    plan: Plan,
    dtype: torch.dtype,
) -> None:
    """Step 6: dx = Aᵀ·dy + slope·(x − μ) + shift."""
    view, grad, out = (p.block.view(t) for t in (x, dy, dx))
    for rows, here in _chunks_with_problems(view, plan):
        chunk, g = view[rows], grad[rows].to(dtype)
        ops = arithmetic(plan.area, chunk)
        if not plan.folds_recovery:
            g = recovery.scale(g, p.block)
        z = ops.product(a_t[here], ops.tile(g, dtype))
        z = ops.add_product(slope[here], _centred(ops, chunk, p.mean[here], plan, dtype), to=z)
        out[rows].copy_(ops.untile(z.add_(ops.column(shift[here]))))


def _centred(ops, chunk: Tensor, mean: Tensor, plan: Plan, dtype: torch.dtype) -> Tensor:
    tile = ops.tile(chunk, dtype)
    return tile - ops.column(mean) if plan.operation.centers else tile


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
