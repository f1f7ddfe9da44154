"""Dynamical isometry: singular values of the input–output Jacobian (DBN Section 3.5)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ._layers import tensor_of
from ._state import copy_to_try, random_state_kept
from .conditioning import wide


@random_state_kept()
def jacobian_singular_values(
    model: nn.Module | Callable[[Tensor], Tensor],
    x: Tensor,
    *,
    per_example: bool = True,
    chunk_size: int | None = None,
) -> Tensor:
    """The singular values of ∂ output/∂ input at (N, …), largest first; near 1 is isometry.

    With ``per_example``, (N, r): those of each example's output by its own input, the rest of the
    batch held fixed. Otherwise (N·r,): those of the whole batch's outputs by all its inputs, which
    is what backward multiplies by where statistics tie examples together.

    >>> rotate = nn.Linear(3, 3, bias=False)
    >>> _ = nn.init.orthogonal_(rotate.weight)
    >>> jacobian_singular_values(rotate, torch.randn(2, 3)).round(decimals=4).tolist()
    [[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]]

    The model runs in its present mode, on a copy that speaks to no other rank, by
    ``torch.func.jacrev``, which takes ``chunk_size`` outputs at a time.
    """
    if x.dim() < 2 or not len(x):
        raise ValueError(
            f"expected a batch of examples, (N, …) of 2 or more dimensions; got {tuple(x.shape)}: "
            "pass one example as x[None]."
        )
    function: Any = model
    if isinstance(model, nn.Module):
        function = copy_to_try(model).requires_grad_(False)

    def outputs_of(x: Tensor) -> Tensor:
        y = tensor_of(function(x))
        if y.dim() == 0 or len(y) != len(x):
            raise ValueError(
                f"expected outputs for each of the {len(x)} examples, (N, …); got "
                f"{tuple(y.shape)}: leave out what joins examples, such as a loss."
            )
        return y.reshape(len(x), -1)

    jacobian = torch.func.jacrev(outputs_of, chunk_size=chunk_size)(x)  # (N, outputs, N, …)
    jacobian = wide(jacobian.detach().flatten(3))
    if per_example:
        n = torch.arange(len(x), device=x.device)
        return torch.linalg.svdvals(jacobian[n, :, n])
    outputs, inputs = jacobian.shape[:2].numel(), jacobian.shape[2:].numel()
    return torch.linalg.svdvals(jacobian.reshape(outputs, inputs))
