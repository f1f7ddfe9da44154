"""Matrices of MATLAB files, up to version 7."""

from __future__ import annotations

import math
import zlib
from pathlib import Path

import numpy as np

from .files import DataError

_HDF5 = b"\x89HDF\r\n\x1a\n"
_HEADER, _COMPRESSED = 128, 15
_PIECE = 1 << 20
#: What scipy reads with functions that call themselves, or makes as large as a header says.
_NO_MATRICES = ("cell", "struct", "object", "function", "opaque", "sparse", "unknown")


def read_matrices(path: Path, *names: str, most: int, itemsize: int) -> list[np.ndarray]:
    """Return the named matrices of a file, in this order, each of at most ``most`` numbers of
    ``itemsize`` bytes.
    """
    from scipy.io import loadmat, whosmat  # takes a while to import, which only these files need

    with path.open("rb") as file:
        head = file.read(_HEADER)
    if head.startswith((b"MATLAB 7.3", _HDF5)):
        raise DataError(
            f"{path} is a MATLAB 7.3 file, which is HDF5 inside: save it again in MATLAB with "
            "save(..., '-v7'), or fetch the original."
        )
    try:
        _check_unpacked_size(path, head, largest=itemsize * most + _PIECE)
        for name, shape, kind in whosmat(path):
            if name in names and (kind in _NO_MATRICES or not 0 <= math.prod(shape) <= most):
                raise DataError(
                    f"{path} holds {name} as {kind} of {' × '.join(map(str, shape))}, but a matrix "
                    f"of at most {most:,} numbers was expected: it is another file."
                )
        content = loadmat(path, variable_names=names)
    except DataError:
        raise
    except Exception as error:  # whatever a foreign or damaged file makes scipy stumble over
        reason = (str(error) or type(error).__name__).partition("\n")[0].rstrip(".")
        raise DataError(
            f"{path} was not read as a MATLAB file ({reason:.200}): it is cut short or another "
            "file."
        ) from error
    if lacking := [name for name in names if not isinstance(content.get(name), np.ndarray)]:
        raise DataError(f"{path} lacks the matrix {' and '.join(lacking)}: it is another file.")
    return [content[name] for name in names]


def _check_unpacked_size(path: Path, head: bytes, largest: int) -> None:
    """Raise DataError if a compressed element unpacks to more than ``largest`` bytes."""
    order = "big" if head[126:128] == b"MI" else "little"
    with path.open("rb") as file:
        file.seek(_HEADER)
        while len(tag := file.read(8)) == 8:
            kind, size = (int.from_bytes(tag[i : i + 4], order) for i in (0, 4))
            if kind != _COMPRESSED:
                file.seek(size, 1)
                continue
            left, unpacked, unpacker = size, 0, zlib.decompressobj()
            while left and (piece := file.read(min(left, _PIECE))):
                left -= len(piece)
                while piece:
                    unpacked += len(unpacker.decompress(piece, _PIECE))
                    piece = unpacker.unconsumed_tail
                    if unpacked > largest:
                        raise DataError(
                            f"{path} unpacks to more than {largest:,} bytes, which is more than "
                            "the published files have: it is another file, or damaged."
                        )
