"""What a recipe costs, counted and guessed before anything is trained."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch

from .ingredients import NOISE
from .measuring.words import Measurement
from .models.registry import CIFAR, FACE, IMAGENET, MNIST
from .recipe import Configuration, Recipe, trainings

#: Training images, classes and shape of the data sets.
SIZES = {
    "digits": (1_347, 10, (1, 8, 8)),
    "mnist": (60_000, 10, MNIST),
    "cifar10": (50_000, 10, CIFAR),
    "cifar100": (50_000, 100, CIFAR),
    "svhn": (73_257, 10, CIFAR),
    "svhn_extra": (604_388, 10, CIFAR),
    "yaleb": (1_810, 38, FACE),
    "pie": (8_665, 68, FACE),
    "imagenet": (1_281_167, 1000, IMAGENET),
    **NOISE,
}

#: What a device may be expected to do in such networks, in operations a second, far below its peak.
RATES = {"a CPU core": 2e10, "an H200": 4e13}
#: How long each parameter makes a step at least, forward, backward and in the optimizer.
SECONDS_PER_PARAMETER = 1e-4


class Work(NamedTuple):
    """All trainings of one configuration."""

    images: int  # seen in training, the searches included
    steps: float
    operations: float  # of the matrix products, forward and twice that backward
    parameters: int  # tensors, not their elements

    def hours(self, on: str) -> float:
        """A rough guess: as fast as the device computes, or as fast as it is given work."""
        computing = self.operations / RATES[on]
        return max(computing, self.steps * self.parameters * SECONDS_PER_PARAMETER) / 3600


def images_seen(recipe: Recipe | Measurement) -> int:
    """Training images over all trainings with the paper's seeds, or images through all layers."""
    if isinstance(recipe, Measurement):
        return recipe.images
    return sum(_images_seen(configuration, recipe) for configuration in recipe.configurations)


def work(recipe: Recipe) -> Iterator[Work]:
    """Each configuration's, with the paper's seeds, counted on networks without memory."""
    from torch.utils.flop_counter import FlopCounterMode  # which imports triton, where it is

    available, num_classes, shape = _size(recipe)
    counted: dict[str, tuple[int, int]] = {}
    for configuration in recipe.configurations:
        sizes = {k: v for k, v in configuration.options.items() if not k.endswith("norm")}
        key = f"{configuration.model} {sizes}"  # norms hardly count
        if key not in counted:
            with torch.device("meta"):
                network, image = configuration.build(shape, num_classes), torch.empty(1, *shape)
            with FlopCounterMode(display=False) as counter:
                network.eval()(image)
            counted[key] = counter.get_total_flops(), len(list(network.parameters()))
        operations, parameters = counted[key]
        images = _images_seen(configuration, recipe)
        steps = images / (configuration.plan.batch_size or available)
        yield Work(images, steps, 3.0 * operations * images, parameters)


def _images_seen(configuration: Configuration, recipe: Recipe) -> int:
    return _size(recipe)[0] * configuration.plan.epochs * trainings(configuration, recipe.seeds)


def _size(recipe: Recipe) -> tuple[int, int, tuple[int, int, int]]:
    if recipe.data not in SIZES:
        raise ValueError(
            f"{recipe.name} trains on {recipe.data!r}, whose size is not known: there are "
            f"{', '.join(SIZES)}; a new data set is entered in SIZES of lab/cost.py."
        )
    return SIZES[recipe.data]
