"""Launching a Triton kernel at the cost of a C call.

Triton's own ``kernel[grid](…)`` looks at every argument again on every call, which takes longer
than a small layer's kernel runs. Here the kernel it compiled is remembered under all that it was
specialized for: the values of integers, the types and 16-byte alignment of tensors, the constants.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_compiled: dict[tuple, tuple[Any, tuple]] = {}
#: Beyond so many, as where every batch has a shape of its own, start anew.
_MOST = 4096


def launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, **constants: Any) -> None:
    """``kernel[grid](*arguments, **constants)``, where the arguments come before the constants in
    the kernel's signature, as in all kernels of this package.
    """
    key = (
        id(kernel),
        torch.cuda.current_device() if torch.cuda.is_available() else -1,
        tuple([_specialization(argument) for argument in arguments]),
        tuple(constants.items()),
    )
    found = _compiled.get(key)
    if found is None:
        compiled = kernel[grid](*arguments, **constants)
        if compiled is not None:  # Triton's interpreter compiles nothing
            if len(_compiled) >= _MOST:
                _compiled.clear()
            names = kernel.arg_names[len(arguments) :]
            _compiled[key] = compiled, tuple(constants[name] for name in names)
        return
    compiled, values = found
    compiled[grid + (1,) * (3 - len(grid))](*arguments, *values)


def _specialization(argument: Any) -> Any:
    if isinstance(argument, Tensor):
        return argument.dtype, argument.data_ptr() % 16 == 0
    return type(argument) if isinstance(argument, float) else argument
