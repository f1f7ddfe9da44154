"""The kernel in equilibrium on a GPU as a compiler sees it: two operators it need not look into.

A compiler can fuse the reference by itself, and does so for inference and on a CPU. In training its
gradients take several kernels where ours takes one; and of some of them torch 2.11 makes code that
Triton 3.6 fails to compile.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..kernels.operators import register, surroundings
from .explicit import Form, by_reference, differentiated

if TYPE_CHECKING:
    from .gpu import Balancing


def settled(w: Tensor, v: Tensor, gamma: Tensor | None, form: Form) -> Balancing | None:
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


def _run(
    w: Tensor, v: Tensor, gamma: Tensor | None, groups: int, single_pass: bool, r: int
) -> tuple[Tensor, Tensor]:
    form = Form(groups, single_pass, r)
    with surroundings(w):
        step = settled(w, v, gamma, form)
        if step is not None:
            return step.forward(w, v, gamma)
        kernel, kept = _fake(w, v, gamma, groups, single_pass, r)
        return kernel.copy_(by_reference(w, v, gamma, form)), kept.zero_()


def _fake(w, v, gamma, groups, single_pass, r):
    return torch.empty_like(w), v.new_empty(3 * w.shape[0], dtype=torch.float32)


def _run_backward(
    grad: Tensor,
    w: Tensor,
    v: Tensor,
    gamma: Tensor | None,
    kept: Tensor,
    groups: int,
    single_pass: bool,
    r: int,
    through_v: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    form = Form(groups, single_pass, r)
    with surroundings(w):
        step = settled(w, v, gamma, form)
        if step is not None:
            dw, dv, dgamma = step.backward(grad, w, v, gamma, kept, through_v)
        else:
            given = [None if t is None else t.detach().requires_grad_() for t in (w, v, gamma)]
            dw, dv, dgamma = differentiated(given, form, grad, create_graph=False)
    found = _fake_backward(grad, w, v, gamma, kept, groups, single_pass, r, through_v)
    pairs = zip(found, (dw, dv, dgamma), strict=True)
    return tuple(_filled(own, t) for own, t in pairs)  # type: ignore[return-value]


def _filled(own: Tensor, found: Tensor | None) -> Tensor:
    """A result as its fake says it lies in memory; of what nobody wants, nothing."""
    if found is None or own.numel() == 0:
        return own
    return found if found.stride() == own.stride() else own.copy_(found)


def _fake_backward(grad, w, v, gamma, kept, groups, single_pass, r, through_v):
    return (
        torch.empty_like(w),
        torch.empty_like(v) if through_v else v.new_empty(0),
        v.new_empty(0) if gamma is None else torch.empty_like(gamma),
    )


_op = register("isonorm::equilibrium", _run, _fake)
_backward_op = register("isonorm::equilibrium_backward", _run_backward, _fake_backward)


def _setup_context(ctx, inputs, output) -> None:
    w, v, gamma, *form = inputs
    ctx.form = Form(*form)
    ctx.save_for_backward(w, v, gamma, output[1])


def _op_backward(ctx, grad, _):
    w, v, gamma, kept = ctx.saved_tensors
    if torch.is_grad_enabled():
        grads = differentiated((w, v, gamma), ctx.form, grad, create_graph=True)
    else:
        wanted = ctx.needs_input_grad[:3]
        found = _backward_op(grad, w, v, gamma, kept, *ctx.form, wanted[1])
        grads = tuple(t if asked else None for t, asked in zip(found, wanted, strict=True))
    return *grads, None, None, None


torch.library.register_autograd("isonorm::equilibrium", _op_backward, setup_context=_setup_context)


def balanced(w: Tensor, v: Tensor, gamma: Tensor | None, form: Form) -> Tensor:
    """γ·w″ by the operator."""
    return _op(w, v, gamma, *form)[0]
