"""The digits that need no download."""

from __future__ import annotations

import torch

from .dataset import DataSet, split


def digits(*, test_fraction: float = 0.25, split_seed: int = 0) -> DataSet:
    """The handwritten digits that come with scikit-learn: 1797 images of 8×8 pixels in [0, 1].

    Pixels are not standardized, so that what a normalization does for the first layers shows.
    Training and test set hold every class in the same proportion. The split does not depend on the
    seed of a run: runs differ in initial weights and batches, and are tested on the same images.

    >>> data = digits()
    >>> data.train_images.shape, data.test_images.shape
    (torch.Size([1347, 1, 8, 8]), torch.Size([450, 1, 8, 8]))
    """
    from sklearn.datasets import load_digits  # takes a second to import

    pixels, classes = load_digits(return_X_y=True)
    brightest = 16
    images = torch.from_numpy(pixels / brightest).float().view(-1, 1, 8, 8)
    labels = torch.from_numpy(classes).long()
    return split("digits", images, labels, 10, test_size=test_fraction, seed=split_seed)
