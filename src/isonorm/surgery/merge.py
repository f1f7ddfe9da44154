"""The algebra of merging: a convolution and an affine map next to it are one convolution.

The map is y = A·x + c, with ``A`` (b, d, d) matrices for groups of d successive channels (the last
group may be shorter; its matrix is padded) and ``c`` (C,). Kernels are seen as (o, i, k): o outputs
by i inputs of each convolution group by k taps; a linear layer has one tap.

Functions take and give tensors of one dtype and device: the caller chooses float64.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def after(kernel: Tensor, bias: Tensor, A: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """A·(W∗x + b) + c = (A·W)∗x + (A·b + c), for any padding, stride, dilation."""
    merged = blockwise(A, kernel.flatten(1)).view(kernel.shape)
    return merged, blockwise(A, bias.unsqueeze(1)).squeeze(1) + c


def before(
    kernel: Tensor, bias: Tensor, A: Tensor, c: Tensor, groups: int = 1
) -> tuple[Tensor, Tensor]:
    """W∗(A·x + c) + b = (W·A)∗x + (Σₖ Wₖ·c + b), where every tap of every output meets an input."""
    o, i, k = kernel.shape
    grouped = kernel.view(groups, o // groups, i, k)
    shift = torch.einsum("goik,gi->go", grouped, c.view(groups, i)).reshape(o)
    by_input = grouped.transpose(1, 2).reshape(groups * i, -1)
    merged = blockwise(A.mT, by_input).view(groups, i, o // groups, k)
    return merged.transpose(1, 2).reshape(o, i, k), bias + shift


def blockwise(A: Tensor, rows: Tensor) -> Tensor:
    """The block-diagonal matrix of ``A`` times ``rows`` (C, n).

    >>> A = torch.tensor([[[0.0, 1.0], [1.0, 0.0]], [[2.0, 0.0], [0.0, 1.0]]])
    >>> blockwise(A, torch.tensor([[1.0], [2.0], [3.0]])).flatten()  # groups of 2 and 1
    tensor([2., 1., 6.])
    """
    b, d, _ = A.shape
    short = b * d - len(rows)
    padded = F.pad(rows, (0, 0, 0, short)) if short else rows
    return (A @ padded.reshape(b, d, -1)).view(b * d, -1)[: len(rows)]


def fits(group_size: int, channels: int, groups: int) -> bool:
    """Whether each group of channels lies within one group of a convolution with so many channels,
    so that merging leaves the convolution as sparse as it is.
    """
    return groups == 1 or channels // groups % group_size == 0


def as_kernel(weight: Tensor, groups: int, transposed: bool) -> Tensor:
    """(o, i, k) from the weight of a convolution, a transposed one, or a linear layer."""
    if not transposed:
        return weight.reshape(*weight.shape[:2], -1)
    by_group = weight.reshape(groups, weight.shape[0] // groups, weight.shape[1], -1)
    return by_group.transpose(1, 2).flatten(0, 1)


def as_weight(kernel: Tensor, shape: torch.Size, groups: int, transposed: bool) -> Tensor:
    """The inverse of ``as_kernel``."""
    if not transposed:
        return kernel.reshape(shape)
    o, i, k = kernel.shape
    return kernel.view(groups, o // groups, i, k).transpose(1, 2).reshape(shape)
