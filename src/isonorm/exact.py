"""Arithmetic without rounding: what a float64 product or sum leaves out is another float64."""

from __future__ import annotations

from torch import Tensor


def leading(a: Tensor, dropped: int) -> Tensor:
    """a without its last ``dropped`` bits (Veltkamp)."""
    a = a.detach()
    t = a * (2.0**dropped + 1)
    return t - (t - a)


def product_error(a: Tensor, b: Tensor) -> Tensor:
    """a·b − float(a·b), exactly (Dekker).

    >>> import torch
    >>> a = torch.tensor(1 + 2.0**-40, dtype=torch.float64)
    >>> product_error(a, a).item() == 2.0**-80
    True
    """
    a, b = a.detach(), b.detach()
    ah, bh = leading(a, 27), leading(b, 27)
    al, bl = a - ah, b - bh
    return ((ah * bh - a * b) + ah * bl + al * bh) + al * bl
