"""Mixup of inputs (Zhang et al. 2018) and of hidden activations (Verma et al. 2018)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .sampler import set_generator
from .transfer import to_device

_SEEDS = 2**63 - 1


def mixed(x: Tensor, weight: Tensor, partners: Tensor) -> Tensor:
    """λx + (1 − λ)x[partners]"""
    return torch.lerp(x[partners], x, weight.to(x.dtype))


def mixed_loss(
    criterion: Callable[[Tensor, Tensor], Tensor],
    output: Tensor,
    labels: Tensor,
    weight: Tensor,
    partners: Tensor,
) -> Tensor:
    """The criterion for both labels of each member, weighted as the members are."""
    own, others = criterion(output, labels), criterion(output, labels[partners])
    return weight * own + (1 - weight) * others


@dataclass(frozen=True)
class Mixing:
    """What one batch is mixed by: the weight λ, and a partner for each of its members."""

    weight: Tensor  # λ, a scalar on the device
    partners: Tensor  # (n,)
    place: nn.Module  # the module whose input is mixed

    def __call__(self, x: Tensor) -> Tensor:
        """λx + (1 − λ)x[partners]"""
        return mixed(x, self.weight, self.partners)

    def loss(
        self, criterion: Callable[[Tensor, Tensor], Tensor], output: Tensor, labels: Tensor
    ) -> Tensor:
        """The criterion for both labels of each member, weighted as the members are."""
        return mixed_loss(criterion, output, labels, self.weight, self.partners)


class Mixup:
    """Mix batches before modules chosen at random; before the whole network is plain mixup.

    >>> from torch.nn.functional import cross_entropy
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    >>> mixup = Mixup([model, model[2]], alpha=6, seed=0)
    >>> images, labels = torch.randn(5, 4), torch.tensor([0, 1, 2, 0, 1])
    >>> with mixup(images) as mixing:
    ...     loss = mixing.loss(cross_entropy, model(images), labels)

    λ follows Beta(α, α). The network itself is not changed: a hook mixes what reaches the place,
    and is gone after the block. Processes with the same seed draw the same λ and place, and mix
    within their own shares of a batch: the partners, and they alone, depend on ``world_size``.
    """

    def __init__(self, places: Sequence[nn.Module], *, alpha: float, seed: int = 0) -> None:
        if not places:
            raise ValueError("mixup needs a place: the network itself, or modules of it.")
        if not alpha > 0:
            raise ValueError(f"alpha, of the Beta distribution, must be positive; got {alpha}.")
        self.places, self.alpha = tuple(places), alpha
        self._generator = torch.Generator().manual_seed(seed)

    def draw(self, batch: Tensor) -> Mixing:
        """The next mixing, for a batch of this length on this device."""
        # One number from the generator, however large the batch: processes whose shares differ in
        # length stay in step. torch's Beta takes no generator; numpy's does.
        seed = torch.randint(_SEEDS, (), generator=self._generator).item()
        chance = np.random.default_rng(int(seed))
        weight = torch.tensor(chance.beta(self.alpha, self.alpha), dtype=torch.float32)
        place = self.places[chance.integers(len(self.places))]
        partners = torch.from_numpy(chance.permutation(len(batch)))
        device = batch.device
        return Mixing(to_device(weight, device), to_device(partners, device), place)

    @contextmanager
    def __call__(self, batch: Tensor) -> Iterator[Mixing]:
        """Mix what the network makes of the batch within the block."""
        mixing = self.draw(batch)
        hook = mixing.place.register_forward_pre_hook(
            lambda module, inputs: (mixing(inputs[0]), *inputs[1:])
        )
        try:
            yield mixing
        finally:
            hook.remove()

    def state_dict(self) -> dict[str, Any]:
        return {"generator": self._generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        set_generator(self._generator, state["generator"])
