"""The data of a recipe, and its networks for it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from .data import DataSet, load
from .recipe import Configuration, Quick, Recipe
from .streams import ImageFolders


def read_data(
    recipe: Recipe, folder: str, *, quick: bool, verify: bool = True
) -> DataSet | ImageFolders:
    """The data set from its files; at quick scale, a few of its images."""
    if recipe.data == "imagenet":
        classes = [place for place in (Path(folder) / "train").glob("*") if place.is_dir()]
        data = ImageFolders(Path(folder), num_classes=max(1, len(classes)))
        if quick:
            return replace(data, size=recipe.quick.image_size, num_workers=0)
        return data
    data = load(recipe.data, folder, verify=verify)
    return _few(data, recipe.quick) if quick else data


def build(configuration: Configuration, data: DataSet | ImageFolders) -> nn.Module:
    """The network of a configuration, for these images."""
    if isinstance(data, ImageFolders):
        return configuration.build((3, data.size, data.size), data.num_classes)
    channels, height, width = data.train_images.shape[1:]
    return configuration.build((channels, height, width), data.num_classes)


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
