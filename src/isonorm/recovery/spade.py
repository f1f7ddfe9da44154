"""γ and β of a map, position by position: spatially-adaptive denormalization."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..scalars import positive
from .modulation import Modulation

_CONVOLUTIONS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}


class SPADE(Modulation):
    """γ and β by two convolutions from a label map, resized to the input by the nearest neighbor
    (Park et al., "Semantic Image Synthesis with Spatially-Adaptive Normalization", 2019, Eq. 1 and
    Figure 2). As in the authors' code, the convolution gives γ − 1.

    >>> import isonorm
    >>> norm = SPADE(isonorm.BatchNorm(8, affine=False), num_labels=35)
    >>> norm(torch.randn(2, 8, 16, 16), torch.rand(2, 35, 64, 64)).shape
    torch.Size([2, 8, 16, 16])
    """

    _echoes = ("num_labels", "hidden")

    def __init__(
        self,
        norm: nn.Module,
        num_labels: int,
        *,
        hidden: int = 128,
        kernel_size: int = 3,
        dims: int = 2,
        act: str | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(norm, act)
        if dims not in _CONVOLUTIONS:
            raise ValueError(f"dims must be 1, 2 or 3, the map's spatial dimensions; got {dims!r}.")
        kernel_size = positive("kernel_size", kernel_size)
        if kernel_size % 2 == 0:
            raise ValueError(f"kernel_size must be odd, to stay centered; got {kernel_size}.")
        self.num_labels, self.dims = positive("num_labels", num_labels), dims
        self.hidden = positive("hidden", hidden)
        options = {"padding": kernel_size // 2, "device": device, "dtype": dtype}
        convolution = _CONVOLUTIONS[dims]
        self.shared = convolution(self.num_labels, self.hidden, kernel_size, **options)
        self.gain = convolution(self.hidden, self.num_features, kernel_size, **options)
        self.shift = convolution(self.hidden, self.num_features, kernel_size, **options)

    def forward(self, input: Tensor, labels: Tensor) -> Tensor:
        """``labels`` (N, num_labels, *): a map, one-hot where it is of classes, of any size."""
        if (call := self._traced(input, labels)) is not None:
            return call
        self._check(input, labels=labels)
        expected = (input.shape[0], self.num_labels)
        if (
            labels.shape[:2] != expected
            or labels.dim() != self.dims + 2
            or input.dim() != labels.dim()
        ):
            raise ValueError(
                f"labels must be a map of shape {(*expected, *'*' * self.dims)} for an input with "
                f"{self.dims} spatial dimensions; got {tuple(labels.shape)} for an input of shape "
                f"{tuple(input.shape)}."
            )
        resized = F.interpolate(labels.to(self.shared.weight.dtype), size=input.shape[2:])
        features = F.relu(self.shared(resized))
        return self._recovered(input, 1 + self.gain(features), self.shift(features))
