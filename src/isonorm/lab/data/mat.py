"""Matrices of MATLAB files, up to version 7."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from .files import DataError

_HDF5 = b"\x89HDF\r\n\x1a\n"


def read_matrices(path: Path, *names: str) -> list[np.ndarray]:
    """The named matrices of a file, in this order."""
    from scipy.io import loadmat  # takes a while to import, which only these files need

    with path.open("rb") as file:
        head = file.read(16)
    if head.startswith((b"MATLAB 7.3", _HDF5)):
        raise DataError(
            f"{path} is a MATLAB 7.3 file, which is HDF5 inside: save it again in MATLAB with "
            "save(..., '-v7'), or fetch the original."
        )
    try:
        content = loadmat(path, variable_names=names)
    except Exception as error:  # whatever a foreign or damaged file makes scipy stumble over
        reason = (str(error) or type(error).__name__).partition("\n")[0].rstrip(".")
        raise DataError(
            f"{path} was not read as a MATLAB file ({reason}): it is cut short or another file."
        ) from error
    if lacking := [name for name in names if not isinstance(content.get(name), np.ndarray)]:
        raise DataError(f"{path} lacks the matrix {' and '.join(lacking)}: it is another file.")
    return [content[name] for name in names]
