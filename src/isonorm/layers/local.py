"""Normalization over parts of an image: regions that a map names, and windows around positions.

Their problems are not strides over a tensor, as an ``Area``'s are: regions have any shape, and
windows overlap. So these are layers of their own; both standardize, example by example, and keep no
statistics.

Index legend: R regions, K groups of channels, S positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Proxy

from ..activation import finish
from ..area import flat
from ..checks import check_dtype, check_flag, check_input, check_options, check_tensor
from ..functional import like_input
from ..roots.recurrence import accurate
from ..scalars import plain, positive
from ..statistics import no_autocast, working_dtype
from ..symbolic import one_call


class LocalNorm(nn.Module):
    """What the two share: their arguments, checked, and what follows them."""

    weight: nn.Parameter | None
    bias: nn.Parameter | None

    def __init__(self, num_features: int, eps: float, affine: bool, act: str | None) -> None:
        super().__init__()
        check_options(plain(eps), act)
        self.num_features = positive("num_features", num_features)
        self.eps, self.affine, self.act = plain(eps), check_flag("affine", affine), act

    def _give_parameters(self, shape: tuple[int, ...], device, dtype) -> None:
        check_dtype(dtype)
        make = {"weight": torch.ones, "bias": torch.zeros}
        for name, start in make.items():
            given = nn.Parameter(start(shape, device=device, dtype=dtype)) if self.affine else None
            self.register_parameter(name, given)

    def _check(self, x: Tensor) -> None:
        check_input(x)
        if x.dim() < 3 or x.shape[1] != self.num_features:
            raise ValueError(
                f"{type(self).__name__} expected input (N, {self.num_features}, *) with positions; "
                f"got shape {tuple(x.shape)}."
            )

    def extra_repr(self) -> str:
        act = "" if self.act is None else f", act={self.act!r}"
        return f"affine={self.affine}, eps={self.eps}{act}"


class RegionNorm(LocalNorm):
    """Region Normalization (Yu et al., "Region Normalization for Image Inpainting", AAAI 2020):
    each channel is standardized in each region of each example, with γ and β of that region.

    >>> norm = RegionNorm(8, num_regions=2)
    >>> x, hole = torch.randn(2, 8, 16, 16), torch.rand(2, 16, 16) < 0.3
    >>> norm(x, hole).shape
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
        super().__init__(num_features, eps, affine, act)
        self.num_regions = positive("num_regions", num_regions)
        self._give_parameters((self.num_regions, self.num_features), device, dtype)

    def forward(self, input: Tensor, regions: Tensor) -> Tensor:
        """``regions`` (N, *): at each position of the input (N, C, *) the number of its region."""
        if isinstance(input, Proxy) and (call := one_call(self, input, regions)) is not None:
            return call
        self._check(input)
        check_tensor("regions", regions)
        whole = not (regions.is_floating_point() or regions.is_complex())
        if regions.shape != (input.shape[0], *input.shape[2:]) or not whole:
            raise ValueError(
                f"regions must be integers of shape {(input.shape[0], *input.shape[2:])}, a region "
                f"for each position; got {regions.dtype} of shape {tuple(regions.shape)}."
            )
        dtype = working_dtype(input)
        with no_autocast(input):
            values = flat(input).to(dtype)
            number = regions.flatten(1).long().unsqueeze(1)  # (N, 1, S)
            place = number.expand_as(values)
            there = [number == region for region in range(self.num_regions)]
            count = torch.stack([mask.sum(2) for mask in there], 2).clamp(min=1)

            def means(t: Tensor) -> Tensor:
                """(N, C, R), of each region by itself: what is not finite stays where it is."""
                return torch.stack([torch.where(mask, t, 0).sum(2) for mask in there], 2) / count

            centered = values - means(values).gather(2, place)
            centered = centered - means(centered).gather(2, place)  # a rounded mean leaves some
            gain = (means(centered.square()) + self.eps).rsqrt()
            if self.weight is not None:
                gain = gain * self.weight.to(dtype).transpose(0, 1)
            y = centered * gain.gather(2, place)
            if self.bias is not None:
                y = y + self.bias.to(dtype).transpose(0, 1).expand_as(gain).gather(2, place)
            y = y.to(input.dtype).view(input.shape)
        return finish(like_input(y, input), self.act, None)

    def extra_repr(self) -> str:
        return f"{self.num_features}, num_regions={self.num_regions}, {super().extra_repr()}"


