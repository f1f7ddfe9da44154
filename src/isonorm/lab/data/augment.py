"""Random flips and crops, for a whole batch at once and on its device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import pad


@dataclass(frozen=True)
class FlipAndCrop:
    """Mirror every second image, and move it by up to ``padding`` pixels in both directions.

    >>> augment = FlipAndCrop(padding=4)
    >>> images, draws = torch.randn(8, 3, 32, 32), torch.rand(8, augment.num_draws)
    >>> augment(images, draws).shape
    torch.Size([8, 3, 32, 32])

    A function of the images and of three numbers in [0, 1) for each: nothing here is random. What
    comes in from outside is zero, the mean of standardized images, or mirrored at the edge
    (``border="reflect"``, as wide residual networks were trained with).
    """

    padding: int = 4
    flip: bool = True
    border: Literal["zero", "reflect"] = "zero"

    num_draws: ClassVar[int] = 3

    def __post_init__(self) -> None:
        if self.padding < 0:
            raise ValueError(f"padding is a number of pixels; got {self.padding}.")
        if self.border not in ("zero", "reflect"):
            raise ValueError(f"border is 'zero' or 'reflect'; got {self.border!r}.")

    def __call__(self, images: Tensor, draws: Tensor) -> Tensor:
        n, channels, height, width = images.shape
        top, left = self._offsets(draws[:, :2]).unbind(1)
        rows = top[:, None] + torch.arange(height, device=images.device)
        columns = torch.arange(width, device=images.device).expand(n, width)
        if self.flip:
            columns = columns.where(draws[:, 2:3] < 0.5, width - 1 - columns)
        columns = left[:, None] + columns

        padded = pad(
            images, [self.padding] * 4, mode="constant" if self.border == "zero" else "reflect"
        )
        pixels = rows[:, :, None] * padded.shape[3] + columns[:, None, :]
        pixels = pixels.view(n, 1, height * width).expand(n, channels, height * width)
        return padded.flatten(2).gather(2, pixels).view(images.shape)

    def _offsets(self, draws: Tensor) -> Tensor:
        """0 to 2 · padding, each equally likely.

        The largest draw, 1 − 2^(-24), times an odd number stays below it in float32.
        """
        return (draws * (2 * self.padding + 1)).long()
