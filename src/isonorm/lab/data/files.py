"""Files of a data set: found, checked and read whole, or one sentence about what is wrong."""

from __future__ import annotations

import gzip
import hashlib
import tarfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

#: What an archive may hold beside the files that are read: headers, a read-me, names of classes.
_REST_OF_AN_ARCHIVE, _MOST_MEMBERS = 1 << 20, 100


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


class _Bounded:
    """What is unpacked from a file, up to a limit: a small file may unpack to terabytes."""

    def __init__(self, unpacked: gzip.GzipFile, path: Path, largest: int) -> None:
        self._unpacked, self._path, self._left = unpacked, path, largest
        self._largest = largest

    def read(self, size: int) -> bytes:
        content = self._unpacked.read(min(size, self._left + 1))
        self._left -= len(content)
        if self._left < 0:
            raise DataError(
                f"{self._path} unpacks to more than {self._largest:,} bytes, which is more than "
                "the published files have: it is another file, or damaged."
            )
        return content


def read_file(path: Path, largest: int) -> bytes:
    """Return the content of a file, unpacked where its name ends in ``.gz``: then at most
    ``largest`` bytes.
    """
    if path.suffix != ".gz":
        return path.read_bytes()
    try:
        with gzip.open(path) as unpacked:
            return _Bounded(unpacked, path, largest).read(largest + 1)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(_damaged(path, "gzip file", error)) from error


def read_members(path: Path, largest: Mapping[str, int]) -> dict[str, bytes]:
    """Return files of a ``.tar.gz`` by name, whatever folder they are in; nothing is unpacked to
    disk. The names come with the most bytes that each may have.
    """
    found = dict[str, bytes]()
    try:
        with gzip.open(path) as unpacked:
            most = sum(largest.values()) + _REST_OF_AN_ARCHIVE
            bounded = _Bounded(unpacked, path, most)
            with tarfile.open(fileobj=bounded, mode="r|") as archive:  # type: ignore[call-overload]
                for number, member in enumerate(archive):
                    name = Path(member.name).name
                    # tarfile would read on to where a member says it ends, block by block
                    if number >= _MOST_MEMBERS or not 0 <= archive.offset <= most:
                        raise DataError(
                            f"{path} holds more than {_MOST_MEMBERS} files or {most:,} bytes: it "
                            "is another archive, or damaged."
                        )
                    if name in largest:
                        found[name] = _content(archive, member, path, largest[name])
            while bounded.read(1 << 20):  # at the end is a checksum of everything
                pass
    except DataError:
        raise
    except Exception as error:  # whatever a foreign or damaged file makes tarfile stumble over
        raise DataError(_damaged(path, ".tar.gz archive", error)) from error
    if lacking := sorted(largest.keys() - found.keys()):
        raise DataError(f"{path} lacks {', '.join(lacking)}: it is not the published archive.")
    return found


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo, path: Path, largest: int) -> bytes:
    """Return the content of a plain file in an archive: links, and files with holes, are none."""
    if not member.isreg() or member.issparse() or not 0 <= member.size <= largest:
        raise DataError(
            f"{path} holds {Path(member.name).name} otherwise than as a plain file of at most "
            f"{largest:,} bytes: it is not the published archive."
        )
    file = archive.extractfile(member)
    assert file is not None
    return file.read()


def checked_labels(values: np.ndarray, num_classes: int, path: Path, *, first: int = 0) -> Tensor:
    """Return classes from 0, if the labels are so many whole numbers that begin with ``first``."""
    last = first + num_classes - 1
    if not len(values):
        raise DataError(f"{path} holds no images: it is empty or cut short. Fetch it again.")
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
    return (values >= first) & (values <= last) & (np.floor(values) == values)


def _damaged(path: Path, kind: str, error: Exception) -> str:
    reason = " ".join(str(error).split())[:200].rstrip(".") or type(error).__name__
    return f"{path} is not a whole {kind} ({reason}): delete it and fetch it again."
