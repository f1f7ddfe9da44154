"""Equilibrium Normalization of a kernel, Section 4.1 of the paper: tensors in, tensors out.

"Controlling Covariate Shift using Equilibrium Normalization of Weights" (2018), in its letters:

    v_c   = Σ_ijk x_icjk                             the input's sums
    r     = batch size · output positions · stride²  what v_c is a sum of
    b_d   = −Σ_c v_c w_dc / (K Σ_c v_c)              the output's mean is zero
    s_d   = r / Σ_c v_c w′_dc                        positive weights contribute r, negative ones −r
    w″    = s (w + b)

where w_dc is the sum of a channel's kernel and w′_dc that of the positive elements of w + b. Only
the ratio v_c/r enters: b does not change with the scale of v, and s = 1/Σ_c (v_c/r) w′_dc. So v
stands for v_c/r in the functions below, and r is needed once, to form it.

Index legend: d output channels, c input channels (of d's group), k the K positions of the kernel.
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from ..statistics import no_autocast, working_dtype
from ..synchronization import all_reduce

#: Below this part of its terms' magnitudes a sum counts as cancelled: nothing is divided by it.
CANCELLED = 1e-3


class Equilibrium(NamedTuple):
    """w″ = s(w + b) for each output channel."""

    s: Tensor  # (d,)
    b: Tensor  # (d,)


def input_sums(x: Tensor, channel: int) -> Tensor:
    """v_c = Σ x over all other dimensions, in the working precision."""
    others = [dim for dim in range(x.dim()) if dim != channel]
    return x.sum(others, dtype=working_dtype(x)) if others else x.to(working_dtype(x))


def per_output(v: Tensor, count: int, group: str = "") -> tuple[Tensor, Tensor | int]:
    """v_c/r and r, the sums of all ranks of a process group where there is one.

    ``count`` is this rank's r; one without samples contributes nothing, and r = 0 gives zero.
    """
    if not group:
        return v / max(count, 1), count
    here = torch.full((1,), count, dtype=torch.float64, device=v.device)
    total, r = all_reduce([v.double(), here], group, "a layer in equilibrium")
    return (total / r.clamp(min=1)).to(v.dtype), r.reshape(())


def equilibrium(w: Tensor, v: Tensor, *, groups: int = 1, single_pass: bool = False) -> Equilibrium:
    """The s and b that bring a kernel (d, c, *) into equilibrium on an input with v_c/r = v.

    The exact form sums the positive elements of w + b. ``single_pass`` is the paper's
    approximation: it takes the sign of w + b to be that of w, and so needs w's sums alone.

    >>> w, v = torch.randn(4, 3, 5, 5), torch.rand(3)
    >>> s, b = equilibrium(w, v)
    >>> normalized = (w + b.view(4, 1, 1, 1)) * s.view(4, 1, 1, 1)
    >>> torch.allclose(normalized.clamp(min=0).sum((2, 3)) @ v, torch.ones(4), atol=1e-5)
    True
    >>> torch.allclose(normalized.clamp(max=0).sum((2, 3)) @ v, -torch.ones(4), atol=1e-5)
    True
    """
    check_sums(w, v, groups)
    d, c, *positions = w.shape
    K = prod(positions)
    with no_autocast(w):
        dtype = torch.promote_types(working_dtype(w), v.dtype)
        w = w.reshape(d, c, K).to(dtype)
        v = _usable(v.to(dtype).view(groups, 1, c)).expand(groups, d // groups, c).reshape(d, c)

        w_dc, w_plus = w.sum(-1), w.relu().sum(-1)
        b = -(v * w_dc).sum(-1) / (K * v.sum(-1))
        if single_pass:
            n = (w > 0).sum(-1)
            positive = (v * (w_plus + b[:, None] * n)).sum(-1)
        else:
            positive = (v * (w + b[:, None, None]).relu().sum(-1)).sum(-1)
        magnitude = (v.abs() * (2 * w_plus - w_dc + K * b[:, None].abs())).sum(-1)
        return Equilibrium(1 / _nonzero(positive, magnitude), b)


def check_sums(w: Tensor, v: Tensor, groups: int) -> None:
    """Refuses a v that is not one number for each input channel of a kernel (d, c, *)."""
    d, c = w.shape[:2]
    if v.shape != (groups * c,) or d % groups:
        raise ValueError(
            f"a kernel of shape {tuple(w.shape)} in {groups} group(s) wants one v for each of "
            f"{groups * c} input channels, and as many outputs in every group; got v of shape "
            f"{tuple(v.shape)}."
        )


def _usable(v: Tensor) -> Tensor:
    """v with a sum that can be divided by, for each row.

    Where positive and negative channels cancel, or negative ones prevail, their magnitudes take
    their place; where there is no input at all, ones do. A NaN stays what it is.
    """
    magnitude = v.abs().sum(-1, keepdim=True)
    v = torch.where(v.sum(-1, keepdim=True) <= CANCELLED * magnitude, v.abs(), v)
    return torch.where(magnitude <= negligible(v.dtype), 1.0, v)


def _nonzero(positive: Tensor, magnitude: Tensor) -> Tensor:
    """Σ v_c w′_dc where there is one; half the magnitude of its terms, |v|(|w| + |b|), where the
    kernel has no positive part to speak of; one where the kernel is zero.
    """
    positive = torch.where(positive <= CANCELLED * magnitude, magnitude / 2, positive)
    return torch.where(magnitude <= negligible(magnitude.dtype), 1.0, positive)


def negligible(dtype: torch.dtype) -> float:
    """What counts as zero: below any real input, and large enough to be squared in a derivative."""
    return torch.finfo(dtype).eps ** 2


def normalize_kernel(
    w: Tensor,
    v: Tensor,
    gamma: Tensor | None = None,
    *,
    groups: int = 1,
    single_pass: bool = False,
) -> Tensor:
    """γ·w″: the kernel of a layer on an input with v_c/r = v, in w's dtype.

    A scale of the output is a scale of the kernel, so it costs no pass over the output.
    """
    s, b = equilibrium(w, v, groups=groups, single_pass=single_pass)
    each = (-1, *[1] * (w.dim() - 1))
    with no_autocast(w):
        scale = s if gamma is None else s * gamma.to(s.dtype)
        return ((w.to(s.dtype) + b.view(each)) * scale.view(each)).to(w.dtype)


@torch.no_grad()
def balance_signs_(w: Tensor) -> Tensor:
    """Gives an output channel whose weights all have one sign new signs, at random, until it has
    both (Section 5.2). Magnitudes stay, and channels with both signs stay as they are.

    Fewer than two weights that are not zero cannot be balanced, and stay as they are.

    >>> w = balance_signs_(torch.rand(8, 1, 3) + 1)
    >>> bool(((w > 0).any(2) & (w < 0).any(2)).all())
    True
    """
    if w.is_meta or w.numel() == 0:
        return w
    rows = w.flatten(1)  # a copy where w is not contiguous
    while True:
        one_sign = ~((rows > 0).any(1) & (rows < 0).any(1)) & ((rows != 0).sum(1) > 1)
        if not one_sign.any():
            return w.copy_(rows.view(w.shape))
        signs = torch.randint_like(rows[one_sign], 0, 2) * 2 - 1
        rows[one_sign] = rows[one_sign].abs() * signs
