"""Launching a Triton kernel at little more than the cost of a C call.

Triton's own ``kernel[grid](…)`` looks at every argument again on every call, which takes longer
than a small layer's kernel runs. Here all but the tensors is settled beforehand, and what Triton
compiled is kept for tensors that are aligned to 16 bytes, as it assumes; others take its own way.
What it compiled takes addresses, too, and asks the driver nothing about those.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from triton.runtime.errors import OutOfResources


class Launcher:
    """A kernel with its grid, its numbers and its constants: called with tensors alone, always of
    the same dtypes and on the same device.

    A kernel's signature must have its tensors first, then its numbers, then its constants.
    """

    __slots__ = ("constants", "grid", "kernel", "numbers", "rest", "run")

    def __init__(
        self, kernel: Any, grid: tuple[int, ...], numbers: tuple, constants: dict[str, Any]
    ) -> None:
        self.kernel, self.grid, self.numbers, self.constants = kernel, grid, numbers, constants
        self.run: Callable | None = None
        self.rest: tuple = ()

    def __call__(self, *tensors: Tensor) -> None:
        addresses = [tensor.data_ptr() for tensor in tensors]
        bits = 0
        for address in addresses:
            bits |= address
        if self.run is not None and bits % 16 == 0:
            stream = torch._C._cuda_getCurrentRawStream(tensors[0].get_device())
            self.run(*addresses, *self.rest, stream=stream)
            return
        compiled = self._launch(*tensors)
        if compiled is not None and bits % 16 == 0:  # Triton's interpreter compiles nothing
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
