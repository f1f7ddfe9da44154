"""Data sets as tensors, split for training and testing once and for all."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor


@dataclass(frozen=True)
class DataSet:
    """Images (N, channels, height, width) and labels (N,), small enough to lie on the device."""

    name: str
    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor
    num_classes: int

    @property
    def num_features(self) -> int:
        return self.train_images[0].numel()

    def to(self, device: torch.device | str) -> DataSet:
        tensors = {
            name: value.to(device)
            for name, value in vars(self).items()
            if isinstance(value, Tensor)
        }
        return replace(self, **tensors)


def digits(*, test_fraction: float = 0.25, split_seed: int = 0) -> DataSet:
    """The handwritten digits that come with scikit-learn: 1797 images of 8×8 pixels in [0, 1].

    Pixels are not standardized, so that what a normalization does for the first layers shows.
    Training and test set hold every class in the same proportion. The split does not depend on the
    seed of a run: runs differ in initial weights and batches, and are tested on the same images.

    >>> data = digits()
    >>> data.train_images.shape, data.test_images.shape
    (torch.Size([1347, 1, 8, 8]), torch.Size([450, 1, 8, 8]))
    """
    pixels, classes = load_digits(return_X_y=True)
    brightest = 16
    images = torch.from_numpy(pixels / brightest).float().view(-1, 1, 8, 8)
    labels = torch.from_numpy(classes).long()
    train, test = train_test_split(
        range(len(labels)), test_size=test_fraction, stratify=classes, random_state=split_seed
    )
    return DataSet("digits", images[train], labels[train], images[test], labels[test], 10)


DATA_SETS = {"digits": digits}


def load(name: str) -> DataSet:
    """A data set by name."""
    if name not in DATA_SETS:
        raise ValueError(
            f"there is no data set called {name!r}: choose from {', '.join(DATA_SETS)}."
        )
    return DATA_SETS[name]()
