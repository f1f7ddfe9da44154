"""γ and β of another image: adaptive instance normalization."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..scalars import plain
from ..statistics import working_dtype
from .modulation import Modulation


class AdaIN(Modulation):
    """Each channel's mean and standard deviation are those of a style's, σ(s)·x̂ + μ(s) (Huang &
    Belongie, "Arbitrary Style Transfer in Real-time with Adaptive Instance Normalization", 2017,
    Eq. 8); there is nothing to learn.

    >>> import isonorm
    >>> norm = AdaIN(isonorm.InstanceNorm(8, affine=False))
    >>> style = 3 + 2 * torch.randn(2, 8, 64, 64)
    >>> y = norm(torch.randn(2, 8, 32, 32), style)
    >>> torch.allclose(y.mean((2, 3)), style.mean((2, 3)), atol=1e-3)
    True
    """

    _echoes = ("eps",)

    def __init__(self, norm: nn.Module, *, eps: float = 1e-5, act: str | None = None) -> None:
        super().__init__(norm, act)
        from ..checks import check_options

        check_options(plain(eps), act)
        self.eps = plain(eps)

    def forward(self, input: Tensor, style: Tensor) -> Tensor:
        """``style`` (N, C, *), at any positions."""
        if (call := self._traced(input, style)) is not None:
            return call
        self._check(input, style=style)
        there = style.dim() > 2 and style.shape[2:].numel() > 0 and style.is_floating_point()
        if not there or style.shape[:2] != input.shape[:2]:
            raise ValueError(
                f"style must have shape {(*input.shape[:2], '*')}, with positions to take means "
                f"over; got {style.dtype} of shape {tuple(style.shape)}."
            )
        positions = style.flatten(2).to(working_dtype(style))
        variance, mean = torch.var_mean(positions, dim=2, correction=0)
        return self._recovered(input, (variance + self.eps).sqrt(), mean)
