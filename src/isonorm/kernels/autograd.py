"""The explicit path as autograd sees it: one node, in eager mode and under ``torch.compile`` alike.

Both wrappers run the same two functions. Eager mode uses a ``torch.autograd.Function``, which costs
less to call; a compiler gets ``torch.library`` operators, which it need not look into. A backward
that is itself to be differentiated (``create_graph=True``) differentiates the reference instead, so
that double backward is exact.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..activation import finish
from ..area import flat
from ..statistics import working_dtype
from ..symbolic import is_traced
from . import explicit, reference
from .choice import is_watched, requested
from .explicit import Saved, recovery_of
from .operators import register, surroundings
from .plan import Plan, pack


def run(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    color: Tensor | None,
    plan: Plan,
    residual: Tensor | None = None,
) -> tuple[Tensor, Saved]:
    """Normalizes an (N, C, *) tensor. Gradients flow through y, mean and cov."""
    # torch.jit's tracer would write down what is inside an autograd function as well.
    watched = torch.compiler.is_compiling() or is_traced()
    if plan.backend == "triton":
        if not explicit.is_dense(x):
            x = x.clone()  # once, rather than in forward and in backward
        watched = watched or is_watched(x)
    if watched:
        found = _forward_op(x, weight, bias, color, residual, plan.encode())
        y, count, mean, cov, w, memo, rest = found
        return y, Saved(count, mean, cov, w, memo, rest if plan.keeps_rest else None)
    undifferentiated: list[Tensor] = []
    y, mean, cov = _Explicit.apply(x, weight, bias, color, residual, plan, undifferentiated)
    count, w, memo, rest = undifferentiated
    return y, Saved(count, mean, cov, w, memo, rest)


def as_stored(tensor: Any) -> Any:
    """With numbers that lie in memory as they are, for whoever takes addresses: those of
    ``z.conj().imag`` are the negative of what lies there, and autograd's zeros lie nowhere.
    """
    if tensor is None:
        return None
    return tensor.new_zeros(tensor.shape) if tensor._is_zerotensor() else tensor.resolve_neg()


def _within_reach(plan: Plan, *tensors: Tensor | None) -> Plan:
    """The plan for these tensors: what wraps others, or is watched, has no address to give."""
    if plan.backend != "native" or not any(t is not None and is_watched(t) for t in tensors):
        return plan
    if requested() == "native":
        raise RuntimeError(
            "backend='native' was asked for, but a tensor besides the input wraps another, or is "
            "watched: native code needs the addresses of numbers."
        )
    return replace(plan, backend="torch")


def _forward(x, weight, bias, color, residual, plan: Plan) -> tuple[Tensor | None, ...]:
    x, weight, bias, color, residual = map(as_stored, (x, weight, bias, color, residual))
    plan = _within_reach(plan, x, weight, bias, color)
    with surroundings(x):
        y, saved = explicit.forward(x, recovery_of(weight, bias, color), plan, residual)
    return (y, *saved)


def _backward(
    dy, dmean, dcov, x, weight, bias, color, extra, saved: Saved, plan: Plan, has_residual: bool,
    wanted: bool = True,
):  # fmt: skip
    dy, x, weight, bias = map(as_stored, (dy, x, weight, bias))
    color, extra, dmean, dcov = map(as_stored, (color, extra, dmean, dcov))
    plan = _within_reach(plan, dy, x, weight, bias, color, dmean, dcov)
    recovery = recovery_of(weight, bias, color)
    with surroundings(x):
        return explicit.backward(
            dy, dmean, dcov, x, recovery, saved, plan, extra, has_residual, wanted
        )


def is_batched(grad: Tensor | None) -> bool:
    """Whether a gradient stands for many (``is_grads_batched``, vmap over a vjp): only the
    reference broadcasts over them.
    """
    functorch = torch._C._functorch  # pyright: ignore[reportAttributeAccessIssue]
    return grad is not None and (
        functorch.is_legacy_batchedtensor(grad) or functorch.is_batchedtensor(grad)
    )


def differentiable_backward(
    dy, dmean, dcov, x, weight, bias, color, extra, plan: Plan, has_residual: bool
):
    """The same gradients as a graph, by differentiating the reference."""
    create_graph = torch.is_grad_enabled()
    with torch.enable_grad():
        # Aliases: a gradient asked of x itself would run on, through x's history, into parameters
        # that an earlier layer shares with this one.
        own = [None if t is None else t.view_as(t) for t in (x, weight, bias, color)]
        own.append(_residual_alias(x, extra, plan) if has_residual else None)
        wanted = [i for i, t in enumerate(own) if t is not None and t.requires_grad]
        if not wanted:
            raise RuntimeError(
                "nothing to differentiate: no input of this normalization requires a gradient."
            )
        recovery = recovery_of(*own[1:4])
        y, *statistics = reference.run_packed(flat(own[0]), recovery, plan)  # type: ignore[arg-type]
        y = y.reshape(x.shape)
        if extra is not None and plan.act == "relu":
            y = torch.where(extra.detach() <= 0, 0, finish(y, None, own[4]))
        else:
            y = finish(y, plan.act, own[4])
        outputs = (y, *statistics)
    pairs = [
        (o, g)
        for o, g in zip(outputs, (dy, dmean, dcov), strict=True)
        if g is not None and o.requires_grad
    ]
    grads = torch.autograd.grad(
        [o for o, _ in pairs],
        [t for i in wanted if (t := own[i]) is not None],
        [g for _, g in pairs],
        create_graph=create_graph,
        allow_unused=True,
    )
    found = dict(zip(wanted, grads, strict=True))
    return tuple(found.get(i) for i in range(len(own)))


def _residual_alias(x: Tensor, extra: Tensor | None, plan: Plan) -> Tensor:
    """What stands for the residual: itself for silu; elsewhere the output is linear in it, where it
    matters at all, so that any value gives the same gradients.
    """
    if plan.act == "silu" and extra is not None:
        return extra.view_as(extra)
    return torch.zeros_like(x, requires_grad=True)


class _Explicit(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, color, residual, plan: Plan, undifferentiated: list):
        y, *saved = _forward(x, weight, bias, color, residual, plan)
        ctx.plan = plan
        ctx.residual_dtype = None if residual is None else residual.dtype
        ctx.set_materialize_grads(False)
        extra = explicit.extra_to_save(plan, y, residual)  # type: ignore[arg-type]
        ctx.save_for_backward(x, weight, bias, color, extra, *saved)
        count, mean, cov, w, memo, rest = saved
        undifferentiated += count, w, memo, rest  # an output costs more than a place in a list
        return y, mean, cov

    @staticmethod
    def backward(ctx, *grads):
        dy, dmean, dcov = grads
        x, weight, bias, color, extra, *saved = ctx.saved_tensors
        if dy is None and dmean is None and dcov is None:
            return (None,) * 7
        has_residual = ctx.residual_dtype is not None
        if torch.is_grad_enabled() or any(map(is_batched, grads)):
            inner = differentiable_backward(
                dy, dmean, dcov, x, weight, bias, color, extra, ctx.plan, has_residual
            )
            return *_as_inputs(ctx, *inner), None
        dy = torch.zeros_like(x) if dy is None else dy
        dx, dgain, dbias, g = _backward(
            dy, dmean, dcov, x, weight, bias, color, extra, Saved(*saved), ctx.plan, has_residual,
            wanted=ctx.needs_input_grad[0],
        )  # fmt: skip
        dweight, dcolor = (dgain, None) if color is None else (None, dgain)
        return *_as_inputs(ctx, dx, dweight, dbias, dcolor, dy if g is None else g), None


def _as_inputs(ctx, dx, dweight, dbias, dcolor, dresidual):
    """Gradients in the order of forward's inputs, the residual's in its dtype."""
    if ctx.residual_dtype is None or dresidual is None:
        dresidual = None
    else:
        dresidual = dresidual.to(ctx.residual_dtype)
    return dx, dweight, dbias, dcolor, dresidual, None


def _run_forward(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    color: Tensor | None,
    residual: Tensor | None,
    plan: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    y, count, *saved = _forward(x, weight, bias, color, residual, Plan.decode(plan))
    count, *saved = (x.new_empty(0) if t is None else t for t in (count, *saved))
    return (y, count, *map(_owned, saved))  # type: ignore[return-value]


def _owned(t: Tensor) -> Tensor:
    """As an operator's output must be: contiguous, as its fake says, and nobody's view."""
    return t.clone(memory_format=torch.contiguous_format) if t._is_view() else t.contiguous()


def _fake_forward(x, weight, bias, color, residual, plan):
    decoded = Plan.decode(plan)
    shapes = decoded.problem_shapes(x)
    dtype = working_dtype(x)

    def packed(*shapes: tuple[int, ...]) -> Tensor:
        return pack([x.new_empty(shape, dtype=dtype) for shape in shapes])

    count = x.new_empty((), dtype=torch.float64) if decoded.group else x.new_empty(0)
    square = [(b, d, d) for _, b, d, _ in shapes]
    return (
        torch.empty_like(x),
        count,
        packed(*((b, d) for _, b, d, _ in shapes)),
        packed(*square),
        packed(*square),
        packed(*(decoded.memo_shape(b, d, x.device) for _, b, d, _ in shapes)),
        packed(*((b, d) for _, b, d, _ in shapes)) if decoded.keeps_rest else x.new_empty(0),
    )


_forward_op = register("isonorm::normalize", _run_forward, _fake_forward)


def _run_backward(
    dy: Tensor,
    dmean: Tensor | None,
    dcov: Tensor | None,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    color: Tensor | None,
    extra: Tensor | None,
    count: Tensor,
    mean: Tensor,
    cov: Tensor,
    w: Tensor,
    memo: Tensor,
    rest: Tensor,
    has_residual: bool,
    plan: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    n, left = (t if t.numel() else None for t in (count, rest))
    saved = Saved(n, mean, cov, w, memo, left)
    given = (dy, dmean, dcov, x, weight, bias, color, extra)
    dx, dgain, dbias, g = _backward(*given, saved, Plan.decode(plan), has_residual)
    gains = [None if t is None else t.contiguous() for t in (dgain, dbias)]
    found = (dx, *gains, g)
    return tuple(x.new_empty(0) if t is None else t for t in found)  # type: ignore[return-value]


def _fake_backward(
    dy, dmean, dcov, x, weight, bias, color, extra, count, mean, cov, w, memo, rest, has_residual,
    plan,
):  # fmt: skip
    gain = color if color is not None else weight
    return fake_gradients(x, gain, bias, has_residual, plan)


def fake_gradients(x, gain, bias, has_residual: bool, plan: str):
    """As an operator gives them: of what is not there, empty ones."""
    through = has_residual and Plan.decode(plan).act
    return (
        torch.empty_like(x),
        *(x.new_empty(0) if t is None else t.new_empty(t.shape) for t in (gain, bias)),
        torch.empty_like(x) if through else x.new_empty(0),
    )


_backward_op = register("isonorm::normalize_backward", _run_backward, _fake_backward)


def _setup_context(ctx, inputs, output) -> None:
    x, weight, bias, color, residual, plan = inputs
    ctx.plan = plan
    ctx.residual_dtype = None if residual is None else residual.dtype
    extra = explicit.extra_to_save(Plan.decode(plan), output[0], residual)
    ctx.save_for_backward(x, weight, bias, color, extra, *output[1:])


def _op_backward(ctx, *grads):
    dy, _, dmean, dcov, *_ = grads
    x, weight, bias, color, extra, *saved = ctx.saved_tensors
    given = (dy, dmean, dcov, x, weight, bias, color, extra)
    plan, has_residual = Plan.decode(ctx.plan), ctx.residual_dtype is not None
    if torch.is_grad_enabled():
        return _as_inputs(ctx, *differentiable_backward(*given, plan, has_residual))
    dx, dgain, dbias, g = _backward_op(*given, *saved, has_residual, ctx.plan)
    return _as_inputs(
        ctx,
        dx,
        None if weight is None else dgain,
        None if bias is None else dbias,
        None if color is None else dgain,
        g if has_residual and plan.act else dy,
    )


torch.library.register_autograd("isonorm::normalize", _op_backward, setup_context=_setup_context)
