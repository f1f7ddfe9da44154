"""Pickles of strangers: plain values and arrays of bytes are read, and nothing in them is run.

A pickle is a program: it may call whatever it can name. What CIFAR's pickles name serves to rebuild
arrays of bytes; each of these names leads to a stand-in below, and every other one is refused. Not
even numpy's own rebuilding is reached, which was never meant for untrusted input.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

import numpy as np


class ForbiddenName(pickle.UnpicklingError):
    """The pickle asks for something that data does not need."""


class _Kind:
    """Stands for ``numpy.dtype``: what an array's elements are, by its code."""

    def __init__(self, code: object, *_: object) -> None:
        self.code = code.decode() if isinstance(code, bytes) else code

    def __setstate__(self, state: object) -> None:
        """Byte order and the like, which bytes do not have."""


class _Array:
    """Stands for ``numpy.ndarray``: empty when made, filled by the state that follows."""

    def __init__(self, *_: object) -> None:
        self.values = np.empty(0, np.uint8)

    def __setstate__(self, state: tuple[int, tuple[int, ...], _Kind, bool, bytes]) -> None:
        _, shape, kind, by_columns, content = state
        if not isinstance(kind, _Kind) or kind.code not in ("u1", "|u1"):
            raise pickle.UnpicklingError("an array's elements are not unsigned bytes")
        order = "F" if by_columns else "C"
        self.values = np.frombuffer(content, np.uint8).reshape(shape, order=order)


def _encode(text: str, encoding: str) -> bytes:
    """Stands for ``_codecs.encode``, by which python 3 writes bytes into an old kind of pickle."""
    if encoding not in ("latin1", b"latin1"):
        raise pickle.UnpicklingError(f"text is encoded as {encoding!r}, not latin1")
    return text.encode("latin1")


_STAND_INS = {
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Kind,
    ("_codecs", "encode"): _encode,
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module_name: str, global_name: str, /) -> Any:
        try:
            return _STAND_INS[module_name, global_name]
        except KeyError:
            raise ForbiddenName(f"it asks for {module_name}.{global_name}") from None


def read_pickle(content: bytes) -> dict[str, Any]:
    """A dictionary of plain values and arrays of bytes, its keys as text.

    >>> read_pickle(pickle.dumps({"labels": [3, 1]}))
    {'labels': [3, 1]}
    >>> read_pickle(pickle.dumps(print))
    Traceback (most recent call last):
    ...
    isonorm.lab.data.pickles.ForbiddenName: it asks for builtins.print
    """
    try:
        value = _Unpickler(io.BytesIO(content), encoding="bytes").load()
    except pickle.UnpicklingError:
        raise
    except Exception as error:  # a damaged pickle can make its reader stumble anywhere
        raise pickle.UnpicklingError(str(error) or type(error).__name__) from error
    if not isinstance(value, dict):
        raise pickle.UnpicklingError(f"it holds a {type(value).__name__}, not a dictionary")
    return {
        key.decode() if isinstance(key, bytes) else str(key): item.values
        if isinstance(item, _Array)
        else item
        for key, item in value.items()
    }
