"""Batches of a data set that lies on the device, standardized and augmented there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from .augment import FlipAndCrop
from .dataset import scaled
from .sampler import Plan, Sampler
from .standardize import Standardize
from .transfer import to_device

_SHARE_OF_MEMORY = 0.5  # of what is free, for the data; the rest is the network's


class Batches:
    """Images and labels in batches, epoch after epoch.

    >>> images, labels = torch.randint(256, (10, 3, 8, 8)).byte(), torch.arange(10)
    >>> for x, y in Batches(images, labels, batch_size=5, seed=0):
    ...     print(x.shape, x.dtype, y.shape)
    torch.Size([5, 3, 8, 8]) torch.float32 torch.Size([5])
    torch.Size([5, 3, 8, 8]) torch.float32 torch.Size([5])

    Images stay as they are, bytes in general, and become standardized numbers one batch at a time;
    then ``augment`` changes them. With ``resident=None`` they lie on the device if they fit into
    half of its free memory, and else come from the host batch by batch. For order, shares,
    ``drop_last`` and resuming, see ``Sampler``; to test, use ``shuffle=False, drop_last=False``.
    """

    def __init__(
        self,
        images: Tensor,
        labels: Tensor,
        *,
        batch_size: int | None = None,
        seed: int = 0,
        standardize: Standardize | None = None,
        augment: FlipAndCrop | None = None,
        shuffle: bool = True,
        drop_last: bool = True,
        rank: int = 0,
        world_size: int = 1,
        device: torch.device | str = "cpu",
        resident: bool | None = None,
    ) -> None:
        if len(images) != len(labels):
            raise ValueError(f"there are {len(images)} images and {len(labels)} labels.")
        self.sampler = Sampler(
            len(labels),
            batch_size,
            seed=seed,
            shuffle=shuffle,
            drop_last=drop_last,
            num_draws=augment.num_draws if augment else 0,
            rank=rank,
            world_size=world_size,
        )
        self.device = torch.device(device)
        size = images.nbytes + labels.nbytes
        self.resident = fits(size, self.device) if resident is None else resident
        home = self.device if self.resident else "cpu"
        self._images, self._labels = images.to(home), labels.to(home)
        self._standardize = standardize.to(device) if standardize else scaled
        self._augment = augment

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        # One transfer an epoch: all that is random in it.
        plan = self.sampler.plan().to(self._images.device)
        return self.sampler.handing_out(
            self._batch(plan[rows]) for rows in self.sampler.remaining()
        )

    def _batch(self, plan: Plan) -> tuple[Tensor, Tensor]:
        chosen = (self._images[plan.order], self._labels[plan.order], plan.draws)
        images, labels, draws = (to_device(tensor, self.device) for tensor in chosen)
        images = self._standardize(images)
        return (self._augment(images, draws) if self._augment else images), labels

    def state_dict(self) -> dict[str, Any]:
        return self.sampler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.sampler.load_state_dict(state)


def fits(num_bytes: int, device: torch.device) -> bool:
    """Whether data of this size may lie on the device; on the CPU it already does."""
    if device.type != "cuda":
        return True
    free, _ = torch.cuda.mem_get_info(device)
    return num_bytes <= _SHARE_OF_MEMORY * free
