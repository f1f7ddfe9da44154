"""The norms of layers, and the precision in which they are divided by."""

# torch exports its foreach functions under private names alone.
# pyright: reportPrivateImportUsage=false

from __future__ import annotations

import math
from typing import TypeAlias

import torch
from torch import Tensor

from ..statistics import working_dtype

Tensors: TypeAlias = tuple[Tensor, ...] | list[Tensor]  # what torch._foreach_* take and return


def euclidean_norms(tensors: Tensors) -> Tensor:
    """(n,) Euclidean norms in float64, in which no square of a float32 is too large or too small.

    On a CPU, where a look at them does not wait, float32 is tried first: it is read several times
    faster.
    """
    first = tensors[0]
    plain = working_dtype(first)
    if first.device.type == "mps":  # has no float64
        return torch.stack(torch._foreach_norm(tensors, 2, plain))
    if first.is_cpu and not torch.compiler.is_compiling():
        norms = torch.stack(torch._foreach_norm(tensors, 2, plain)).double()
        least, most = norms.aminmax()
        limits = torch.finfo(plain)
        if least > (limits.tiny / limits.eps) ** 0.5 and most < math.inf:
            return norms
    return torch.stack(torch._foreach_norm(tensors, 2, torch.float64))


def divisors(tensors: Tensors) -> tuple[Tensor, ...]:
    """‖t‖ of each, or 1 for zeros, in the dtype it is to be divided in."""
    norms = euclidean_norms(tensors)
    return finite_in(working_dtype(tensors[0]), norms.where(norms != 0, 1.0)).unbind()


def finite_in(dtype: torch.dtype, values: Tensor) -> Tensor:
    """Positive numbers in a dtype, what is finite at most the largest there is."""
    return torch.where(values.isinf(), values, values.clamp(max=torch.finfo(dtype).max)).to(dtype)
