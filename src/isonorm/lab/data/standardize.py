"""The papers' preprocessing: subtract the training set's mean, divide by its deviation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from .dataset import scaled

Per = Literal["channel", "pixel"]
_IMAGES_AT_ONCE = 64  # in float64 while statistics are taken: few enough to stay in a cache


@dataclass(frozen=True)
class Standardize:
    """(x − mean) / std of pixels in [0, 1], both of shape (channels, height or 1, width or 1)."""

    mean: Tensor
    std: Tensor

    def __call__(self, images: Tensor) -> Tensor:
        return (scaled(images) - self.mean) / self.std

    def to(self, device: torch.device | str) -> Standardize:
        return Standardize(self.mean.to(device), self.std.to(device))


def standardize_like(images: Tensor, *, mean: Per | None, std: Per | None) -> Standardize:
    """The map that gives these images mean 0 and deviation 1, per channel or per pixel.

    >>> images = torch.randint(256, (10, 3, 8, 8), dtype=torch.uint8)
    >>> standardize = standardize_like(images, mean="channel", std="channel")
    >>> deviation = standardize(images).std(dim=(0, 2, 3), correction=0)
    >>> torch.allclose(deviation, torch.ones(3))
    True

    ``None`` leaves the step out. A pixel that never varies is not divided.
    """
    pixel_mean, pixel_var = _pixel_statistics(images)
    channel_mean = pixel_mean.mean(dim=(1, 2), keepdim=True)
    # The variance within pixels and the variance between them.
    channel_var = (pixel_var + (pixel_mean - channel_mean) ** 2).mean(dim=(1, 2), keepdim=True)
    means = {"channel": channel_mean, "pixel": pixel_mean, None: torch.zeros_like(channel_mean)}
    variances = {"channel": channel_var, "pixel": pixel_var, None: torch.ones_like(channel_var)}
    if mean not in means or std not in variances:
        raise ValueError(f"mean and std are 'channel', 'pixel' or None; got {mean!r} and {std!r}.")
    deviation = variances[std].sqrt()
    return Standardize(means[mean].float(), deviation.where(deviation > 0, 1.0).float())


def _pixel_statistics(images: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance over the images, each of shape (channels, height, width), in float64."""
    if not len(images):
        raise ValueError("there are no images to take statistics of.")

    def mean_of(function) -> Tensor:
        parts = (function(scaled(part).double()) for part in images.split(_IMAGES_AT_ONCE))
        return sum((part.sum(dim=0) for part in parts), start=torch.zeros(())) / len(images)

    mean = mean_of(lambda part: part)
    return mean, mean_of(lambda part: (part - mean) ** 2)
