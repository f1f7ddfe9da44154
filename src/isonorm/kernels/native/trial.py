"""A trial of a new library, in a process of its own: a library that ends Python ends only that.

``python trial.py LIBRARY OPENMP REAL`` loads the library and has it measure a few numbers. One that
is made with a sanitizer, for another CPU, or by other rules for calls, ends the process or gives
other numbers; one made with ``-ffast-math`` changes the arithmetic of whoever loads it.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any

#: Features, samples, and threads of the trial.
D, M, THREADS = 5, 40, 2
_SMALLEST = 5e-324


def measured(library: ctypes.CDLL, real: Any, x: list[list[float]]) -> list[float]:
    """Return the mean and the covariance of x (D, M) as the library finds them."""
    view = (ctypes.c_int64 * 10)(1, 1, M, D, 1, 0, 0, 1, M, 1)
    numbers = (real * (D * M))(*(value for row in x for value in row))
    mean, rest, cov = (real * D)(), (real * D)(), (real * (D * D))()
    library.room_of.restype = ctypes.c_int64
    room = (real * library.room_of(view, 1, THREADS))()
    library.moments(numbers, view, mean, rest, cov, room, ctypes.c_int(THREADS))
    return [*mean, *cov]


def expected(x: list[list[float]]) -> list[float]:
    """Return the same as their definitions say."""
    means = [sum(row) / M for row in x]
    centered = [[value - mean for value in row] for row, mean in zip(x, means, strict=True)]
    pairs = ((a, b) for a in centered for b in centered)
    return means + [sum(p * q for p, q in zip(a, b, strict=True)) / M for a, b in pairs]


def main(path: str, openmp: str, real: str) -> None:
    ctypes.CDLL(openmp)  # torch's, which the library finds by its name
    library = ctypes.CDLL(path)
    x = [[(7 * i + 3 * k * k) % 11 + 0.5 * i for k in range(M)] for i in range(D)]
    found = measured(library, {"float": ctypes.c_float, "double": ctypes.c_double}[real], x)
    if not all(abs(a - b) < 1e-4 for a, b in zip(found, expected(x), strict=True)):
        sys.exit("error: it computes other numbers than it should")
    if not _SMALLEST * float(len(path) > 0):
        sys.exit("error: it makes this process round small numbers to zero")


if __name__ == "__main__":
    main(*sys.argv[1:])
