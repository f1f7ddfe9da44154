"""What a recipe costs, counted and estimated before anything is trained."""

from __future__ import annotations

import torch
from torch.utils.flop_counter import FlopCounterMode

from .models.registry import CIFAR, FACE, IMAGENET, MNIST
from .recipe import Configuration, Recipe, trainings

#: Training images, classes and shape of the papers' data sets.
SIZES = {
    "mnist": (60_000, 10, MNIST),
    "cifar10": (50_000, 10, CIFAR),
    "cifar100": (50_000, 100, CIFAR),
    "svhn_extra": (604_388, 10, CIFAR),
    "yaleb": (1_810, 38, FACE),
    "pie": (8_665, 68, FACE),
    "imagenet": (1_281_167, 1000, IMAGENET),
}

#: What a device may be expected to do in such networks, in operations a second, far below its peak;
#: and how long a step takes at least.
RATES = {"a CPU core": 2e10, "an H200": 4e13}
SECONDS_PER_STEP = 0.003


def images_seen(recipe: Recipe, seeds: int | None = None) -> int:
    """Training images over all trainings, the searches included."""
    return sum(_images_seen(c, recipe, seeds or recipe.seeds) for c in recipe.configurations)


def operations(recipe: Recipe, seeds: int | None = None) -> float:
    """Floating-point operations of all trainings: those of the matrix products, forward and twice
    that backward, counted on networks without memory.
    """
    _, num_classes, shape = SIZES[recipe.data]
    total, counted = 0.0, dict[str, int]()
    for configuration in recipe.configurations:
        key = f"{configuration.model} {configuration.options}"  # norms hardly count
        if key not in counted:
            with torch.device("meta"), FlopCounterMode(display=False) as counter:
                configuration.build(shape, num_classes).eval()(torch.empty(1, *shape))
            counted[key] = counter.get_total_flops()
        total += 3.0 * counted[key] * _images_seen(configuration, recipe, seeds or recipe.seeds)
    return total


def hours(recipe: Recipe, on: str, seeds: int | None = None) -> float:
    """A rough guess at the time of all trainings on one device."""
    images = SIZES[recipe.data][0]
    steps = sum(
        _images_seen(c, recipe, seeds or recipe.seeds) / (c.plan.batch_size or images)
        for c in recipe.configurations
    )
    seconds = max(operations(recipe, seeds) / RATES[on], SECONDS_PER_STEP * steps)
    return seconds / 3600


def _images_seen(configuration: Configuration, recipe: Recipe, seeds: int) -> int:
    images = SIZES[recipe.data][0]
    return images * configuration.plan.epochs * trainings(configuration, seeds)
