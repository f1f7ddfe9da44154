"""Launching a Triton kernel at little more than the cost of a C call.

Triton's own ``kernel[grid](…)`` looks at every argument again on every call, which takes longer
than a small layer's kernel runs. Here all but the tensors is settled beforehand, and what Triton
compiled is kept for tensors that are aligned to 16 bytes, as it assumes; others take its own way.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor
from triton.runtime.errors import OutOfResources


class Launcher:
    """A kernel with its grid, its numbers and its constants: called with tensors alone.

    A kernel's signature must have its tensors first, then its numbers, then its constants.
    """

    def __init__(
        self, kernel: Any, grid: tuple[int, ...], numbers: tuple, constants: dict[str, Any]
    ) -> None:
        self.kernel, self.grid, self.numbers, self.constants = kernel, grid, numbers, constants
        self.run: Callable | None = None
        self.rest: tuple = ()

    def __call__(self, *tensors: Tensor) -> None:
        addresses = 0
        for tensor in tensors:
            addresses |= tensor.data_ptr()
        if self.run is not None and addresses % 16 == 0:
            stream = torch._C._cuda_getCurrentRawStream(tensors[0].device.index)
            self.run(*tensors, *self.rest, stream=stream)
            return
        compiled = self._launch(*tensors)
        if compiled is not None and addresses % 16 == 0:  # Triton's interpreter compiles nothing
            names = self.kernel.arg_names[len(tensors) + len(self.numbers) :]
            self.rest = (*self.numbers, *(self.constants[name] for name in names))
            self.run = compiled[self.grid + (1,) * (3 - len(self.grid))]

    def _launch(self, *tensors: Tensor) -> Any:
        """By Triton's own way; with fewer tiles in flight where shared memory does not hold all, as
        on older cards.
        """
        while True:
            try:
                return self.kernel[self.grid](*tensors, *self.numbers, **self.constants)
            except OutOfResources:
                stages = self.constants.get("num_stages", 1)
                if stages == 1:
                    raise
                self.constants = self.constants | {"num_stages": stages - 1}


class Launchers:
    """Launchers by what they were made for."""

    #: Beyond so many, as where every batch has a shape of its own, start anew.
    most = 4096

    def __init__(self) -> None:
        self._made: dict[Hashable, Launcher] = {}

    def get(self, key: Hashable, make: Callable[[], Launcher]) -> Launcher:
        found = self._made.get(key)
        if found is None:
            if len(self._made) >= self.most:
                self._made.clear()
            found = self._made[key] = make()
        return found
