"""Memory for intermediate results on a CPU that outlives the call that needs it.

A tile is a few megabytes. malloc gives so much back to the system when it is freed, and the system
hands it out again page by page, at a fault for every 4 KiB: for a tile that stays in cache that is
more work than its arithmetic. So each thread keeps the little it used last. On other devices
torch's allocators do so by themselves.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from math import prod

import torch
from torch import Tensor

#: Bytes that a thread keeps, at most; and from which on a room is worth it: malloc itself keeps
#: small ones.
MOST_BYTES, LEAST_BYTES = 1 << 25, 1 << 18


class _Kept(threading.local):
    def __init__(self) -> None:
        self.pieces: list[Tensor] = []


_kept = _Kept()


class Scratch:
    """Memory by purpose, for as long as this object lives; unless it ``keeps`` it, new every
    time.
    """

    def __init__(self, like: Tensor, dtype: torch.dtype, keeps: bool = True) -> None:
        self._like, self._dtype, self._keeps = like, dtype, keeps
        self._pieces: dict[str, Tensor] = {}
        self._rooms: dict[str, Tensor] = {}  # of the pieces, as they were last asked for

    def room(self, purpose: str, shape: tuple[int, ...] | torch.Size) -> Tensor:
        """A contiguous tensor of this shape. If it is large, it is for one purpose always the same
        memory, which holds whatever it held, until more is asked for.
        """
        last = self._rooms.get(purpose)
        if last is not None and last.shape == shape:
            return last
        size = prod(shape) * self._dtype.itemsize
        if not self._keeps or size < LEAST_BYTES:
            return self._like.new_empty(shape, dtype=self._dtype)
        piece = self._pieces.get(purpose)
        if piece is None or piece.numel() < size:
            if piece is not None:  # no longer ours, even if there is no memory for the next
                del self._rooms[purpose]
                _give_back([self._pieces.pop(purpose)])
            piece = self._pieces[purpose] = _take(size)
        room = self._rooms[purpose] = piece[:size].view(self._dtype).view(shape)
        return room

    def __del__(self) -> None:
        if self._pieces:
            _give_back(self._pieces.values())


def _take(size: int) -> Tensor:
    """The smallest piece that is large enough, or a new one."""
    fitting = [piece for piece in _kept.pieces if piece.numel() >= size]
    if not fitting:
        with torch.inference_mode(False):  # or nobody outside that mode could use it
            return torch.empty(size, dtype=torch.uint8, device="cpu")
    best = min(fitting, key=Tensor.numel)
    _kept.pieces = [piece for piece in _kept.pieces if piece is not best]
    return best


def _give_back(pieces: Iterable[Tensor]) -> None:
    """Larger pieces stay rather than smaller ones: they serve for both."""
    pieces = sorted([*_kept.pieces, *pieces], key=Tensor.numel, reverse=True)
    while sum(map(Tensor.numel, pieces)) > MOST_BYTES:
        pieces.pop(0 if pieces[0].numel() > MOST_BYTES else -1)
    _kept.pieces = pieces
