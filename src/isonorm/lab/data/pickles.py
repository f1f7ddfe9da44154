"""Pickles of strangers: plain values and arrays of bytes are read, and nothing in them is run.

A pickle is a program: it may call whatever it can name, and Python's own reader gives it as much
memory as it asks for. This reader knows the instructions that CIFAR's pickles consist of. What they
name serves to rebuild arrays of bytes; each of these names leads to a stand-in below, and every
other one is refused. No instruction copies what another has made, so that what is read takes memory
in proportion to the file.
"""

from __future__ import annotations

import pickle
import pickletools
from collections.abc import Callable
from typing import Any

import numpy as np


class ForbiddenName(pickle.UnpicklingError):
    """The pickle asks for something that data does not need."""


class _Kind:
    """Stands for ``numpy.dtype``: what an array's elements are, by its code."""

    def __init__(self, code: object = None, *_: object) -> None:
        self.code = code.decode() if isinstance(code, bytes) else code

    def build(self, state: object) -> None:
        """Ignore byte order and the like, which bytes do not have."""


class _Array:
    """Stands for ``numpy.ndarray``: empty when made, filled by the state that follows."""

    def __init__(self, *_: object) -> None:
        self.values = np.empty(0, np.uint8)

    def build(self, state: tuple[int, tuple[int, ...], _Kind, bool, bytes]) -> None:
        _, shape, kind, by_columns, content = state
        if not isinstance(kind, _Kind) or kind.code not in ("u1", "|u1"):
            raise pickle.UnpicklingError("an array's elements are not unsigned bytes")
        order = "F" if by_columns else "C"
        self.values = np.frombuffer(content, np.uint8).reshape(shape, order=order)


class _Encode:
    """Stands for ``_codecs.encode``, by which python 3 writes bytes into an old kind of pickle."""

    def __init__(self, content: bytes) -> None:
        self.left = len(content)  # bytes that may still be made: more than the file has are a trick

    def __call__(self, text: str, encoding: str) -> bytes:
        if encoding not in ("latin1", b"latin1"):
            raise pickle.UnpicklingError("text is encoded otherwise than as latin1")
        self.left -= len(text)
        if self.left < 0:
            raise pickle.UnpicklingError("it encodes more text than it holds")
        return text.encode("latin1")


