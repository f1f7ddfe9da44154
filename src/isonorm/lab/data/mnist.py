"""MNIST in its IDX files, packed with gzip or not."""

from __future__ import annotations

import math
import struct
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from .dataset import DataSet
from .files import DataError, FilesMissing, Folder, checked_labels, read_file

MD5 = {
    "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
    "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
    "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
}
_IMAGES = 60_000
_PIXELS = 28 * 28
_UNSIGNED_BYTE = 0x08  # the only element type of IDX that MNIST uses


def mnist(folder: Folder) -> DataSet:
    """60,000 images of 28 × 28 gray pixels to train on, 10,000 to test on, 10 digits."""
    train_images, train_labels = _part(folder, "train")
    test_images, test_labels = _part(folder, "t10k")
    return DataSet("mnist", train_images, train_labels, test_images, test_labels, 10)


def _part(folder: Folder, part: str) -> tuple[Tensor, Tensor]:
    images_at = _find(folder, f"{part}-images-idx3-ubyte")
    labels_at = _find(folder, f"{part}-labels-idx1-ubyte")
    images = torch.from_numpy(read_idx(images_at, 3)).unsqueeze(1)
    labels = checked_labels(read_idx(labels_at, 1), 10, labels_at)
    if len(images) != len(labels):
        raise DataError(
            f"{images_at} holds {len(images)} images and {labels_at} {len(labels)} labels: "
            "they do not belong together."
        )
    return images, labels


def _find(folder: Folder, name: str) -> Path:
    if (plain := folder.find(name)) is not None:
        return plain
    if (packed := folder.find(f"{name}.gz")) is not None:
        return folder.check(packed, MD5[packed.name])
    raise FilesMissing(f"{name}.gz")


def read_idx(path: Path, rank: int) -> np.ndarray:
    """Return an array of bytes: 0, 0, the type, the rank, each size in four bytes, the elements."""
    header = 4 * (1 + rank)
    content = read_file(path, header + _IMAGES * (_PIXELS if rank == 3 else 1))
    if content[:4] != bytes([0, 0, _UNSIGNED_BYTE, rank]) or len(content) < header:
        raise DataError(
            f"{path} is not an IDX file of unsigned bytes of rank {rank}: it begins with "
            f"{content[:4].hex(' ') or 'nothing'}."
        )
    shape = struct.unpack(f">{rank}I", content[4:header])
    if len(content) - header != math.prod(shape):
        raise DataError(
            f"{path} holds {len(content) - header} bytes after its header, which announces "
            f"{' × '.join(map(str, shape))} = {math.prod(shape)}: delete it and fetch it again."
        )
    if 0 in shape:
        raise DataError(
            f"{path} announces {' × '.join(map(str, shape))} elements, which are none: delete it "
            "and fetch it again."
        )
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape).copy()
