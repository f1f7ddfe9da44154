"""Extended Yale-B and PIE as the face-recognition community passes them on.

Each is one ``.mat`` file with a matrix ``fea``, an image of 32 × 32 gray pixels a row, and ``gnd``,
the persons, counted from 1. The files come without a division into training and test images.
"""

from __future__ import annotations

import numpy as np
import torch

from .dataset import DataSet, split
from .files import DataError, FilesMissing, Folder, checked_labels, whole_numbers
from .mat import read_matrices

_SIDE = 32
_MOST_FACES = 11_554  # of PIE


def yaleb(folder: Folder, *, test_fraction: float = 0.25, split_seed: int = 0) -> DataSet:
    """2,414 images of 38 persons under 64 lights, the subset that DBN's Section 4.1 uses."""
    return _faces(folder, "yaleb", "YaleB_32x32.mat", 38, test_fraction, split_seed)


def pie(folder: Folder, *, test_fraction: float = 0.25, split_seed: int = 0) -> DataSet:
    """11,554 images of 68 persons in five nearly frontal poses, as in DBN's Section 4.1."""
    return _faces(folder, "pie", "PIE_32x32.mat", 68, test_fraction, split_seed)


def _faces(
    folder: Folder, name: str, file: str, persons: int, test_fraction: float, split_seed: int
) -> DataSet:
    path = folder.find(file)
    if path is None:
        raise FilesMissing(file)
    most = _MOST_FACES * _SIDE * _SIDE
    faces, identities = read_matrices(path, "fea", "gnd", most=most, itemsize=8)
    identities = identities.ravel()
    # Copies of these files differ in type, uint8 or double; the values are the same.
    if faces.shape != (len(identities), _SIDE * _SIDE) or not whole_numbers(faces, 0, 255).all():
        raise DataError(
            f"{path} is not a matrix of faces: expected fea of n × {_SIDE * _SIDE} whole numbers "
            f"from 0 to 255 and n persons in gnd; it has {faces.dtype} "
            f"{' × '.join(map(str, faces.shape))} and {len(identities)}."
        )
    # MATLAB stores a matrix column by column: upright faces need the axes exchanged.
    upright = torch.from_numpy(faces.astype(np.uint8)).view(-1, 1, _SIDE, _SIDE).mT.contiguous()
    labels = checked_labels(identities, persons, path, first=1)
    try:
        return split(name, upright, labels, persons, test_size=test_fraction, seed=split_seed)
    except ValueError as error:
        raise DataError(f"{path}: {error}") from error
