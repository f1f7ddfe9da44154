"""Files of a data set: found, checked and read whole, or one sentence about what is wrong."""

from __future__ import annotations

import gzip
import hashlib
import tarfile
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor


class DataError(ValueError):
    """A data set's files are missing, damaged or not what their names say."""


class FilesMissing(DataError):
    """They are not there at all."""


@dataclass(frozen=True)
class Folder:
    """Where the files of a data set are looked for: in a folder, or under a usual name within it.

    ``verify=False`` reads archives whose checksum is not the official one.
    """

    path: Path
    usual_names: tuple[str, ...] = ()
    verify: bool = True

    def find(self, name: str) -> Path | None:
        places = (self.path, *(self.path / usual for usual in self.usual_names))
        return next((place / name for place in places if (place / name).is_file()), None)

    def check(self, path: Path, md5: str) -> Path:
        """The path, if the file is the one that was published."""
        if self.verify and (found := md5_of(path)) != md5:
            raise DataError(
                f"{path} is not the published file: its md5 is {found}, expected {md5}. Delete it "
                "and fetch it again, or pass verify=False (--no-verify) if it differs on purpose."
            )
        return path


def md5_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def read_file(path: Path) -> bytes:
    """The content of a file, unpacked where its name ends in ``.gz``."""
    if path.suffix != ".gz":
        return path.read_bytes()
    try:
        return gzip.decompress(path.read_bytes())
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(_damaged(path, "gzip file", error)) from error


def read_members(path: Path, names: Iterable[str]) -> dict[str, bytes]:
    """Files of a ``.tar.gz`` by name, whatever folder they are in; nothing is unpacked to disk."""
    wanted, found = set(names), dict[str, bytes]()
    try:
        with tarfile.open(path, "r:gz") as archive:
            for member in archive:
                name = Path(member.name).name
                if name in wanted and (file := archive.extractfile(member)) is not None:
                    found[name] = file.read()
    except (EOFError, OSError, tarfile.TarError, zlib.error) as error:
        raise DataError(_damaged(path, ".tar.gz archive", error)) from error
    if lacking := sorted(wanted - found.keys()):
        raise DataError(f"{path} lacks {', '.join(lacking)}: it is not the published archive.")
    return found


def checked_labels(values: np.ndarray, num_classes: int, path: Path, *, first: int = 0) -> Tensor:
    """Classes from 0, if the file's labels are so many whole numbers that begin with ``first``."""
    last = first + num_classes - 1
    wrong = values[~whole_numbers(values, first, last)]
    if len(wrong):
        raise DataError(
            f"{path} holds the label {wrong[0]} where whole numbers from {first} to {last} were "
            "expected: it belongs to another data set or is damaged."
        )
    return torch.from_numpy(values.astype(np.int64)) - first


def whole_numbers(values: np.ndarray, first: int, last: int) -> np.ndarray:
    """Which of the values are whole numbers between these, whatever the type they are kept in."""
    if values.dtype.kind not in "uif":
        return np.zeros(values.shape, bool)
    return (values >= first) & (values <= last) & (values % 1 == 0)


def _damaged(path: Path, kind: str, error: Exception) -> str:
    reason = str(error).rstrip(".")
    return f"{path} is not a whole {kind} ({reason}): delete it and fetch it again."
