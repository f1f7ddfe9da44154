"""MNIST from its official files, the IDX format of Yann LeCun's page."""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor


class Mnist(NamedTuple):
    """Pixels in [0, 1], as they are: (N, 1, 28, 28) images and (N,) labels."""

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor


def read_idx(path: Path) -> Tensor:
    """A file of unsigned bytes: 0, 0, 8, the number of dimensions, their sizes, the data."""
    content = path.read_bytes()
    dims = content[3] if content[:3] == b"\x00\x00\x08" and len(content) > 3 else 0
    header = 4 + 4 * dims
    sizes = [int.from_bytes(content[i : i + 4], "big") for i in range(4, header, 4)]
    if dims == 0 or len(content) != header + prod(sizes):
        raise ValueError(
            f"{path} is not an IDX file of bytes, or is cut short: unpack the official file again."
        )
    return torch.frombuffer(bytearray(content[header:]), dtype=torch.uint8).view(sizes)


def load_mnist(folder: Path) -> Mnist:
    """The data set from a folder with the four unpacked files, or one above ``MNIST/raw``."""
    raw = folder / "MNIST" / "raw"
    raw = raw if raw.is_dir() else folder
    parts = []
    for part in ("train", "t10k"):
        for kind in ("images-idx3-ubyte", "labels-idx1-ubyte"):
            path = raw / f"{part}-{kind}"
            if not path.is_file():
                raise FileNotFoundError(
                    f"{path} is missing: --data wants a folder with MNIST's four official files, "
                    "unpacked."
                )
            parts.append(read_idx(path))
    return Mnist(*(p.float().div_(255).unsqueeze(1) if p.dim() == 3 else p.long() for p in parts))
