"""Numbers as Python has them."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any


def plain(value: Any) -> Any:
    """numpy's and other libraries' numbers as int or float, so that a repr, a checkpoint and a
    compiler see nothing else. What is not a number is returned unchanged, for a check to refuse.

    >>> import numpy
    >>> plain(numpy.int64(4)), plain(numpy.float32(0.5)), plain("4")
    (4, 0.5, '4')
    """
    # Asked first, so that a compiler, which sees Python's own, need not know abstract classes.
    if value is None or type(value) in (int, float, bool):
        return value
    if isinstance(value, Integral):
        return int(value)
    return float(value) if isinstance(value, Real) else value


def positive(name: str, value: Any, otherwise: str = "") -> int:
    """A count, or a size; ``otherwise`` tells what else would have been taken.

    >>> positive("num_regions", 0)
    Traceback (most recent call last):
        ...
    ValueError: num_regions must be a positive integer; got 0.
    """
    value = plain(value)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name} must be a positive integer{otherwise}; got {value!r}.")
    return value
