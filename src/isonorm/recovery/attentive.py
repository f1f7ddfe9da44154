"""γ and β mixed from several by attention to the input: attentive normalization."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..statistics import working_dtype
from .modulation import Modulation


class Attentive(Modulation):
    """Σₖ λₖ(γₖ ⊙ x̂ + βₖ): a mixture of K affine recoveries, weighted for each example by attention
    to its channels' means (Li, Sun & Wu, "Attentive Normalization", ECCV 2020).

    λ = hardsigmoid of a linear map of the means; γₖ and βₖ start as N(1, 0.1²) and N(0, 0.1²), as
    in the authors' code. Unlike there, what goes into λ is not itself batch-normalized.

    >>> import isonorm
    >>> norm = Attentive(isonorm.IterNorm(8, affine=False), num_mixtures=5)
    >>> norm(torch.randn(2, 8, 16, 16)).shape
    torch.Size([2, 8, 16, 16])
    """

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
        self.num_mixtures = num_mixtures
        shape, options = (num_mixtures, self.num_features), {"device": device, "dtype": dtype}
        self.weight = nn.Parameter(torch.empty(shape, **options))
        self.bias = nn.Parameter(torch.empty(shape, **options))
        self.attention = nn.Linear(self.num_features, num_mixtures, **options)
        nn.init.normal_(self.weight, 1, 0.1)
        nn.init.normal_(self.bias, 0, 0.1)

    def forward(self, x: Tensor) -> Tensor:
        if (call := self._traced(x)) is not None:
            return call
        means = x.flatten(2).to(working_dtype(x)).mean(2) if x.dim() > 2 else x
        shares = F.hardsigmoid(self.attention(means.to(self.weight.dtype)))
        return self._recovered(x, shares @ self.weight, shares @ self.bias)

    def extra_repr(self) -> str:
        return f"num_mixtures={self.num_mixtures}"
