"""Normalization over parts of an image: regions that a map names, and windows around positions.

Their problems are not strides over a tensor, as an ``Area``'s are: regions have any shape, and
windows overlap. So these are layers of their own; both standardize, example by example, and keep no
statistics.

Index legend: R regions, K groups of channels, S positions.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..activation import finish
from ..area import flat, group
from ..checks import check_flag, check_input, check_options
from ..functional import like_input
from ..roots.recurrence import accurate
from ..statistics import no_autocast, working_dtype


class RegionNorm(nn.Module):
    """Region Normalization (Yu et al., "Region Normalization for Image Inpainting", AAAI 2020):
    each channel is standardized in each region of each example, with γ and β of that region.

    >>> norm = RegionNorm(8, num_regions=2)
    >>> x, hole = torch.randn(2, 8, 16, 16), torch.rand(2, 16, 16) < 0.3
    >>> norm(x, hole.long()).shape
    torch.Size([2, 8, 16, 16])
    """

    def __init__(
        self,
        num_features: int,
        num_regions: int = 2,
        *,
        eps: float = 1e-5,
        affine: bool = True,
        act: str | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_options(eps, act)
        self.num_features, self.num_regions = num_features, num_regions
        self.eps, self.affine, self.act = eps, check_flag("affine", affine), act
        shape, options = (num_regions, num_features), {"device": device, "dtype": dtype}
        self.weight = nn.Parameter(torch.ones(shape, **options)) if affine else None
        self.bias = nn.Parameter(torch.zeros(shape, **options)) if affine else None

    def forward(self, x: Tensor, regions: Tensor) -> Tensor:
        """``regions`` (N, *): at each position of x (N, C, *) the number of its region."""
        _check_channels(self, x)
        if regions.shape != (x.shape[0], *x.shape[2:]) or regions.is_floating_point():
            raise ValueError(
                f"regions must be integers of shape {(x.shape[0], *x.shape[2:])}, a region for "
                f"each position; got {regions.dtype} of shape {tuple(regions.shape)}."
            )
        dtype = working_dtype(x)
        with no_autocast(x):
            values = flat(x).to(dtype)
            values = values - values.mean(2, keepdim=True)  # so that no sum is of large numbers
            member = F.one_hot(regions.flatten(1).long(), self.num_regions).to(dtype)  # (N, S, R)
            count = member.sum(1, keepdim=True).clamp(min=1)
            there = member.transpose(1, 2)  # from (N, C, R) back to positions
            centered = values - (values @ member / count) @ there
            variance = centered.square() @ member / count
            gain, shift = (variance + self.eps).rsqrt(), None
            if self.weight is not None and self.bias is not None:
                gain = gain * self.weight.to(dtype).mT
                shift = self.bias.to(dtype).mT.expand_as(gain) @ there
            y = centered * (gain @ there)
            y = (y if shift is None else y + shift).to(x.dtype).view(x.shape)
        return finish(like_input(y, x), self.act, None)

    def extra_repr(self) -> str:
        return (
            f"{self.num_features}, num_regions={self.num_regions}, affine={self.affine}, "
            f"eps={self.eps}"
        )


class LocalContextNorm(nn.Module):
    """Local Context Normalization (Ortiz et al., CVPR 2020): each position is standardized by the
    mean and variance of a window around it, over the channels of its group.

    At borders the window is what of it lies in the image. A window that always covers the image
    makes it GroupNorm.

    >>> norm = LocalContextNorm(8, window=9, num_groups=2)
    >>> norm(torch.randn(2, 8, 16, 16)).shape
    torch.Size([2, 8, 16, 16])
    """

    def __init__(
        self,
        num_features: int,
        *,
        window: int | Sequence[int] = 227,
        num_groups: int = 2,
        eps: float = 1e-5,
        affine: bool = True,
        act: str | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_options(eps, act)
        sizes = [window] if isinstance(window, int) else list(window)
        if not sizes or any(size < 1 or size % 2 == 0 for size in sizes):
            raise ValueError(
                f"window must be odd, one size for all spatial dimensions or one for each; got "
                f"{window!r}."
            )
        group(num_groups).partition(num_features)  # raises where they do not fit
        self.num_features, self.num_groups, self.window = num_features, num_groups, window
        self.eps, self.affine, self.act = eps, check_flag("affine", affine), act
        options = {"device": device, "dtype": dtype}
        self.weight = nn.Parameter(torch.ones(num_features, **options)) if affine else None
        self.bias = nn.Parameter(torch.zeros(num_features, **options)) if affine else None

    def forward(self, x: Tensor) -> Tensor:
        _check_channels(self, x)
        dims = x.dim() - 2
        sizes = (self.window,) * dims if isinstance(self.window, int) else tuple(self.window)
        if dims == 0 or len(sizes) != dims:
            raise ValueError(
                f"LocalContextNorm with window={self.window!r} expected as many spatial dimensions "
                f"as the window has; got input of shape {tuple(x.shape)}."
            )
        dtype = working_dtype(x)
        with no_autocast(x):
            values = x.to(dtype).unflatten(1, (self.num_groups, -1))  # (N, K, c, *)
            every = tuple(range(2, values.dim()))
            # The window's variance is a difference of its moments: about the group's mean, and in
            # float64, little of it cancels.
            deviations = accurate(values - values.mean(every, keepdim=True))
            mean = _over_windows(deviations.mean(2), sizes)
            variance = _over_windows(deviations.square().mean(2), sizes) - mean.square()
            scale = (variance.clamp(min=0) + self.eps).rsqrt()
            y = ((deviations - mean.unsqueeze(2)) * scale.unsqueeze(2)).to(dtype).flatten(1, 2)
            if self.weight is not None and self.bias is not None:
                shape = (-1, *(1,) * dims)
                y = y * self.weight.to(dtype).view(shape) + self.bias.to(dtype).view(shape)
        return finish(like_input(y.to(x.dtype), x), self.act, None)

    def extra_repr(self) -> str:
        return (
            f"{self.num_features}, window={self.window}, num_groups={self.num_groups}, "
            f"affine={self.affine}, eps={self.eps}"
        )


def _over_windows(field: Tensor, sizes: Sequence[int]) -> Tensor:
    """Means of (N, K, *) numbers over the part of each window that lies in the image, axis by axis:
    differences of running sums, whatever the window's size.
    """
    for axis, size in enumerate(sizes, start=2):
        length = field.shape[axis]
        sums = torch.cat([torch.zeros_like(field.narrow(axis, 0, 1)), field.cumsum(axis)], axis)
        place = torch.arange(length, device=field.device)
        first, end = (place - size // 2).clamp(min=0), (place + size // 2 + 1).clamp(max=length)
        shape = [length if a == axis else 1 for a in range(field.dim())]
        counts = (end - first).view(shape)
        field = (sums.index_select(axis, end) - sums.index_select(axis, first)) / counts
    return field


def _check_channels(layer: RegionNorm | LocalContextNorm, x: Tensor) -> None:
    check_input(x)
    if x.shape[1] != layer.num_features:
        raise ValueError(
            f"{type(layer).__name__} expected input (N, {layer.num_features}, *); got shape "
            f"{tuple(x.shape)}."
        )
