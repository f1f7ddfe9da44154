"""CIFAR-10 and CIFAR-100: the binary and the python release, packed or unpacked."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from .dataset import DataSet
from .files import DataError, FilesMissing, Folder, checked_labels, read_members
from .pickles import read_pickle

_SHAPE = (3, 32, 32)
_PIXELS = 3 * 32 * 32
_BESIDE_PIXELS = 128  # bytes for each image's labels and name: the published files need up to 40
_TEST_IMAGES = 10_000

Decoder = Callable[[bytes, Path], tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True)
class Release:
    """One of the forms in which the authors published the data."""

    archive: str
    md5: str
    folder: str  # as the archive unpacks
    train: tuple[str, ...]
    test: str
    decode: Decoder  # the content of one file to images (n, 3072) and labels (n,)
    images: int  # in each training file; there are 10,000 in the one to test on

    @property
    def largest(self) -> dict[str, int]:
        """The most bytes that each file may have: its images, with labels and names."""
        counts = {**dict.fromkeys(self.train, self.images), self.test: _TEST_IMAGES}
        return {name: count * (_PIXELS + _BESIDE_PIXELS) for name, count in counts.items()}


def cifar10(folder: Folder) -> DataSet:
    """50,000 color images of 32 × 32 to train on, 10,000 to test on, 10 classes."""
    return _read(folder, "cifar10", CIFAR10, num_classes=10)


def cifar100(folder: Folder) -> DataSet:
    """As CIFAR-10, with 100 (fine) classes."""
    return _read(folder, "cifar100", CIFAR100, num_classes=100)


def _binary(label_bytes: int) -> Decoder:
    """Records of label bytes, of which the last is the class, and an image."""

    def decode(content: bytes, path: Path) -> tuple[np.ndarray, np.ndarray]:
        record = label_bytes + _PIXELS
        count, rest = divmod(len(content), record)
        if rest or not count:
            raise DataError(
                f"{path} has {len(content)} bytes, not a multiple of the {record} that a label and "
                "an image take: it is cut short or another file. Fetch it again."
            )
        records = np.frombuffer(content, np.uint8).reshape(count, record)
        return records[:, label_bytes:], records[:, label_bytes - 1]

    return decode


def _python(labels_key: str) -> Decoder:
    """A pickled dictionary of an array of images and a list of labels."""

    def decode(content: bytes, path: Path) -> tuple[np.ndarray, np.ndarray]:
        try:
            batch = read_pickle(content)
        except pickle.UnpicklingError as error:
            raise DataError(f"{path} was not read as a CIFAR pickle: {error}.") from error
        images, labels = batch.get("data"), batch.get(labels_key)
        if not (
            isinstance(images, np.ndarray)
            and isinstance(labels, list)
            and all(type(label) is int for label in labels)
            and images.shape == (len(labels), _PIXELS)
        ):
            raise DataError(
                f"{path} is not a CIFAR pickle: expected 'data', n × {_PIXELS} bytes, and "
                f"'{labels_key}', a list of n numbers; it has {_listed(batch)}."
            )
        bits = max((label.bit_length() for label in labels), default=0)
        if bits > 63:
            raise DataError(
                f"{path} holds a label of {bits} bits, which is no class: it is damaged."
            )
        return images, np.array(labels, np.int64)

    return decode


def _listed(names: Iterable[str]) -> str:
    """Return the first names in one line that can be printed."""
    few = [f"{name:.40}" for name in islice(names, 10)]
    return ", ".join(name if name.isprintable() else ascii(name) for name in few) or "nothing"


_BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))

CIFAR10 = (
    Release(
        "cifar-10-binary.tar.gz",
        "c32a1d4ab5d03f1284b67883e8d87530",
        "cifar-10-batches-bin",
        tuple(f"{name}.bin" for name in _BATCHES),
        "test_batch.bin",
        _binary(label_bytes=1),
        10_000,
    ),
    Release(
        "cifar-10-python.tar.gz",
        "c58f30108f718f92721af3b95e74349a",
        "cifar-10-batches-py",
        _BATCHES,
        "test_batch",
        _python("labels"),
        10_000,
    ),
)
CIFAR100 = (
    Release(
        "cifar-100-binary.tar.gz",
        "03b5dce01913d631647c71ecec9e9cb8",
        "cifar-100-binary",
        ("train.bin",),
        "test.bin",
        _binary(label_bytes=2),
        50_000,
    ),
    Release(
        "cifar-100-python.tar.gz",
        "eb9058c3a382ffc7106e4002c42a8d85",
        "cifar-100-python",
        ("train",),
        "test",
        _python("fine_labels"),
        50_000,
    ),
)


def _read(folder: Folder, name: str, releases: Sequence[Release], *, num_classes: int) -> DataSet:
    release, contents = _contents(folder, releases)

    def part(files: Sequence[str]) -> tuple[Tensor, Tensor]:
        images, labels = [], []
        for file in files:
            path, content = contents[file]
            file_images, file_labels = release.decode(content, path)
            images.append(torch.tensor(file_images).view(-1, *_SHAPE))
            labels.append(checked_labels(file_labels, num_classes, path))
        counts = [len(file_labels) for file_labels in labels]
        if len(set(counts)) > 1:
            raise DataError(
                f"{', '.join(files)} in {contents[files[0]][0].parent} hold "
                f"{', '.join(map(str, counts))} images where equal numbers were expected: "
                "the shorter are cut off. Fetch them again."
            )
        return torch.cat(images), torch.cat(labels)

    return DataSet(name, *part(release.train), *part([release.test]), num_classes)


def _contents(
    folder: Folder, releases: Sequence[Release]
) -> tuple[Release, dict[str, tuple[Path, bytes]]]:
    """The files of the first release that is there, unpacked or else in its archive."""
    for release in releases:
        names = (*release.train, release.test)
        place = Folder(folder.path, (release.folder, *folder.usual_names))
        paths = {name: path for name in names if (path := place.find(name)) is not None}
        if len(paths) == len(names):
            return release, {name: (path, path.read_bytes()) for name, path in paths.items()}
    for release in releases:
        if (archive := folder.find(release.archive)) is not None:
            folder.check(archive, release.md5)
            members = read_members(archive, release.largest)
            return release, {name: (archive / name, member) for name, member in members.items()}
    raise FilesMissing(releases[0].archive)
