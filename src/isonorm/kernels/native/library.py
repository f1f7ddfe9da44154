"""The library's functions, called with tensors: the one place that hands addresses to C.

Index legend: b problems, d features, m samples.
"""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...area import Area
from ..choice import LARGEST_NATIVE_GROUP, NATIVE_PADDING
from . import build

#: Arithmetic below which more threads take longer than one.
LEAST_TO_SHARE = 1 << 18

_View = ctypes.c_int64 * 10
_pointer, _index, _int = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int

#: Arguments of the functions, in the order that the .c files have them; numbers are 64 bits wide,
#: threads and flags an int.
_ARGUMENTS = {
    "room_of": [_View, _int, _int],
    "moments": [_pointer, _View, *[_pointer] * 4, _int],
    "sums": [_pointer, _View, _pointer, _View, *[_pointer] * 5, _int],
    "apply": [_pointer, _View, _pointer, _View, _pointer, _View, *[_pointer] * 6, _int],
    "newton_room": [_index],
    "newton": [_index, _index, _index, *[_pointer] * 4, _int],
    "newton_backward": [_index, _index, _index, *[_pointer] * 6, _int],
    "launch_kernels": [_pointer, _pointer, _int, _pointer, _pointer],
}

_RESULTS = {"room_of": _index, "newton_room": _index, "launch_kernels": _int}


@cache
def load(dtype: torch.dtype) -> ctypes.CDLL | str:
    """The library for numbers of that type, or why there is none."""
    error: Exception | None = None
    try:
        for path in build.libraries(dtype):
            try:
                return _opened(path)
            except (OSError, AttributeError) as why:  # damaged, or where nothing may be executed
                error = why
    except build.Unavailable as why:
        return str(why)
    except (build.Failed, OSError) as why:
        error = why
    warnings.warn(  # there is a compiler, so that it is worth a word
        f"plain torch whitens on this CPU, which takes longer than native code, because {error}. "
        "ISONORM_BACKEND=torch asks for no native code.",
        RuntimeWarning,
        stacklevel=2,
    )
    return str(error)


def _opened(path: Path) -> ctypes.CDLL:
    library = ctypes.CDLL(str(path))
    for name, arguments in _ARGUMENTS.items():
        function = getattr(library, name)
        function.argtypes = arguments
        function.restype = _RESULTS.get(name)
    return library


def why_not(dtype: torch.dtype) -> str | None:
    """What keeps the library from being there, if anything."""
    library = load(dtype)
    return library if isinstance(library, str) else None


# The compiler takes the answer for a constant: it need not trace how a library is built.
why_not._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _library(dtype: torch.dtype) -> ctypes.CDLL:
    library = load(dtype)
    if isinstance(library, str):
        raise RuntimeError(f"native code was asked for, but {library}.")
    return library


