"""Numeric matrices of MATLAB files, versions 5 to 7.

A file is a header and elements, compressed or not; an element is a tag (type and size) and what it
says; a matrix is an element of elements: flags, dimensions, name, numbers. scipy's reader is not
used: a damaged byte can end the whole process in its compiled code.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np

from .files import DataError

_HDF5 = b"\x89HDF\r\n\x1a\n"
_HEADER, _TAG, _PIECE = 128, 8, 1 << 20
#: Types of elements: of numbers, by numpy's names, and two others.
_NUMBERS = {
    1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8",
}  # fmt: skip
_MATRIX, _COMPRESSED = 14, 15
#: Classes of matrices that are numbers, and others.
_NUMERIC = range(6, 16)
_OTHERS = {1: "cell", 2: "struct", 3: "object", 4: "char", 5: "sparse", 16: "function"}
_COMPLEX = 0x0800


class _Element(NamedTuple):
    kind: int
    content: memoryview


def read_matrices(path: Path, *names: str, most: int, itemsize: int) -> list[np.ndarray]:
    """Return the named matrices of a file, in this order, each of at most ``most`` numbers of
    ``itemsize`` bytes.
    """
    found: dict[str, np.ndarray] = {}
    with path.open("rb") as file:
        head = file.read(_HEADER)
        if head.startswith((b"MATLAB 7.3", _HDF5)):
            raise DataError(
                f"{path} is a MATLAB 7.3 file, which is HDF5 inside: save it again in MATLAB with "
                "save(..., '-v7'), or fetch the original."
            )
        try:
            order = {b"IM": "<", b"MI": ">"}[head[126:128]]
            for matrix in _matrices(file, path, order, largest=itemsize * most + _PIECE):
                _take(matrix, names, path, order, most, found)
        except (KeyError, ValueError, struct.error, zlib.error) as error:
            if isinstance(error, DataError):
                raise
            raise DataError(
                f"{path} was not read as a MATLAB file of version 5 to 7: it is cut short or "
                "another file."
            ) from error
    if lacking := [name for name in names if name not in found]:
        raise DataError(f"{path} lacks the matrix {' and '.join(lacking)}: it is another file.")
    return [found[name] for name in names]


def _matrices(file: IO[bytes], path: Path, order: str, largest: int) -> Iterator[memoryview]:
    """Yield what each matrix of a file holds; raise DataError for more than ``largest`` bytes."""
    while tag := file.read(_TAG):
        kind, size = struct.unpack(f"{order}II", tag)
        if size > largest:
            raise _too_large(path, largest)
        if kind == _COMPRESSED:
            kind, content = _element(
                memoryview(_unpacked(file, size, order, path, largest)), order
            )[0]
        else:
            content = memoryview(file.read(size))
            if len(content) < size:
                raise ValueError("cut short")
        if kind == _MATRIX:
            yield content


def _too_large(path: Path, largest: int) -> DataError:
    return DataError(
        f"{path} unpacks to more than {largest:,} bytes, which is more than the published files "
        "have: it is another file, or damaged."
    )


def _unpacked(file: IO[bytes], size: int, order: str, path: Path, largest: int) -> bytearray:
    """Return a compressed element, as much of it as its tag says that there is."""
    content, wanted, count = bytearray(), _TAG, 0
    for piece in _pieces(file, size):
        count += len(piece)
        if count > largest:
            raise _too_large(path, largest)
        if len(content) < wanted:
            content += piece
            if len(content) >= _TAG:
                wanted = _TAG + struct.unpack_from(f"{order}4xI", content)[0]
    return content


def _pieces(file: IO[bytes], size: int) -> Iterator[bytes]:
    """Yield what the next ``size`` bytes of a file unpack to, in pieces."""
    unpacker = zlib.decompressobj()
    while size and (packed := file.read(min(size, _PIECE))):
        size -= len(packed)
        while packed:
            yield unpacker.decompress(packed, _PIECE)
            packed = unpacker.unconsumed_tail
    if size or not unpacker.eof:
        raise ValueError("cut short")


def _element(content: memoryview, order: str) -> tuple[_Element, memoryview]:
    """Return the first element of several, and the others."""
    kind, size = struct.unpack(f"{order}II", content[:_TAG])
    if kind >> 16:  # type and size share 4 bytes, and so do the numbers
        kind, size, start, end = kind & 0xFFFF, kind >> 16, 4, _TAG
    else:
        start, end = _TAG, _TAG + size + -size % 8
    if start + size > min(end, len(content)):
        raise ValueError("cut short")
    return _Element(kind, content[start : start + size]), content[end:]


def _take(
    matrix: memoryview,
    names: tuple[str, ...],
    path: Path,
    order: str,
    most: int,
    found: dict[str, np.ndarray],
) -> None:
    """Read a matrix into ``found`` if it has one of the names; raise DataError if it is of another
    kind or size.
    """
    flags, rest = _element(matrix, order)
    sizes, rest = _element(rest, order)
    title, rest = _element(rest, order)
    name = bytes(title.content).decode("latin-1")
    if name not in names:
        return
    (flag,) = struct.unpack_from(f"{order}I", flags.content)
    shape = struct.unpack(f"{order}{len(sizes.content) // 4}i", sizes.content)
    fits = min(shape, default=-1) >= 0 and math.prod(shape) <= most
    if flag & 0xFF not in _NUMERIC or flag & _COMPLEX or not fits:
        kind = "complex" if flag & _COMPLEX else _OTHERS.get(flag & 0xFF, "numbers")
        raise DataError(
            f"{path} holds {name} as {kind} of {' × '.join(map(str, shape))}, but a matrix of at "
            f"most {most:,} numbers was expected: it is another file."
        )
    numbers, _ = _element(rest, order)
    values = np.frombuffer(numbers.content, np.dtype(order + _NUMBERS[numbers.kind]))
    found[name] = values.astype(values.dtype.newbyteorder("=")).reshape(shape, order="F")
