"""The explicit path: forward and backward in six steps, keeping x and a few d × d matrices.

    forward   1  moments   read x               →  count, μ, Σ
              2  root      d × d only           →  W, and A = diag(γ)W
              3  apply     read x, write y      →  y = A(x − μ) + β
    backward  4  sums      read x, dy           →  M = Σ dy(x − μ)ᵀ,  f = Σ dy
              5  gradients d × d only           →  dγ, dβ, dΣ
              6  apply     read x, dy, write dx →  dx = Aᵀ(dy − f/m) + (dΣ + dΣᵀ)(x − μ)/m

Where features are channels γ (or a coloring Γ) is part of A. Elsewhere (layer, group, batch_group,
position) it varies along the samples: steps 4 and 6 then see γ·dy for dy, and step 4 sums dy and
dy·x̂ per channel besides. Across ranks, the sums of steps 1 and 4 are added, in one sum each.

The steps themselves are ``plain``, ``native`` or ``gpu``: this module only walks through them.
Tensors that belong to problems travel packed: as they are for one block, the usual case; flat, one
after the other, for two.

Kernels may fuse what follows, y = act(A(x − μ) + β + residual): step 3 then writes that, and steps
4 and 6 see act′·dy for dy, which is the residual's gradient, too.

Index legend: b problems, d features, m samples.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from ..area import Block, flat
from ..recovery import Affine, Coloring, Recovery
from ..statistics import Measured, rounded, working_dtype
from ..synchronization import all_reduce, reduce_across
from . import plain
from .plan import Gradients, Plan, Problem, Sums, cut, pack


class Saved(NamedTuple):
    """What forward leaves for backward and for the running estimates, packed."""

    count: Tensor | None  # () the number of samples over all ranks; None where shapes tell it
    mean: Tensor
    cov: Tensor
    w: Tensor
    memo: Tensor
    rest: Tensor | None = None  # of the mean, where a matrix multiplies deviations from it


def recovery_of(weight: Tensor | None, bias: Tensor | None, color: Tensor | None) -> Recovery:
    return Affine(weight, bias) if color is None else Coloring(color, bias)


class Steps(Protocol):
    """What ``plain``, ``native`` and ``gpu`` each are. Work is a block of the input, made ready for
    the passes over it; what else it is they know themselves.
    """

    def prepare(
        self,
        x: Tensor,
        block: Block,
        plan: Plan,
        recovery: Recovery,
        extra: Tensor | None = None,
        g: Tensor | None = None,
    ) -> Any:
        """The work on a block of an (N, C, S) input. ``extra`` and ``g`` are for kernels that fuse
        what follows: the residual or what ``extra_to_save`` kept, and room for act′·dy.
        """
        ...

    def moments(self, work: Any, plan: Plan) -> Measured:
        """Step 1."""
        ...

    def root(self, cov: Tensor, plan: Plan) -> tuple[Tensor, Tensor]:
        """Step 2: W and the memo."""
        ...

    def analyze(self, work: Any, plan: Plan) -> tuple[Measured, tuple[Tensor, Tensor]]:
        """Steps 1 and 2, where no other rank has a part in them."""
        ...

    def apply(
        self,
        work: Any,
        y: Tensor,
        statistics: Measured,
        w: Tensor,
        recovery: Recovery,
        plan: Plan,
    ) -> None:
        """Step 3, into y."""
        ...

    def sums(self, work: Any, dy: Tensor, p: Problem, recovery: Recovery, plan: Plan) -> Sums:
        """Step 4."""
        ...

    def differentiate(
        self, work: Any, dy: Tensor, p: Problem, recovery: Recovery, plan: Plan, m: int
    ) -> Gradients:
        """Steps 4 and 5, where no other rank has a part in them."""
        ...

    def backward_apply(
        self,
        work: Any,
        dy: Tensor,
        dx: Tensor,
        p: Problem,
        grads: Gradients,
        recovery: Recovery,
        plan: Plan,
    ) -> None:
        """Step 6, into dx."""
        ...


@lru_cache
def _steps(backend: str) -> Steps:
    if backend == "triton":
        from . import gpu

        return gpu
    if backend == "native":
        from . import native

        return native
    return plain


def forward(
    x: Tensor, recovery: Recovery, plan: Plan, residual: Tensor | None = None
) -> tuple[Tensor, Saved]:
    """Steps 1 to 3 on an (N, C, *) tensor."""
    steps, whole, x = _steps(plan.backend), x, _dense(x, plan)
    shapes = plan.problem_shapes(x)
    residual = None if residual is None else _walkable(flat(residual), x, plan)
    works = [steps.prepare(x, block, plan, recovery, residual) for block, *_ in shapes]
    count = None
    if plan.group:
        parts = [steps.moments(work, plan).exact() for work in works]
        what = plan.shared_with(recovery)
        parts = reduce_across(plan.group, parts, plan.operation.centers, what)
        measured = [rounded(part, plan.keeps_rest) for part in parts]
        count = torch.as_tensor(measured[0].count)
        solved = [steps.root(stats.cov, plan) for stats in measured]
    else:
        measured, solved = zip(*(steps.analyze(work, plan) for work in works), strict=True)
    y = torch.empty_like(whole)  # now, not before the sums, which need memory of their own
    out = flat(y)
    for work, stats, (w, _) in zip(works, measured, solved, strict=True):
        steps.apply(work, out, stats, w, recovery, plan)
    _copy_back(y, out)
    means, covs = [s.mean for s in measured], [s.cov for s in measured]
    ws, memos = zip(*solved, strict=True)
    rests = [s.rest for s in measured if s.rest is not None]
    rest = pack(rests) if rests else None
    return y, Saved(count, pack(means), pack(covs), pack(ws), pack(memos), rest)


def _copy_back(whole: Tensor, flattened: Tensor) -> None:
    """Of a tensor in neither of the usual formats ``flat`` is a copy."""
    shared = flattened.untyped_storage()._cdata == whole.untyped_storage()._cdata  # traceable
    if not shared:
        whole.copy_(flattened.view(whole.shape))


def _dense(x: Tensor, plan: Plan) -> Tensor:
    """(N, C, S), for kernels without gaps: they walk the output by the input's strides."""
    if plan.backend != "triton" or is_dense(x):
        return flat(x)
    return flat(torch.empty_like(x).copy_(x))


