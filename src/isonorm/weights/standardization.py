"""Weight standardization (Qiao et al., "Micro-Batch Training with Batch-Channel Normalization and
Weight Standardization", 2019).

    Ŵ_ij = (W_ij − μ_i)/σ_i,     μ_i and σ_i the mean and standard deviation of output i's weights
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from ..checks import check_options
from ..scalars import plain
from .layout import Layout, check_centerable, register


class WeightStandardization(nn.Module):
    """W → Ŵ."""

    def __init__(self, layout: Layout, eps: float) -> None:
        super().__init__()
        self.layout, self.eps = layout, eps

    def forward(self, weight: Tensor) -> Tensor:
        rows = self.layout.rows(weight)
        return self.layout.weight(F.layer_norm(rows, rows.shape[-1:], eps=self.eps), weight)

    def right_inverse(self, weight: Tensor) -> Tensor:
        """W itself: the layer's weight becomes its standardization."""
        return weight

    def extra_repr(self) -> str:
        return f"dim={self.layout.dim}, eps={self.eps}"


def weight_standardization(
    module: nn.Module, name: str = "weight", dim: int | None = None, *, eps: float = 1e-5
) -> nn.Module:
    """Weights of mean 0 and variance 1 for each output.

    >>> layer = weight_standardization(nn.Conv2d(4, 6, 3))
    >>> layer.weight.flatten(1).mean(1).abs().max().item() < 1e-6
    True

    Args:
        module: a layer, changed and returned; a normalization of its output is expected to follow.
        name: of its weight.
        dim: the dimension of the outputs; None finds it.
        eps: added to the variance, in which there is no correction for the number of weights.
    """
    eps = plain(eps)
    check_options(eps, None)

    def make(layout: Layout) -> nn.Module:
        check_centerable(layout, getattr(module, name), "weight_standardization")
        return WeightStandardization(layout, eps)

    return register(module, name, dim, make)
