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
    return normalize_kernel(w, v / r, gamma, groups=groups, single_pass=single_pass)


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
    if _is_open(v, running, tracked) and seen is True and momentum is not None:
        given = (v, running, tracked)
        if _takes_kernels(v) and running.dtype is v.dtype is torch.float32:
            device = v.get_device()
            if all([t.is_contiguous() and t.get_device() == device for t in given]):
                from .gpu import average

                return average(v, r, momentum, running, tracked)
    with torch.no_grad():
        average_batch(tracked, momentum, seen, [(running, v / r)])
    return None


def _takes_kernels(t: Tensor) -> bool:
    """Whether Triton's kernels may run on a tensor: on the GPU that is the current one."""
    if not kernels.HAS_TRITON or kernels.requested() == "torch":
        return False
    return t.get_device() == torch._C._cuda_getDevice() if t.is_cuda else kernels.INTERPRETING


def _settled(w: Tensor, v: Tensor, gamma: Tensor | None, form: Form) -> Balancing | None:
    """The kernels for such tensors; None where they do not take them."""
    from .gpu import settle

    scales = None if gamma is None else (gamma.dtype, gamma.shape, gamma.stride())
    here = w.get_device()
    if v.get_device() != here or (gamma is not None and gamma.get_device() != here):
        return None
    return settle(w.shape, w.stride(), w.dtype, (v.dtype, v.shape, v.stride()), scales, form, here)


class _Explicit(torch.autograd.Function):
    @staticmethod
    def forward(ctx, w, v, gamma, form: Form):
        mean = v / form.r
        found = explicit.forward(w, mean, gamma, form)
        ctx.form = form
        if found is None:
            ctx.save_for_backward(w, v, gamma)
            options = {"groups": form.groups, "single_pass": form.single_pass}
            return normalize_kernel(w, mean, gamma, **options)
        kernel, kept = found
        ctx.save_for_backward(w, v, gamma, *kept)
        return kernel

    @staticmethod
    def backward(ctx, *grads):
        (grad,) = grads
        w, v, gamma, *kept = ctx.saved_tensors
        if not kept or torch.is_grad_enabled() or is_batched(grad):
            return _differentiated(grad, w, v, gamma, ctx.form)
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
            return *_differentiated(grad, w, v, gamma, ctx.form), None
        through_v = ctx.needs_input_grad[1]
        return *ctx.step.backward(grad, w, v, gamma, kept, through_v), None, None


def _differentiated(grad: Tensor, w: Tensor, v: Tensor, gamma: Tensor | None, form: Form):
    """The same gradients by differentiating the reference: as a graph where one is wanted."""
    create_graph = torch.is_grad_enabled()
    with torch.enable_grad():
        # Aliases: a gradient asked of v itself would run on, through its history.
        own = [None if t is None else t.view_as(t) for t in (w, v, gamma)]
        w, v, gamma = own  # type: ignore[assignment]
        kernel = normalize_kernel(
            w, v / form.r, gamma, groups=form.groups, single_pass=form.single_pass
        )
    wanted = [t for t in own if t is not None and t.requires_grad]
    found = iter(torch.autograd.grad(kernel, wanted, grad, create_graph=create_graph))
    found = [next(found) if t is not None and t.requires_grad else None for t in own]
    return *found, None