def is_dense(x: Tensor) -> bool:
    """Whether an (N, C, *) tensor has no gaps, as NCHW or as channels_last."""
    return x.is_contiguous() or x.movedim(1, -1).is_contiguous()


def _walkable(t: Tensor, x: Tensor, plan: Plan) -> Tensor:
    """Kernels walk every activation by x's strides, whichever block of it they are at."""
    if plan.backend != "triton" or t.stride() == x.stride():
        return t
    return torch.empty_like(x, dtype=t.dtype).copy_(t)


def extra_to_save(plan: Plan, y: Tensor, residual: Tensor | None) -> Tensor | None:
    """What tells the derivative of the activation, besides x: for relu the output, which whoever
    uses it keeps anyway; else the residual, if there is one.
    """
    if plan.act == "relu":
        return y
    return residual if plan.act else None


def backward(
    dy: Tensor,
    dmean: Tensor | None,
    dcov: Tensor | None,
    x: Tensor,
    recovery: Recovery,
    saved: Saved,
    plan: Plan,
    extra: Tensor | None = None,
    has_residual: bool = False,
    wanted: bool = True,
) -> tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]:
    """Steps 4 to 6: dx, if it is wanted, the gradient of the recovery's weight or color, that of
    its bias, and that of the residual, unless it is dy. ``extra`` is what ``extra_to_save`` has
    kept.

    ``dmean`` and ``dcov`` are the gradients of the statistics themselves, for losses that use them.
    The parameters' gradients stay sums over this rank, as data parallelism expects; dx uses sums
    over all of them.
    """
    steps, dtype = _steps(plan.backend), working_dtype(x)
    g = torch.empty_like(x) if has_residual and plan.act else None
    whole, x = x, _dense(x, plan)
    problems = list(unpack(saved, plan, x))
    dy = _walkable(flat(dy), x, plan)
    extra = None if extra is None else _walkable(flat(extra), x, plan)
    through = None if g is None else flat(g)
    works = [steps.prepare(x, p.block, plan, recovery, extra, through) for p in problems]
    if not plan.operation.centers:
        dmean = None  # that mean is the constant zero
    of_statistics = [grad.to(dtype) for grad in (dmean, dcov) if grad is not None]
    grads: list[Gradients] = []
    m: Tensor | int = max(problems[0].m, 1)  # an empty batch's gradients are zero in any case
    if saved.count is None:
        for work, p in zip(works, problems, strict=True):
            grads.append(steps.differentiate(work, dy, p, recovery, plan, m))
    else:
        m = saved.count.to(dtype).clamp(min=1)
        local = [
            steps.sums(work, dy, p, recovery, plan) for work, p in zip(works, problems, strict=True)
        ]
        sent, what = [t for s in local for t in s[:2]], plan.shared_with(recovery)
        total = all_reduce(sent + of_statistics, plan.group, f"the backward of {what}")
        of_statistics = total[2 * len(problems) :]
        for i, (p, own) in enumerate(zip(problems, local, strict=True)):
            shared = own._replace(f=total[2 * i], outer=total[2 * i + 1])
            dweight, dbias = plain.parameter_gradients(p, own, recovery, plan)
            both = plain.gradients(p, shared, recovery, plan, m)
            grads.append(both._replace(dweight=dweight, dbias=dbias))
    if dmean is not None:
        for i, part in enumerate(cut(of_statistics.pop(0), [p.mean.shape for p in problems])):
            grads[i] = grads[i]._replace(shift=grads[i].shift + part / m)
    if dcov is not None:
        for i, part in enumerate(cut(of_statistics.pop(0), [p.cov.shape for p in problems])):
            grads[i] = grads[i]._replace(slope=grads[i].slope + (part + part.mT) / m)

    dx = torch.empty_like(whole) if wanted else None
    if dx is not None:
        out = flat(dx)
        for work, p, grad in zip(works, problems, grads, strict=True):
            steps.backward_apply(work, dy, out, p, grad, recovery, plan)
        _copy_back(dx, out)
    if g is not None and through is not None:
        _copy_back(g, through)
    dweight = _joined(recovery.gain, [part.dweight for part in grads])
    dbias = _joined(recovery.bias, [part.dbias for part in grads])
    return dx, dweight, dbias, g


