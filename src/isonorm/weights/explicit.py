"""The kernel in equilibrium and its gradients, written out: one line for each operation.

With u = v_c/r, z = w + b, m = [w > 0] in the single pass or [z > 0] in the exact form, and sums
over the channels and positions of an output:

    b = −Σ u w / (K Σ u)        p = Σ u m z        kernel = (γ/p) z

and for a gradient G of the kernel, with ē = −γ Σ G z / p² and b̄ = (γ/p) Σ G + ē Σ u m,

    dγ = Σ G z / p
    dw = (γ/p) G + (ē m + f) u,     f = −b̄ / (K Σ u)
    du = Σ (ē m + f) z              over outputs and positions

That is the ordinary case. Where a fallback of ``equilibrium`` might act, ``forward`` gives None,
and the reference decides. To know costs a look at two numbers: nothing on a CPU, where this runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from ..statistics import working_dtype
from .equilibrium import CANCELLED, negligible, normalize_kernel


class Form(NamedTuple):
    """Which equilibrium, and what the sums v_c are divided by."""

    groups: int
    single_pass: bool
    r: int


class Kept(NamedTuple):
    """What backward needs: (groups, outputs of a group, channels, positions) each."""

    u: Tensor
    z: Tensor
    mask: Tensor
    scale: Tensor  # γ/p
    p: Tensor
    slope: Tensor  # Σ u m
    span: Tensor  # −K Σ u


def forward(w: Tensor, v: Tensor, gamma: Tensor | None, form: Form) -> tuple[Tensor, Kept] | None:
    """γ·w″ for v_c/r = v, in w's dtype."""
    groups, dtype = form.groups, v.dtype
    if w.dtype is not dtype:
        dtype = torch.promote_types(working_dtype(w), dtype)
    d, c, *positions = w.shape
    K = prod(positions)
    rows = w.reshape(groups, d // groups, c, K).to(dtype)
    u = v.view(groups, 1, c, 1).to(dtype)
    least = negligible(dtype)

    total, magnitude = u.sum((2, 3), keepdim=True), u.abs().sum((2, 3), keepdim=True)
    if not torch.sub(total, magnitude, alpha=CANCELLED).min().item() > least:
        return None
    terms = rows * u
    span = total * -K
    b = terms.sum((2, 3), keepdim=True).div_(span)
    z = rows + b
    mask = (rows if form.single_pass else z) > 0
    masked = u * mask
    p = (masked * z).sum((2, 3), keepdim=True)
    terms_and_b = terms.abs_().sum((2, 3), keepdim=True).addcmul_(b.abs_(), magnitude, value=K)
    if not torch.sub(p, terms_and_b, alpha=CANCELLED).min().item() > least:
        return None
    scale = p.reciprocal() if gamma is None else gamma.view(groups, -1, 1, 1).to(dtype) / p
    slope = masked.sum((2, 3), keepdim=True)
    kernel = (z * scale).reshape(w.shape).to(w.dtype)
    return kernel, Kept(u, z, mask, scale, p, slope, span)


def backward(grad: Tensor, w: Tensor, kept: Kept, r: int) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients by w, by the sums v_c, and by γ."""
    u, z, mask, scale, p, slope, span = kept
    grad = grad.reshape(z.shape).to(z.dtype)
    dgamma = (grad * z).sum((2, 3), keepdim=True).div_(p)
    e = (dgamma * scale).neg_()
    f = (grad.sum((2, 3), keepdim=True) * scale).addcmul_(e, slope).div_(span)
    both = torch.where(mask, e + f, f)
    dw = (grad * scale).addcmul_(both, u)
    dv = (both * z).sum((1, 3)).div_(r)
    return dw.reshape(w.shape).to(w.dtype), dv.view(-1), dgamma.view(-1)


def by_reference(w: Tensor, v: Tensor, gamma: Tensor | None, form: Form) -> Tensor:
    options = {"groups": form.groups, "single_pass": form.single_pass}
    return normalize_kernel(w, v / form.r, gamma, **options)


def differentiated(
    given: Sequence[Tensor | None], form: Form, grad: Tensor, create_graph: bool
) -> tuple[Tensor | None, ...]:
    """The gradients by w, v and γ by differentiating the reference: as a graph where one is
    wanted.
    """
    with torch.enable_grad():
        # Aliases: a gradient asked of v itself would run on, through its history.
        own = [None if t is None else t.view_as(t) for t in given]
        kernel = by_reference(*own, form)  # type: ignore[arg-type]
    wanted = [t for t in own if t is not None and t.requires_grad]
    grads = iter(torch.autograd.grad(kernel, wanted, grad, create_graph=create_graph))
    return tuple(next(grads) if t is not None and t.requires_grad else None for t in own)
