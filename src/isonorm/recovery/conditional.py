"""γ and β of a class, or of a context: conditional and dynamic normalization."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..scalars import positive
from .modulation import Modulation


class Conditional(Modulation):
    """γ and β of each example's class: conditional instance or batch normalization (Dumoulin et
    al., "A Learned Representation for Artistic Style", 2017; de Vries et al., 2017).

    >>> import isonorm
    >>> norm = Conditional(isonorm.InstanceNorm(8, affine=False), num_classes=10)
    >>> norm(torch.randn(2, 8, 5, 5), torch.tensor([3, 7])).shape
    torch.Size([2, 8, 5, 5])
    """

    _echoes = ("num_classes",)

    def __init__(
        self,
        norm: nn.Module,
        num_classes: int,
        *,
        act: str | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(norm, act)
        self.num_classes = positive("num_classes", num_classes)
        shape = (self.num_classes, self.num_features)
        self.weight = nn.Parameter(torch.ones(shape, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.zeros(shape, device=device, dtype=dtype))

    def forward(self, input: Tensor, labels: Tensor) -> Tensor:
        """``labels`` (N,): the class of each example."""
        if (call := self._traced(input, labels)) is not None:
            return call
        self._check(input, labels=labels)
        if labels.shape != input.shape[:1] or labels.is_floating_point():
            raise ValueError(
                f"labels must be integers of shape ({input.shape[0]},), a class for each example; "
                f"got {labels.dtype} of shape {tuple(labels.shape)}."
            )
        labels = labels.long()
        return self._recovered(
            input, F.embedding(labels, self.weight), F.embedding(labels, self.bias)
        )


class Dynamic(Modulation):
    """γ and β linear in a context vector of each example, a text's or a task's: γ = 1 + Ac,
    β = Bc, which starts as γ = 1, β = 0 (the survey's dynamic normalization; Perez et al., "FiLM",
    2018).

    >>> import isonorm
    >>> norm = Dynamic(isonorm.BatchNorm(8, affine=False), num_inputs=32)
    >>> norm(torch.randn(2, 8, 5, 5), torch.randn(2, 32)).shape
    torch.Size([2, 8, 5, 5])
    """

    _echoes = ("num_inputs",)

    def __init__(
        self,
        norm: nn.Module,
        num_inputs: int,
        *,
        act: str | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(norm, act)
        self.num_inputs = positive("num_inputs", num_inputs)
        width = 2 * self.num_features
        self.linear = nn.Linear(self.num_inputs, width, bias=False, device=device, dtype=dtype)
        nn.init.zeros_(self.linear.weight)

    def forward(self, input: Tensor, context: Tensor) -> Tensor:
        """``context`` (N, num_inputs)."""
        if (call := self._traced(input, context)) is not None:
            return call
        self._check(input, context=context)
        if context.shape != (input.shape[0], self.num_inputs):
            raise ValueError(
                f"context must have shape {(input.shape[0], self.num_inputs)}, a vector for each "
                f"example; got {tuple(context.shape)}."
            )
        gain, shift = self.linear(context.to(self.linear.weight.dtype)).chunk(2, dim=1)
        return self._recovered(input, 1 + gain, shift)