def _joined(parameter: Tensor | None, parts: Sequence[Tensor | None]) -> Tensor | None:
    """A parameter's gradient from its blocks'; a color's padding, never read, has none."""
    if parameter is None:
        return None
    tensors = [part for part in parts if part is not None]
    if len(tensors) == 1:
        return tensors[0].to(parameter.dtype)
    if parameter.dim() == 1:
        return torch.cat(tensors).to(parameter.dtype)
    size = parameter.shape[-1]
    pads = [(0, size - p.shape[-1]) * 2 for p in tensors]
    padded = [torch.nn.functional.pad(p, pad) for p, pad in zip(tensors, pads, strict=True)]
    return torch.cat(padded).to(parameter.dtype)


def unpack(saved: Saved, plan: Plan, x: Tensor) -> Iterator[Problem]:
    """The blocks of an (N, C, *) input with their parts of what forward saved."""
    shapes = plan.problem_shapes(x)
    if len(shapes) == 1:
        yield Problem(*shapes[0], saved.mean, saved.cov, saved.w, saved.memo, saved.rest)
        return
    vectors = [(b, d) for _, b, d, _ in shapes]
    means = cut(saved.mean, vectors)
    rests = [None] * len(shapes) if saved.rest is None else cut(saved.rest, vectors)
    covs, ws = (cut(t, [(b, d, d) for _, b, d, _ in shapes]) for t in (saved.cov, saved.w))
    memos = cut(saved.memo, [plan.memo_shape(b, d, saved.w.device) for _, b, d, _ in shapes])
    for shape, *kept in zip(shapes, means, covs, ws, memos, rests, strict=True):
        yield Problem(*shape, *kept)
