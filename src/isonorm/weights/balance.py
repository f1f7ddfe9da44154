"""The kernel in equilibrium as autograd sees it: one node, whichever way it is computed.

``reference``  ``equilibrium.normalize_kernel``: plain, differentiable torch; right under every
               transform, compiler and tracer, at the price of many small operations
``torch``      the explicit forward and backward in plain torch, on a CPU
``triton``     the same as one kernel each, on a GPU; for a compiler, inside an operator

A backward that is itself to be differentiated differentiates the reference.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..kernels import choice
from ..kernels.autograd import is_batched
from ..layers.buffers import average_batch
from . import explicit, operators
from .equilibrium import check_sums
from .explicit import Form, Kept, by_reference, differentiated

if TYPE_CHECKING:
    from .gpu import Balancing


def balanced_kernel(
    w: Tensor,
    v: Tensor,
    r: int,
    gamma: Tensor | None = None,
    *,
    groups: int = 1,
    single_pass: bool = False,
) -> Tensor:
    """γ·w″ for the input's sums v and what they are sums of.

    >>> from isonorm.weights.equilibrium import normalize_kernel
    >>> w, v = torch.randn(4, 3, 5, 5), torch.rand(3)
    >>> torch.allclose(balanced_kernel(w, v, 10), normalize_kernel(w, v / 10), atol=1e-5)
    True
    """
    form = Form(groups, single_pass, r)
    if torch.compiler.is_compiling():
        if _trains_on_a_gpu(w, v, gamma):
            check_sums(w, v, groups)
            return operators.balanced(w, v, gamma, form)
    elif _is_open(w, v, gamma):
        if _takes_kernels(w):
            step = operators.settled(w, v, gamma, form)
            if step is not None:
                return _Kernels.apply(w, v, gamma, step, form)  # type: ignore[return-value]
        elif w.is_cpu and v.is_cpu and w.numel():
            check_sums(w, v, groups)
            return _Explicit.apply(w, v, gamma, form)  # type: ignore[return-value]
    return by_reference(w, v, gamma, form)


def _trains_on_a_gpu(w: Tensor, v: Tensor, gamma: Tensor | None) -> bool:
    """Whether a compiler is to call the operator: for inference, and on a CPU, it does as well by
    itself.
    """
    if not choice.HAS_TRITON or choice.requested() in ("reference", "torch"):
        return False
    if not (w.is_cuda or choice.INTERPRETING) or not torch.is_grad_enabled():
        return False
    learns = w.requires_grad or v.requires_grad or (gamma is not None and gamma.requires_grad)
    return learns and choice.why_not_explicit() is None


def _is_open(w: Tensor, v: Tensor, gamma: Tensor | None) -> bool:
    """Whether the tensors are plain, and no compiler, tracer, dispatch mode, transform or request
    calls for the reference.
    """
    if torch.compiler.is_compiling() or choice.requested() == "reference":
        return False
    given = (w, v) if gamma is None else (w, v, gamma)
    return not any(map(choice.is_watched, given)) and choice.why_not_explicit() is None


def average_sums(
    v: Tensor,
    r: int,
    seen: bool | Tensor,
    momentum: float | None,
    running: Tensor,
    tracked: Tensor | None,
) -> None:
    """Move a running v/r towards a batch's, and count the batch, in place."""
    if (
        seen is True
        and momentum is not None
        and tracked is not None
        and _is_open(v, running, tracked)
    ):
        both = running.is_contiguous() and running.get_device() == v.get_device()
        if both and running.dtype is v.dtype is torch.float32 and _takes_kernels(v):
            from .gpu import average

            average(v, r, momentum, running, tracked)
            return
    with torch.no_grad():
        average_batch(tracked, momentum, seen, [(running, v / r)])


def _takes_kernels(t: Tensor) -> bool:
    """Whether Triton's kernels may run on a tensor: on the GPU that is the current one."""
    if not choice.HAS_TRITON or choice.requested() == "torch":
        return False
    return t.get_device() == torch._C._cuda_getDevice() if t.is_cuda else choice.INTERPRETING


class _Explicit(torch.autograd.Function):
    @staticmethod
    def forward(ctx, w, v, gamma, form: Form):
        found = explicit.forward(w, v / form.r, gamma, form)
        ctx.form = form
        if found is None:
            ctx.save_for_backward(w, v, gamma)
            return by_reference(w, v, gamma, form)
        kernel, kept = found
        ctx.save_for_backward(w, v, gamma, *kept)
        return kernel

    @staticmethod
    def backward(ctx, *grads):
        (grad,) = grads
        w, v, gamma, *kept = ctx.saved_tensors
        if not kept or torch.is_grad_enabled() or is_batched(grad):
            return *_differentiated(ctx, grad), None
        dw, dv, dgamma = explicit.backward(grad, w, Kept(*kept), ctx.form.r)
        return dw, dv.to(v.dtype), None if gamma is None else dgamma.to(gamma.dtype), None


class _Kernels(torch.autograd.Function):
    @staticmethod
    def forward(ctx, w, v, gamma, step: Balancing, form: Form):
        kernel, kept = step.forward(w, v, gamma)
        ctx.step, ctx.form = step, form
        ctx.save_for_backward(w, v, gamma, kept)
        return kernel

    @staticmethod
    def backward(ctx, *grads):
        (grad,) = grads
        w, v, gamma, kept = ctx.saved_tensors
        if torch.is_grad_enabled() or is_batched(grad):
            return *_differentiated(ctx, grad), None, None
        through_v = ctx.needs_input_grad[1]
        return *ctx.step.backward(grad, w, v, gamma, kept, through_v), None, None


def _differentiated(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
    return differentiated(ctx.saved_tensors[:3], ctx.form, grad, torch.is_grad_enabled())
