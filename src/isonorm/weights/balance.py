"""The kernel in equilibrium as autograd sees it: one node, whichever way it is computed.

``reference``  ``equilibrium.normalize_kernel``: plain, differentiable torch; right under every
               transform, compiler and tracer, at the price of many small operations
``torch``      the explicit forward and backward in plain torch, on a CPU
``triton``     the same as one kernel each, on a GPU

A backward that is itself to be differentiated differentiates the reference.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.autograd import forward_ad

from .. import kernels
from ..kernels.autograd import is_batched
from ..layers.buffers import average_batch
from . import explicit
from .equilibrium import check_sums, normalize_kernel
from .explicit import Form, Kept

if TYPE_CHECKING:
    from .gpu import Balancing

_PLAIN = (Tensor, torch.nn.Parameter)


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

    >>> w, v = torch.randn(4, 3, 5, 5), torch.rand(3)
    >>> torch.allclose(balanced_kernel(w, v, 10), normalize_kernel(w, v / 10), atol=1e-5)
    True
    """
    if _is_open(w, v, gamma):
        form = Form(groups, single_pass, r)
        if _takes_kernels(w):
            step = _settled(w, v, gamma, form)
            if step is not None:
                return _Kernels.apply(w, v, gamma, step, form)  # type: ignore[return-value]
        elif w.is_cpu and v.is_cpu and w.numel():
            check_sums(w, v, groups)
            return _Explicit.apply(w, v, gamma, form)  # type: ignore[return-value]
    return _by_reference(w, v, gamma, Form(groups, single_pass, r))


def _is_open(w: Tensor, v: Tensor, gamma: Tensor | None) -> bool:
    """Whether nothing around asks for the reference: a compiler, which fuses it by itself, a
    transform, somebody who records operations, a tensor that is more than one.
    """
    if torch.compiler.is_compiling() or type(v) not in _PLAIN or type(w) not in _PLAIN:
        return False
    if gamma is not None and type(gamma) not in _PLAIN:
        return False
    if kernels.requested() == "reference" or kernels.transforms_active():
        return False
    if forward_ad._current_level >= 0 or torch._C._len_torch_dispatch_stack():
        return False
    return torch._C._get_tracing_state() is None


def average_sums(
    v: Tensor,
    r: int,
    seen: bool | Tensor,
    momentum: float | None,
    running: Tensor,
    tracked: Tensor,
) -> None:
    """Moves a running v/r towards a batch's, and counts the batch, in place."""
    if seen is True and momentum is not None and _is_open(v, running, tracked):
        both = running.is_contiguous() and running.get_device() == v.get_device()
        if both and running.dtype is v.dtype is torch.float32 and _takes_kernels(v):
            from .gpu import average

            average(v, r, momentum, running, tracked)
            return
    with torch.no_grad():
        average_batch(tracked, momentum, seen, [(running, v / r)])


def _takes_kernels(t: Tensor) -> bool:
    """Whether Triton's kernels may run on a tensor: on the GPU that is the current one."""
    if not kernels.HAS_TRITON or kernels.requested() == "torch":
        return False
    return t.get_device() == torch._C._cuda_getDevice() if t.is_cuda else kernels.INTERPRETING


def _settled(w: Tensor, v: Tensor, gamma: Tensor | None, form: Form) -> Balancing | None:
    """The kernels for such tensors; None where they do not take them."""
    from .gpu import settle

    here, scales = w.get_device(), None
    if v.get_device() != here or not v.is_contiguous():
        return None
    if gamma is not None:
        scales = gamma.dtype
        if gamma.get_device() != here or gamma.numel() != w.shape[0] or not gamma.is_contiguous():
            return None
    return settle(w.shape, w.stride(), w.dtype, v.shape, v.dtype, scales, form, here)


class _Explicit(torch.autograd.Function):
    @staticmethod
    def forward(ctx, w, v, gamma, form: Form):
        found = explicit.forward(w, v / form.r, gamma, form)
        ctx.form = form
        if found is None:
            ctx.save_for_backward(w, v, gamma)
            return _by_reference(w, v, gamma, form)
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


def _by_reference(w: Tensor, v: Tensor, gamma: Tensor | None, form: Form) -> Tensor:
    options = {"groups": form.groups, "single_pass": form.single_pass}
    return normalize_kernel(w, v / form.r, gamma, **options)


def _differentiated(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
    """The same gradients by differentiating the reference: as a graph where one is wanted."""
    create_graph = torch.is_grad_enabled()
    with torch.enable_grad():
        # Aliases: a gradient asked of v itself would run on, through its history.
        own = [None if t is None else t.view_as(t) for t in ctx.saved_tensors[:3]]
        kernel = _by_reference(*own, ctx.form)  # type: ignore[arg-type]
    wanted = [t for t in own if t is not None and t.requires_grad]
    grads = iter(torch.autograd.grad(kernel, wanted, grad, create_graph=create_graph))
    return tuple(next(grads) if t is not None and t.requires_grad else None for t in own)
