"""γ and β mixed from several by attention to the input: attentive normalization."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..scalars import positive
from ..statistics import no_autocast, working_dtype
from .modulation import Modulation


class Attentive(Modulation):
    """Σₖ λₖ(γₖ ⊙ x̂ + βₖ): a mixture of K affine recoveries, weighted for each example by attention
    to its channels' means (Li, Sun & Wu, "Attentive Normalization", ECCV 2020).

    λ = hardsigmoid of a linear map of the means; γₖ and βₖ start as N(1, 0.1²) and N(0, 0.1²), as
    in the authors' code. Unlike there, what is attended to are the means alone, without
    deviations, and what goes into λ is not itself batch-normalized.

    >>> import isonorm
    >>> norm = Attentive(isonorm.IterNorm(8, affine=False), num_mixtures=5)
    >>> norm(torch.randn(2, 8, 16, 16)).shape
    torch.Size([2, 8, 16, 16])
    """

    _echoes = ("num_mixtures",)

    def __init__(
        self,
        norm: nn.Module,
        num_mixtures: int = 5,
        *,
        act: str | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(norm, act)
        self.num_mixtures = positive("num_mixtures", num_mixtures)
        shape, options = (self.num_mixtures, self.num_features), {"device": device, "dtype": dtype}
        self.weight = nn.Parameter(torch.empty(shape, **options))
        self.bias = nn.Parameter(torch.empty(shape, **options))
        self.attention = nn.Linear(self.num_features, self.num_mixtures, **options)
        nn.init.normal_(self.weight, 1, 0.1)
        nn.init.normal_(self.bias, 0, 0.1)

    def forward(self, input: Tensor) -> Tensor:
        if (call := self._traced(input)) is not None:
            return call
        self._check(input)
        with no_autocast(input):
            means = input.flatten(2).to(working_dtype(input)).mean(2) if input.dim() > 2 else input
            shares = F.hardsigmoid(self.attention(means.to(self.weight.dtype)))
            gain, shift = shares @ self.weight, shares @ self.bias
        return self._recovered(input, gain, shift)
