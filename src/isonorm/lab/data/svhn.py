"""Street View House Numbers, cropped digits (format 2): ``.mat`` files."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from .dataset import DataSet
from .files import DataError, FilesMissing, Folder, checked_labels
from .mat import read_matrices

MD5 = {
    "train_32x32.mat": "e26dedcc434d2e4c54c9b2d4a06d8373",
    "test_32x32.mat": "eb5a983be6a315427106f1b164d9cef3",
    "extra_32x32.mat": "a93ce644f1a588dc4d68dda5feec44a7",
}
_IMAGES = {"train": 73_257, "test": 26_032, "extra": 531_131}


def svhn(folder: Folder) -> DataSet:
    """73,257 color images of 32 × 32 to train on, 26,032 to test on, 10 digits."""
    return DataSet("svhn", *_part(folder, "train"), *_part(folder, "test"), 10)


def svhn_extra(folder: Folder) -> DataSet:
    """As svhn, with the 531,131 extra images to train on, too."""
    base = svhn(folder)
    images, labels = _part(folder, "extra")
    return DataSet(
        "svhn_extra",
        torch.cat([base.train_images, images]),
        torch.cat([base.train_labels, labels]),
        base.test_images,
        base.test_labels,
        10,
    )


def _part(folder: Folder, part: str) -> tuple[Tensor, Tensor]:
    name = f"{part}_32x32.mat"
    path = folder.find(name)
    if path is None:
        raise FilesMissing(name)
    folder.check(path, MD5[name])
    images, labels = read_matrices(path, "X", "y", most=_IMAGES[part] * 3 * 32 * 32, itemsize=1)
    labels = labels.ravel()
    if images.dtype != np.uint8 or images.shape != (32, 32, 3, len(labels)):
        raise DataError(
            f"{path} is not SVHN's cropped digits: expected X of 32 × 32 × 3 × n bytes and n "
            f"labels; it has {images.dtype} {' × '.join(map(str, images.shape))} and {len(labels)}."
        )
    upright = torch.from_numpy(images).permute(3, 2, 0, 1).contiguous()
    # MATLAB counts from 1: the tenth class is the digit 0.
    digits = (checked_labels(labels, 10, path, first=1) + 1) % 10
    return upright, digits
