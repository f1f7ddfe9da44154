"""The ordinary layer's training step as one autograd node whose only differentiable output is y.

Most steps of most layers are alike: a batch area, one block of channels, an affine recovery, the
statistics wanted for running averages alone. For those, ``gpu.fast_path`` does what ``explicit``
and ``gpu.steps`` do in general, with the least work on the host. What does not fit takes the
general path.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..checks import DTYPES
from . import choice
from .autograd import as_stored, differentiable_backward, fake_gradients, is_batched
from .explicit import extra_to_save, is_dense
from .operators import register, surroundings
from .plan import Plan

if TYPE_CHECKING:
    from .gpu.fast_path import Averages, Averaging, Map, Prepared


def is_open(x: Tensor) -> bool:
    """Return whether the fast path is available: Triton is installed and not overruled by
    ``backend``, the input is a plain tensor on the current GPU (or the interpreter stands in for
    one), stored as it is, and no compiler, tracer, transform or forward mode is active.
    """
    if torch.compiler.is_compiling() or not (x.is_cuda or choice.INTERPRETING):
        return False
    if not choice.HAS_TRITON:
        return False
    if choice.is_watched(x) or x.is_neg() or choice.requested() not in ("auto", "triton"):
        return False
    if choice.why_not_explicit() is not None:
        return False
    return not x.is_cuda or x.get_device() == torch._C._cuda_getDevice()


def fits(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    residual: Tensor | None,
    plan: Plan,
) -> bool:
    """Whether such an input can take the fast path."""
    if not plan.area.spans_batch or plan.area.features != "channels" or plan.group:
        return False
    shapes = plan.problem_shapes(x)
    _, _, d, m = shapes[0]
    if len(shapes) > 1 or m < 2:
        return False
    if "d" in plan.area.roles and not plan.fuses_root(d, x.device):
        return False
    return can_walk(x, weight, bias, residual=residual)


def can_walk(x: Tensor, *given: Tensor | None, residual: Tensor | None = None) -> bool:
    """Return whether kernels can take an input as it lies, a residual beside it, and small tensors
    on its device.
    """
    if x.numel() == 0 or not is_dense(x):
        return False
    if not are_stored(x, *given):
        return False
    if residual is None:
        return True
    like = residual.shape == x.shape and residual.stride() == x.stride()
    return like and residual.device == x.device and residual.dtype in DTYPES


def are_stored(x: Tensor, *given: Tensor | None) -> bool:
    """Return whether small tensors lie on an input's device just as their addresses say: without
    gaps, and neither wrapped, watched nor negated. A compiler's operators are given no such ones.
    """
    there = [t for t in given if t is not None]
    if any(t.device != x.device or not t.is_contiguous() for t in there):
        return False
    if torch.compiler.is_compiling():
        return True
    return not any(t.is_neg() or choice.is_watched(t) for t in there)


def prepare_map(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    residual: Tensor | None,
    plan: Plan,
) -> Map:
    """Return what step 3 alone needs for such an input, its W and μ being given."""
    from .gpu.fast_path import Map
    from .gpu.passes import Kinds

    return Map(x, plan, Kinds(*_dtypes(weight, bias, residual)))


def _dtypes(
    weight: Tensor | None, bias: Tensor | None, residual: Tensor | None
) -> tuple[torch.dtype | None, torch.dtype | None, torch.dtype | None]:
    weight_dtype, bias_dtype, residual_dtype = (
        None if t is None else t.dtype for t in (weight, bias, residual)
    )
    return weight_dtype, bias_dtype, residual_dtype


def prepare(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    residual: Tensor | None,
    plan: Plan,
    averaged: Averaging | None = None,
) -> Prepared:
    """What steps with such an input need, if it fits."""
    from .gpu.fast_path import Prepared
    from .gpu.passes import Kinds

    return Prepared(x, plan, Kinds(*_dtypes(weight, bias, residual)), averaged)


def run(
    prepared: Prepared,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    residual: Tensor | None,
    averages: Averages | None,
) -> Tensor:
    """y; the running averages have moved."""
    y = _Step.apply(x, weight, bias, residual, prepared, averages)
    if averages is not None:
        torch.autograd.graph.increment_version(averages)
    return y


class _Step(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, residual, prepared: Prepared, averages: Averages | None):
        y, keep = prepared.forward(x, weight, bias, residual, averages)
        ctx.prepared = prepared
        ctx.residual_dtype = None if residual is None else residual.dtype
        ctx.set_materialize_grads(False)
        extra = extra_to_save(prepared.plan, y, residual)
        ctx.save_for_backward(x, weight, bias, extra, keep)
        return y

    @staticmethod
    def backward(ctx, dy):
        if dy is None:
            return (None,) * 6
        x, weight, bias, extra, keep = ctx.saved_tensors
        plan = ctx.prepared.plan
        if torch.is_grad_enabled() or is_batched(dy):
            has_residual = ctx.residual_dtype is not None
            dx, dweight, dbias, _, dresidual = differentiable_backward(
                dy, None, None, x, weight, bias, None, extra, plan, has_residual
            )
        else:
            wanted = ctx.needs_input_grad[0]
            stored = as_stored(dy)
            dx, dweight, dbias, g = ctx.prepared.backward(
                stored, x, weight, bias, extra, keep, wanted
            )
            dweight, dbias = _as(weight, dweight), _as(bias, dbias)
            dresidual = dy if g is None else g
        return *_for_inputs(ctx, dx, dweight, dbias, dresidual), None


def _as(parameter: Tensor | None, gradient: Tensor) -> Tensor | None:
    if parameter is None:
        return None
    return gradient if gradient.dtype is parameter.dtype else gradient.to(parameter.dtype)


def traced(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, residual: Tensor | None, plan: Plan
) -> tuple[Tensor, list[Tensor]]:
    """The same for a compiler: y, and μ, Σ and W, packed, without a gradient."""
    y, keep = _train_op(x, weight, bias, residual, plan.encode())
    return y, plan.kept(x).cut(keep.detach())[:3]


def _remembered(x, weight, bias, residual, plan: Plan) -> tuple[Tensor, Prepared]:
    """x without gaps, and what steps with it need. What is remembered by its strides has none, so
    that only what is new is asked.
    """
    kinds = tuple([None if t is None else t.dtype for t in (weight, bias, residual)])
    precision = choice.float32_precision()
    key = ("fast path", x.shape, x.stride(), x.dtype, x.device, kinds, precision)
    found = plan.passes.get(key)
    if found is None:
        dense = _dense(x)
        if dense is not x:
            return _remembered(dense, weight, bias, residual, plan)
        found = plan.passes[key] = prepare(x, weight, bias, residual, plan)
    return x, found


def _train(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, residual: Tensor | None, plan: str
) -> tuple[Tensor, Tensor]:
    x, prepared = _remembered(x, weight, bias, residual, Plan.decode(plan))
    with surroundings(x):  # eager steps are let in on the current GPU alone, operators on any
        residual = None if residual is None else prepared.walkable(residual)
        return prepared.forward(x, weight, bias, residual, None)


def _dense(x: Tensor) -> Tensor:
    """What an operator was traced with is dense, but what it is called with need not be."""
    if is_dense(x):
        return x
    copy = x.clone()
    if not is_dense(copy):
        raise ValueError(
            f"isonorm::train takes NCHW or channels_last, with gaps or without; got strides "
            f"{tuple(x.stride())} for shape {tuple(x.shape)}."
        )
    return copy


def _fake_train(x, weight, bias, residual, plan):
    size = Plan.decode(plan).kept(x).size
    return torch.empty_like(x), x.new_empty(size, dtype=torch.float32)


_train_op = register("isonorm::train", _train, _fake_train)


def _train_backward(
    dy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    extra: Tensor | None,
    keep: Tensor,
    has_residual: bool,
    plan: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    # Of a residual its presence alone matters here, and for silu its dtype, which is extra's.
    stand_in = (x if extra is None else extra) if has_residual else None
    x, prepared = _remembered(x, weight, bias, stand_in, Plan.decode(plan))
    with surroundings(x):
        dx, dweight, dbias, g = prepared.backward(dy, x, weight, bias, extra, keep)
    assert dx is not None
    found = (dx, _as(weight, dweight), _as(bias, dbias), g)
    return tuple([x.new_empty(0) if t is None else t for t in found])  # type: ignore[return-value]


def _fake_train_backward(dy, x, weight, bias, extra, keep, has_residual, plan):
    return fake_gradients(x, weight, bias, has_residual, plan)


_train_backward_op = register("isonorm::train_backward", _train_backward, _fake_train_backward)


def _setup_context(ctx, inputs, output) -> None:
    x, weight, bias, residual, plan = inputs
    ctx.plan = plan
    ctx.residual_dtype = None if residual is None else residual.dtype
    extra = extra_to_save(Plan.decode(plan), output[0], residual)
    ctx.save_for_backward(x, weight, bias, extra, output[1])


def _op_backward(ctx, dy, _):
    x, weight, bias, extra, keep = ctx.saved_tensors
    plan, has_residual = Plan.decode(ctx.plan), ctx.residual_dtype is not None
    if torch.is_grad_enabled():
        dx, dweight, dbias, _, dresidual = differentiable_backward(
            dy, None, None, x, weight, bias, None, extra, plan, has_residual
        )
        return _for_inputs(ctx, dx, dweight, dbias, dresidual)
    dx, dweight, dbias, g = _train_backward_op(
        dy, x, weight, bias, extra, keep, has_residual, ctx.plan
    )
    dweight = None if weight is None else dweight
    dbias = None if bias is None else dbias
    return _for_inputs(ctx, dx, dweight, dbias, g if has_residual and plan.act else dy)


def _for_inputs(ctx, dx, dweight, dbias, dresidual):
    """Gradients in the order of forward's inputs, the residual's in its dtype."""
    if ctx.residual_dtype is None or dresidual is None:
        return dx, dweight, dbias, None, None
    return dx, dweight, dbias, dresidual.to(ctx.residual_dtype), None


torch.library.register_autograd("isonorm::train", _op_backward, setup_context=_setup_context)
