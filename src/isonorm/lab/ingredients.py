"""The data of a recipe, and its networks for it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from .data import DataSet, load
from .data.imagenet import class_names
from .models.registry import CIFAR, IMAGENET
from .recipe import Configuration, Quick, Recipe
from .streams import ImageFolders

#: Images without meaning, where time is all that is measured: how many, of which classes and shape.
NOISE = {"noise-cifar": (50_000, 10, CIFAR), "noise-imagenet": (2_560, 1000, IMAGENET)}


_FEW = 8  # images of so many classes of ImageNet at quick scale


def read_data(
    recipe: Recipe, folder: str, *, quick: bool, verify: bool = True
) -> DataSet | ImageFolders:
    """The data set from its files; at quick scale, a few of its images."""
    if recipe.data == "imagenet":
        data = ImageFolders(Path(folder), num_classes=len(class_names(Path(folder))))
        if quick:
            return replace(data, size=recipe.quick.image_size, num_workers=0, few=_FEW)
        return data
    if recipe.data in NOISE:
        return _noise(recipe, quick=quick)
    data = load(recipe.data, folder, verify=verify)
    return _few(data, recipe.quick) if quick else data


def build(configuration: Configuration, data: DataSet | ImageFolders) -> nn.Module:
    """The network of a configuration, for these images."""
    if isinstance(data, ImageFolders):
        return configuration.build((3, data.size, data.size), data.num_classes)
    channels, height, width = data.train_images.shape[1:]
    return configuration.build((channels, height, width), data.num_classes)


def _noise(recipe: Recipe, *, quick: bool) -> DataSet:
    """Random pixels and labels, the same each time; a fifth or an eighth as many to test on."""
    count, num_classes, (channels, *sides) = NOISE[recipe.data]
    test = count // (5 if recipe.data == "noise-cifar" else 8)
    if quick:
        count, test = recipe.quick.train_images, recipe.quick.test_images
        sides = [recipe.quick.image_size] * 2
    chance = torch.Generator().manual_seed(0)

    def images(n: int) -> Tensor:
        return torch.randint(256, (n, channels, *sides), dtype=torch.uint8, generator=chance)

    def labels(n: int) -> Tensor:
        return torch.randint(num_classes, (n,), generator=chance)

    return DataSet(
        recipe.data, images(count), labels(count), images(test), labels(test), num_classes
    )


def _few(data: DataSet, quick: Quick) -> DataSet:
    """Images from all over the data set, which may be sorted by class."""

    def some(length: int, wanted: int) -> Tensor:
        return torch.linspace(0, length - 1, min(length, wanted)).long()

    train = some(len(data.train_labels), quick.train_images)
    test = some(len(data.test_labels), quick.test_images)
    return replace(
        data,
        train_images=data.train_images[train],
        train_labels=data.train_labels[train],
        test_images=data.test_images[test],
        test_labels=data.test_labels[test],
    )