class LocalContextNorm(LocalNorm):
    """Local Context Normalization (Ortiz et al., CVPR 2020): each position is standardized by the
    mean and variance of a window around it, over ``group_size`` channels together.

    At borders the window is what of it lies in the image, where the authors' code repeats the
    statistics of the nearest whole window. A window that always covers the image makes it
    GroupNorm. Windows are differences of running sums in float64: beside a number 1e6 times as
    large as the others, and where one is not finite, those of the whole image lose accuracy.

    >>> norm = LocalContextNorm(8, window=9)
    >>> norm(torch.randn(2, 8, 16, 16)).shape
    torch.Size([2, 8, 16, 16])
    """

    def __init__(
        self,
        num_features: int,
        *,
        window: int | Sequence[int] = 227,
        group_size: int = 2,
        eps: float = 1e-5,
        affine: bool = True,
        act: str | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(num_features, eps, affine, act)
        several = isinstance(window, Sequence) and not isinstance(window, str)
        given: Sequence[Any] = window if several else [window]  # type: ignore[assignment]
        sizes = tuple(positive("window", size) for size in given)
        if not sizes or any(size % 2 == 0 for size in sizes):
            raise ValueError(
                f"window must be odd, one size for all spatial dimensions or one for each; got "
                f"{window!r}."
            )
        self.window = sizes if several else sizes[0]
        self.group_size = positive("group_size", group_size)
        if self.num_features % self.group_size:
            raise ValueError(
                f"group_size={self.group_size} does not divide num_features={self.num_features}; "
                f"choose a divisor of {self.num_features}."
            )
        self._give_parameters((self.num_features,), device, dtype)

    def forward(self, input: Tensor) -> Tensor:
        if isinstance(input, Proxy) and (call := one_call(self, input)) is not None:
            return call
        self._check(input)
        dims = input.dim() - 2
        sizes = (self.window,) * dims if isinstance(self.window, int) else self.window
        if len(sizes) != dims:
            raise ValueError(
                f"LocalContextNorm with window={self.window!r} expected as many spatial dimensions "
                f"as the window has; got input of shape {tuple(input.shape)}."
            )
        dtype = working_dtype(input)
        with no_autocast(input):
            values = input.to(dtype).unflatten(1, (-1, self.group_size))  # (N, K, c, *)
            every = tuple(range(2, values.dim()))
            # The window's variance is a difference of its moments: about the group's mean, and in
            # float64, little of it cancels.
            deviations = accurate(values - values.mean(every, keepdim=True))
            mean = _over_windows(deviations.mean(2), sizes)
            variance = _over_windows(deviations.square().mean(2), sizes) - mean.square()
            scale = (variance.clamp(min=0) + self.eps).rsqrt()
            y = ((deviations - mean.unsqueeze(2)) * scale.unsqueeze(2)).to(dtype).flatten(1, 2)
            shape = (-1, *(1,) * dims)
            if self.weight is not None:
                y = y * self.weight.to(dtype).view(shape)
            if self.bias is not None:
                y = y + self.bias.to(dtype).view(shape)
        return finish(like_input(y.to(input.dtype), input), self.act, None)

    def extra_repr(self) -> str:
        return (
            f"{self.num_features}, window={self.window}, group_size={self.group_size}, "
            f"{super().extra_repr()}"
        )


def _over_windows(field: Tensor, sizes: Sequence[int]) -> Tensor:
    """Means of (N, K, *) numbers over the part of each window that lies in the image, axis by axis:
    differences of running sums, whatever the window's size.
    """
    for axis, size in enumerate(sizes, start=2):
        length = field.shape[axis]
        sums = torch.nn.functional.pad(field.movedim(axis, -1).cumsum(-1), (1, 0))
        place = torch.arange(length, device=field.device)
        first, end = (place - size // 2).clamp(min=0), (place + size // 2 + 1).clamp(max=length)
        means = (sums.index_select(-1, end) - sums.index_select(-1, first)) / (end - first)
        field = means.movedim(-1, axis)
    return field
