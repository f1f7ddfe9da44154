"""Centered weight normalization (Huang et al., "Centered Weight Normalization in Accelerating
Training of Deep Neural Networks", ICCV 2017).

For the proxy v of an output's weights,

    w = g·(v − v̄)/‖v − v̄‖,      v̄ the mean of v's elements

so that wᵀ1 = 0: a mean shared by all inputs does not reach the output. g is learned, or 1.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..checks import check_options
from ..scalars import plain
from ..statistics import no_autocast, working_dtype
from .layout import Layout, check_centerable, check_first, register


class CenteredWeightNorm(nn.Module):
    """(g, v) → w, or v → w without a gain. g is a vector, (outputs,), so that rules that spare
    vectors from weight decay spare it.
    """

    def __init__(self, layout: Layout, gain: bool, eps: float) -> None:
        super().__init__()
        self.layout, self.gain, self.eps = layout, gain, eps

    def forward(self, *originals: Tensor) -> Tensor:
        v = originals[-1]
        with no_autocast(v):
            rows = self._centered(v)
            # eps under the root: where all weights are equal the result is zero, with a gradient.
            rows = rows * (rows.square().sum(-1, keepdim=True) + self.eps).rsqrt()
            if self.gain:
                rows = rows * self.layout.per_row(originals[0])
            return self.layout.weight(rows, v).to(v.dtype)

    def _centered(self, weight: Tensor) -> Tensor:
        """(k, o, n) rows of mean zero, in the working precision: eps, and squares, leave the range
        of float16.
        """
        rows = self.layout.rows(weight).to(working_dtype(weight))
        return rows - rows.mean(-1, keepdim=True)

    def right_inverse(self, weight: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        """Parameters whose weight is the given one, centered (and, without a gain, of length 1)."""
        if not self.gain:
            return weight
        with no_autocast(weight):
            lengths = torch.linalg.vector_norm(self._centered(weight), dim=-1)
        return lengths.flatten().to(weight.dtype), weight

    def extra_repr(self) -> str:
        return f"dim={self.layout.dim}, gain={self.gain}, eps={self.eps}"


def centered_weight_norm(
    module: nn.Module,
    name: str = "weight",
    dim: int | None = None,
    *,
    gain: bool = True,
    eps: float = 1e-12,
) -> nn.Module:
    """Weights of mean zero and, but for a learned gain, length 1 for each output.

    >>> layer = centered_weight_norm(nn.Conv2d(4, 6, 3), gain=False)
    >>> rows = layer.weight.flatten(1)
    >>> rows.sum(1).abs().max().item() < 1e-5, torch.allclose(rows.norm(dim=1), torch.ones(6))
    (True, True)

    Args:
        module: a layer, changed and returned.
        name: of its weight.
        dim: the dimension of the outputs; None finds it.
        gain: learn g, starting from the length of the weight's centered rows.
        eps: added to the squared length.
    """
    eps = plain(eps)
    check_options(eps, None)

    def make(layout: Layout) -> nn.Module:
        check_centerable(layout, getattr(module, name), "centered_weight_norm")
        if gain:
            check_first(module, name, "centered_weight_norm")
        return CenteredWeightNorm(layout, gain, eps)

    return register(module, name, dim, make)