class _Reader:
    """Runs a pickle's instructions on a stack: each method is called as one of them, in small
    letters, and ``_SAME`` names those that do the same.
    """

    def __init__(self, content: bytes) -> None:
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}
        self.names = {
            **dict.fromkeys(_ARRAYS, _Array), ("numpy", "dtype"): _Kind,
            ("_codecs", "encode"): _Encode(content),
        }  # fmt: skip

    def step(self, name: str, argument: Any) -> None:
        name = _SAME.get(name, name.lower())
        method: Callable[[Any], None] | None = getattr(self, f"op_{name}", None)
        if method is None:
            raise pickle.UnpicklingError(f"it has the instruction {name}, which data does not need")
        method(argument)

    def since_mark(self) -> list[Any]:
        """Take what was put on the stack since the last mark."""
        start = self.marks.pop()
        items = self.stack[start:]
        del self.stack[start:]
        return items

    def last(self, count: int) -> list[Any]:
        """Take so many values from the stack, all since the last mark."""
        start = len(self.stack) - count
        if start < (self.marks[-1] if self.marks else 0):
            raise pickle.UnpicklingError("it takes more values than it has")
        items = self.stack[start:]
        del self.stack[start:]
        return items

    def top(self) -> Any:
        """Return the last value on the stack, which stays there."""
        (value,) = self.last(1)
        self.stack.append(value)
        return value

    def op_value(self, argument: Any) -> None:
        self.stack.append(argument)

    def op_bytes(self, argument: Any) -> None:
        """A text of python 2, which is bytes."""
        self.stack.append(argument.encode("latin1"))

    def op_ignored(self, argument: Any) -> None:
        pass

    def op_mark(self, _: Any) -> None:
        self.marks.append(len(self.stack))

    def op_none(self, _: Any) -> None:
        self.stack.append(None)

    def op_newtrue(self, _: Any) -> None:
        self.stack.append(True)

    def op_newfalse(self, _: Any) -> None:
        self.stack.append(False)

    def op_empty_list(self, _: Any) -> None:
        self.stack.append([])

    def op_empty_tuple(self, _: Any) -> None:
        self.stack.append(())

    def op_empty_dict(self, _: Any) -> None:
        self.stack.append({})

    def op_list(self, _: Any) -> None:
        self.stack.append(self.since_mark())

    def op_tuple(self, _: Any) -> None:
        self.stack.append(tuple(self.since_mark()))

    def op_dict(self, _: Any) -> None:
        items = self.since_mark()
        self.stack.append({})
        self.extend_dict(items)

    def op_tuple1(self, _: Any) -> None:
        self.stack.append(tuple(self.last(1)))

    def op_tuple2(self, _: Any) -> None:
        self.stack.append(tuple(self.last(2)))

    def op_tuple3(self, _: Any) -> None:
        self.stack.append(tuple(self.last(3)))

    def op_append(self, _: Any) -> None:
        self.extend_list(self.last(1))

    def op_appends(self, _: Any) -> None:
        self.extend_list(self.since_mark())

    def op_setitem(self, _: Any) -> None:
        self.extend_dict(self.last(2))

    def op_setitems(self, _: Any) -> None:
        self.extend_dict(self.since_mark())

    def op_put(self, argument: int) -> None:
        self.memo[argument] = self.top()

    def op_memoize(self, _: Any) -> None:
        self.memo[len(self.memo)] = self.top()

    def op_get(self, argument: int) -> None:
        self.stack.append(self.memo[argument])

    def op_global(self, argument: str) -> None:
        self.named(*argument.split(" ", 1))

    def op_stack_global(self, _: Any) -> None:
        module, name = self.last(2)
        if not isinstance(module, str) or not isinstance(name, str):
            raise pickle.UnpicklingError("it asks for a name that is no text")
        self.named(module, name)

    def op_reduce(self, _: Any) -> None:
        function, arguments = self.last(2)
        if function not in self.names.values():
            raise pickle.UnpicklingError("it calls what is no function")
        if not isinstance(arguments, tuple):
            raise pickle.UnpicklingError("it calls a function without a tuple of arguments")
        self.stack.append(function(*arguments))

    def op_build(self, _: Any) -> None:
        (state,), value = self.last(1), self.top()
        if not isinstance(value, (_Array, _Kind)):
            raise pickle.UnpicklingError("it gives a state to a value that has none")
        value.build(state)

    def extend_list(self, items: list[Any]) -> None:
        target = self.top()
        if not isinstance(target, list):
            raise pickle.UnpicklingError("it appends to a value that is no list")
        target.extend(items)

    def extend_dict(self, items: list[Any]) -> None:
        target, keys = self.top(), items[::2]
        if not isinstance(target, dict) or len(items) % 2:
            raise pickle.UnpicklingError("it sets items of a value that is no dictionary")
        if not all(isinstance(key, (str, bytes)) for key in keys):  # others may take long to hash
            raise pickle.UnpicklingError("a dictionary's keys are not text")
        target.update(zip(keys, items[1::2], strict=True))

    def named(self, module: str, name: str) -> None:
        if (module, name) not in self.names:
            asked = f"{module:.100}.{name:.100}"
            raise ForbiddenName(f"it asks for {asked if asked.isprintable() else ascii(asked)}")
        self.stack.append(self.names[module, name])


_ARRAYS = (
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy", "ndarray"),
)
_SAME = {
    **dict.fromkeys(
        ("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT",
         "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "BINBYTES", "SHORT_BINBYTES",
         "BINBYTES8"), "value"),
    **dict.fromkeys(("STRING", "BINSTRING", "SHORT_BINSTRING"), "bytes"),
    **dict.fromkeys(("PROTO", "FRAME", "STOP"), "ignored"),
    **dict.fromkeys(("BINPUT", "LONG_BINPUT"), "put"),
    **dict.fromkeys(("BINGET", "LONG_BINGET"), "get"),
}  # fmt: skip


def read_pickle(content: bytes) -> dict[str, Any]:
    """Return a dictionary of plain values and arrays of bytes, its keys as text.

    >>> read_pickle(pickle.dumps({"labels": [3, 1]}))
    {'labels': [3, 1]}
    >>> read_pickle(pickle.dumps(print))
    Traceback (most recent call last):
    ...
    isonorm.lab.data.pickles.ForbiddenName: it asks for builtins.print
    """
    reader = _Reader(content)
    try:
        for instruction, argument, _ in pickletools.genops(content):
            reader.step(instruction.name, argument)
        (value,) = reader.last(1)
        if not isinstance(value, dict):
            raise pickle.UnpicklingError(f"it holds a {type(value).__name__}, not a dictionary")
        return {
            key.decode() if isinstance(key, bytes) else key: item.values
            if isinstance(item, _Array)
            else item
            for key, item in value.items()
        }
    except pickle.UnpicklingError:
        raise
    except Exception as error:  # a damaged pickle can make its reader stumble anywhere
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise pickle.UnpicklingError(reason) from error