class Pass:
    """The passes over one (N, K, c, S) view of an activation."""

    def __init__(self, area: Area, view: Tensor) -> None:
        self.area, self.x = area, view
        n, k, c, s = view.shape
        self.b, self.d, self.m = (k, c, n * s) if area.spans_batch else (n * k, c, s)
        if self.d > LARGEST_NATIVE_GROUP:
            raise ValueError(f"groups of {self.d} channels are too large for native code.")
        self._library = _library(view.dtype)
        self._at, self._view = _address(view), self._strides(view)
        self._threads = _threads(view.numel() // max(c, 1) * _padded(c) ** 2)

    def moments(self) -> tuple[Tensor, Tensor, Tensor]:
        """The mean (b, d), the biased covariance (b, d, d), and the mean's rest (b, d)."""
        mean, cov, rest = self._vectors(), self._matrices(), self._vectors()
        room = self._room(leaves_sums=True)
        self._library.moments(
            self._at, self._view, mean.data_ptr(), rest.data_ptr(), cov.data_ptr(),
            room.data_ptr(), self._threads,
        )  # fmt: skip
        return mean, cov, rest

    def sums(self, dy: Tensor, mean: Tensor, rest: Tensor) -> tuple[Tensor, Tensor]:
        """Σ dy (b, d) and Σ dy(x − μ)ᵀ (b, d, d), with μ and its rest."""
        f, outer, room = self._vectors(), self._matrices(), self._room(leaves_sums=True)
        mean, rest, strides = self._given(mean), self._given(rest), self._strides(dy)
        self._library.sums(
            self._at, self._view, _address(dy), strides, mean.data_ptr(), rest.data_ptr(),
            f.data_ptr(), outer.data_ptr(), room.data_ptr(), self._threads,
        )  # fmt: skip
        return f, outer

    def apply(
        self,
        out: Tensor,
        mean: Tensor,
        rest: Tensor,
        a: Tensor,
        shift: Tensor,
        dy: Tensor | None = None,
        slope: Tensor | None = None,
    ) -> None:
        """out = A(x − μ) + shift; with dy and slope, Aᵀdy + slope·(x − μ) + shift. μ has a rest."""
        mean, rest, a, shift = (self._given(t) for t in (mean, rest, a, shift))
        slope = None if slope is None else self._given(slope)
        of_dy = self._view if dy is None else self._strides(dy)
        room = self._room(leaves_sums=False)
        self._library.apply(
            self._at, self._view, None if dy is None else _address(dy), of_dy,
            out.data_ptr(), self._strides(out), mean.data_ptr(), rest.data_ptr(), a.data_ptr(),
            None if slope is None else slope.data_ptr(), shift.data_ptr(), room.data_ptr(),
            self._threads,
        )  # fmt: skip

    def _strides(self, view: Tensor) -> Any:
        """As ``struct view`` has them."""
        _expect(view, self.x.shape, self.x.dtype)
        (n, k, c, s), (of_n, of_k, of_c, of_s) = view.shape, view.stride()
        if self.area.spans_batch:
            return _View(1, k, n, c, s, 0, of_k, of_n, of_c, of_s)
        return _View(n, k, 1, c, s, of_n, of_k, 0, of_c, of_s)

    def _given(self, operand: Tensor) -> Tensor:
        """A (b, d) or (b, d, d) operand as C expects it; whoever calls keeps it alive."""
        _expect(operand, (self.b,) + (self.d,) * (operand.dim() - 1), self.x.dtype)
        operand = operand.contiguous()
        _address(operand)
        return operand

    def _vectors(self) -> Tensor:
        return self.x.new_empty((self.b, self.d))

    def _matrices(self) -> Tensor:
        return self.x.new_empty((self.b, self.d, self.d))

    def _room(self, leaves_sums: bool) -> Tensor:
        return self.x.new_empty(self._library.room_of(self._view, leaves_sums, self._threads))


def _expect(tensor: Tensor, shape: Sequence[int], dtype: torch.dtype) -> None:
    """C reads as much as it is told that there is."""
    if tensor.shape != torch.Size(shape) or tensor.dtype != dtype or tensor.device.type != "cpu":
        raise ValueError(
            f"native code expected {dtype} of shape {tuple(shape)} in the CPU's memory; got "
            f"{tensor.dtype} of shape {tuple(tensor.shape)} on {tensor.device}."
        )


def _address(tensor: Tensor) -> int:
    """Where its numbers are."""
    if tensor.numel() and not tensor.untyped_storage().data_ptr():
        raise RuntimeError("a tensor's memory was freed before it was used: nothing is left of it.")
    return tensor.data_ptr()


def newton(sigma: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    """W and the memo, as ``Recurrence.forward`` gives them."""
    b, d, _ = sigma.shape
    sigma = sigma.contiguous()
    w, memo = torch.empty_like(sigma), sigma.new_empty((max(steps - 1, 0), 2, b, d, d))
    library, threads, room = _for_problems(sigma)
    library.newton(
        b, d, steps, sigma.data_ptr(), w.data_ptr(), memo.data_ptr(), room.data_ptr(), threads
    )
    return w, memo


def newton_backward(dw: Tensor, sigma: Tensor, w: Tensor, memo: Tensor, steps: int) -> Tensor:
    """dΣ from dW, as ``Recurrence.backward`` gives it."""
    b, d, _ = sigma.shape
    shapes = [sigma.shape] * 3 + [(max(steps - 1, 0), 2, b, d, d)]
    for tensor, shape in zip((dw, sigma, w, memo), shapes, strict=True):
        _expect(tensor, shape, sigma.dtype)
    dw, sigma, w, memo = (t.contiguous() for t in (dw, sigma, w, memo))
    dsigma = torch.empty_like(sigma)
    library, threads, room = _for_problems(sigma)
    library.newton_backward(
        b, d, steps, dw.data_ptr(), sigma.data_ptr(), w.data_ptr(), memo.data_ptr(),
        dsigma.data_ptr(), room.data_ptr(), threads,
    )  # fmt: skip
    return dsigma


def _for_problems(sigma: Tensor) -> tuple[ctypes.CDLL, int, Tensor]:
    """The library, how many threads share the problems, and the room they work in."""
    b, d, _ = sigma.shape
    library = _library(sigma.dtype)
    threads = max(min(_threads(b * _padded(d) ** 3), b), 1)
    return library, threads, sigma.new_empty(threads * library.newton_room(d))


def _padded(n: int) -> int:
    return -(-n // NATIVE_PADDING) * NATIVE_PADDING


def _threads(work: int) -> int:
    return torch.get_num_threads() if work >= LEAST_TO_SHARE else 1
