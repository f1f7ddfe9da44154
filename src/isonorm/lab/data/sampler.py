"""Which images come when, and the random numbers that augment them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


@dataclass(frozen=True)
class Plan:
    """All that is random in an epoch: the order of the images, and numbers in [0, 1) for each."""

    order: Tensor  # (images,)
    draws: Tensor  # (images, draws): row i belongs to the i-th image of the order

    def to(self, device: torch.device | str) -> Plan:
        return Plan(self.order.to(device), self.draws.to(device))

    def __getitem__(self, rows: slice) -> Plan:
        return Plan(self.order[rows], self.draws[rows])


class Sampler:
    """An endless row of epochs, the same for one process and for many, and resumable anywhere.

    >>> sampler = Sampler(10, batch_size=4, seed=0)
    >>> len(sampler), [len(batch.order) for batch in sampler]
    (2, [4, 4])

    Everything random is drawn at the beginning of an epoch, for all processes alike: a global batch
    is the same images, equally augmented, whatever ``world_size``, and a process gets its
    consecutive share of it. ``batch_size`` counts the images of the global batch; ``None`` is all
    of them. ``drop_last=True`` leaves out an incomplete batch, whose few images would make poor
    statistics; another epoch's order leaves out others. With ``drop_last=False`` the shares of the
    last batch may differ by one image, or be empty: add up over processes, do not average.

    Iterating gives what is left of the current epoch. ``state_dict()``, taken after a batch, holds
    what comes after it.
    """

    def __init__(
        self,
        num_images: int,
        batch_size: int | None = None,
        *,
        seed: int = 0,
        shuffle: bool = True,
        drop_last: bool = True,
        num_draws: int = 0,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        batch_size = num_images if batch_size is None else batch_size
        if not 1 <= batch_size <= num_images:
            raise ValueError(
                f"batch_size must be between 1 and the {num_images} images; got {batch_size}."
            )
        if not 0 <= rank < world_size:
            raise ValueError(f"rank is from 0 to world_size − 1; got {rank} of {world_size}.")
        if batch_size % world_size:
            raise ValueError(
                f"batch_size={batch_size} counts the images of all {world_size} processes together "
                f"and must be a multiple of their number."
            )
        self.num_images, self.batch_size = num_images, batch_size
        self.shuffle, self.drop_last, self.num_draws = shuffle, drop_last, num_draws
        self.rank, self.world_size = rank, world_size
        self.epoch = 0  # epochs that have ended
        self.position = 0  # batches of the current one that have been handed out
        self._generator = torch.Generator().manual_seed(seed)
        self._at_start = self._generator.get_state()

    def __len__(self) -> int:
        """Batches in an epoch."""
        whole, rest = divmod(self.num_images, self.batch_size)
        return whole + (rest > 0 and not self.drop_last)

    def __iter__(self) -> Iterator[Plan]:
        plan = self.plan()
        return self.handing_out(plan[rows] for rows in self.remaining())

    def plan(self) -> Plan:
        """What the current epoch is going to be, for all processes together."""
        self._generator.set_state(self._at_start)
        n = self.num_images
        order = torch.randperm(n, generator=self._generator) if self.shuffle else torch.arange(n)
        return Plan(order, torch.rand(n, self.num_draws, generator=self._generator))

    def remaining(self) -> Iterator[slice]:
        """This process's rows of the plan, for each batch not yet handed out."""
        for number in range(self.position, len(self)):
            start = number * self.batch_size
            size = min(self.batch_size, self.num_images - start)
            first, last = (size * rank // self.world_size for rank in (self.rank, self.rank + 1))
            yield slice(start + first, start + last)

    def handing_out(self, batches: Iterable[T]) -> Iterator[T]:
        """Keep count of the current epoch's remaining batches while they are taken.

        A loader may have prepared more of them: only what was taken is counted.
        """
        for batch in batches:
            self.position += 1
            yield batch
        self.epoch, self.position = self.epoch + 1, 0
        self._at_start = self._generator.get_state()

    def state_dict(self) -> dict[str, Any]:
        return {
            "epoch": self.epoch,
            "position": self.position,
            "num_images": self.num_images,
            "batch_size": self.batch_size,
            "generator": self._at_start,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where the state was taken, with as many processes as there are now."""
        for name in ("num_images", "batch_size"):
            if state[name] != getattr(self, name):
                raise ValueError(
                    f"the saved order has {name}={state[name]!r:.40}, this one "
                    f"{getattr(self, name)}: resume with the same data and batch size."
                )
        epoch, position = state["epoch"], state["position"]
        if type(epoch) is not int or epoch < 0:
            raise ValueError(f"the saved order is of epoch {epoch!r}, which is no number of one.")
        if type(position) is not int or not 0 <= position <= len(self):
            raise ValueError(
                f"the saved order stopped after batch {position!r} of an epoch, which has "
                f"{len(self)} here: resume with the same drop_last."
            )
        set_generator(self._generator, state["generator"])
        self._at_start = self._generator.get_state()
        self.epoch, self.position = epoch, position


def set_generator(generator: torch.Generator, state: Any) -> None:
    """Set a generator's state, if it is one."""
    like = generator.get_state()
    if not isinstance(state, Tensor) or (state.dtype, state.shape) != (like.dtype, like.shape):
        raise ValueError("the saved random state is none of torch's generator on a CPU.")
    generator.set_state(state)
