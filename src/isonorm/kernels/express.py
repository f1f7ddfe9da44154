"""The usual layer's training step as one autograd node whose only differentiable output is y.

Most steps of most layers are alike: a batch area, one block of channels, an affine recovery, the
statistics wanted for running averages alone. For those, ``gpu.express`` does what ``explicit`` and
``gpu.steps`` do in general, with the least work on the host. What it cannot do it refuses in
``settle``, and the general way is taken.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.autograd import forward_ad

from .. import kernels
from ..area import flat_shape
from .autograd import differentiable_backward, is_batched
from .explicit import extra_to_save
from .plan import Plan

if TYPE_CHECKING:
    from .gpu.express import Averages, Averaging, Express


_PLAIN = (Tensor, torch.nn.Parameter)


def is_open(x: Tensor) -> bool:
    """Whether nothing around asks for the general way: another device or implementation, a
    compiler, a transform, a tensor that is more than one.
    """
    if torch.compiler.is_compiling() or not (x.is_cuda or kernels.INTERPRETING):
        return False
    if type(x) not in _PLAIN or kernels.requested() not in ("auto", "triton"):
        return False
    if kernels.transforms_active() or forward_ad._current_level >= 0:
        return False
    if torch.is_inference_mode_enabled():
        return False
    return not x.is_cuda or x.get_device() == torch._C._cuda_getDevice()


def settle(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    residual: Tensor | None,
    plan: Plan,
    averaged: Averaging | None,
) -> Express | None:
    """What steps with such an input need; None where only the general way will do."""
    if not plan.area.spans_batch or plan.area.features != "channels" or plan.group:
        return None
    shapes = plan.problem_shapes(*flat_shape(x))
    _, _, d, m = shapes[0]
    if len(shapes) > 1 or m < 2 or x.numel() == 0 or not _is_dense(x):
        return None
    if "d" in plan.area.roles and not plan.fuses_root(d, x.device):
        return None
    given = [t for t in (weight, bias) if t is not None]
    if any(t.device != x.device or not t.is_contiguous() for t in given):
        return None
    if residual is not None:
        like = residual.shape == x.shape and residual.stride() == x.stride()
        if not like or residual.device != x.device:
            return None
    from .gpu.express import Express
    from .gpu.passes import Kinds

    kinds = Kinds(*(None if t is None else t.dtype for t in (weight, bias, residual)))
    return Express(x, plan, kinds, averaged)


def _is_dense(x: Tensor) -> bool:
    return x.is_contiguous() or x.movedim(1, -1).is_contiguous()


def run(
    express: Express,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    residual: Tensor | None,
    averages: Averages | None,
) -> Tensor:
    """y; the running averages have moved."""
    y = _Step.apply(x, weight, bias, residual, express, averages)
    if averages is not None:
        torch.autograd.graph.increment_version(averages)
    return y


class _Step(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, residual, express: Express, averages: Averages | None):
        y, keep = express.forward(x, weight, bias, residual, averages)
        ctx.express = express
        ctx.residual_dtype = None if residual is None else residual.dtype
        ctx.set_materialize_grads(False)
        extra = extra_to_save(express.plan, y, residual)
        ctx.save_for_backward(x, weight, bias, extra, keep)
        return y

    @staticmethod
    def backward(ctx, dy):
        if dy is None:
            return (None,) * 6
        x, weight, bias, extra, keep = ctx.saved_tensors
        plan = ctx.express.plan
        if torch.is_grad_enabled() or is_batched(dy):
            has_residual = ctx.residual_dtype is not None
            dx, dweight, dbias, _, dresidual = differentiable_backward(
                dy, None, None, x, weight, bias, None, extra, plan, has_residual
            )
        else:
            dx, dweight, dbias, g = ctx.express.backward(dy, x, weight, bias, extra, keep)
            dweight = None if weight is None else dweight.to(weight.dtype)
            dbias = None if bias is None else dbias.to(bias.dtype)
            dresidual = dy if g is None else g
        if ctx.residual_dtype is None or dresidual is None:
            dresidual = None
        else:
            dresidual = dresidual.to(ctx.residual_dtype)
        return dx, dweight, dbias, dresidual, None, None
