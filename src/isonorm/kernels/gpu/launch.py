"""Launching a Triton kernel at little more than the cost of a C call.

Triton's own ``kernel[grid](…)`` looks at every argument again on every call, which takes longer
than a small layer's kernel runs. Here all but the tensors is settled beforehand: what Triton
compiled is handed to the driver with the addresses written where its parameters lie. Triton
compiles for addresses that are divisible by 16; tensors at others take its own way.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import lru_cache
from threading import Lock
from typing import Any

import torch
from torch import Tensor
from triton.runtime.errors import OutOfResources

#: The addresses that compiled kernels expect are divisible by this.
ALIGNMENT = 16
#: How a kernel's numbers lie in memory, by their types in Triton's signatures.
_NUMBERS = {"i32": ctypes.c_int32, "i64": ctypes.c_int64, "fp32": ctypes.c_float}


class Launcher:
    """A kernel with its grid, its numbers and its constants: called with tensors alone, always of
    the same dtypes and on the same device.

    A kernel's signature must have its tensors first, then its numbers, then its constants. One that
    waits for its predecessor by itself can be launched ``early``: see ``overlap``. Then no
    multiprocessor takes more than ``most`` of its programs, unless that is 0.
    """

    __slots__ = ("constants", "direct", "early", "grid", "kernel", "most", "numbers")

    def __init__(
        self,
        kernel: Any,
        grid: tuple[int, ...],
        numbers: tuple,
        constants: dict[str, Any],
        *,
        early: bool = False,
        most: int = 0,
    ) -> None:
        self.kernel, self.grid, self.numbers, self.constants = kernel, grid, numbers, constants
        self.early, self.most = early, most
        #: Launches what is compiled: (stream, addresses).
        self.direct: Callable[[int, tuple[int, ...]], None] | None = None

    def __call__(self, *tensors: Tensor) -> None:
        addresses = tuple([tensor.data_ptr() for tensor in tensors])
        bits = 0
        for address in addresses:
            bits |= address
        aligned = bits % ALIGNMENT == 0
        if self.direct is not None and aligned:
            self.direct(raw_stream(tensors[0].get_device()), addresses)
            return
        compiled = self._launch(*tensors)
        if compiled is not None and aligned:  # Triton's interpreter compiles nothing
            self.direct = self._settled(compiled, len(tensors), tensors[0].get_device())

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

    def _settled(
        self, compiled: Any, tensors: int, device: int
    ) -> Callable[[int, tuple[int, ...]], None]:
        names = self.kernel.arg_names[tensors + len(self.numbers) :]
        rest = (*self.numbers, *(self.constants[name] for name in names))
        grid = self.grid + (1,) * (3 - len(self.grid))
        run = compiled[grid]

        def by_triton(stream: int, addresses: tuple[int, ...]) -> None:
            run(*addresses, *rest, stream=stream)

        if not _is_plain(compiled):
            return by_triton
        types = list(compiled.src.signature.values())[tensors : tensors + len(self.numbers)]
        shared = compiled.metadata.shared
        if self.early and self.most:
            shared = _spread(compiled, device, self.most)
        return _by_driver(
            compiled, grid, tensors, types, self.numbers, self.early, shared, by_triton
        )


def raw_stream(device: int) -> int:
    """The current stream as the driver knows it."""
    return torch._C._cuda_getCurrentRawStream(device)


@lru_cache
def _driver() -> Any:
    return ctypes.CDLL("libcuda.so.1")


@lru_cache
def _driver_launch() -> Any:
    """The driver's cuLaunchKernelEx; None where there is no such library."""
    try:
        function = _driver().cuLaunchKernelEx
    except (OSError, AttributeError):
        return None
    function.argtypes = [ctypes.c_void_p] * 4
    return function


class _Attribute(ctypes.Structure):
    """The driver's CUlaunchAttribute."""

    _fields_ = (("name", ctypes.c_int), ("padding", ctypes.c_int), ("value", ctypes.c_int * 16))


class _Launch(ctypes.Structure):
    """The driver's CUlaunchConfig."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("threads", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("count", ctypes.c_uint),
    )


#: CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES.
_MOST_SHARED = 8
#: CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION: may begin before its predecessor ends.
_EARLY = _Attribute(6, 0, (ctypes.c_int * 16)(1))


def _spread(compiled: Any, device: int, most: int) -> int:
    """So many bytes of shared memory that a multiprocessor has not enough for more than ``most``
    programs, or as many as one needs if that is more; the driver is told that so many are wanted.
    """
    shared = compiled.metadata.shared
    told = torch.cuda.get_device_properties(device)
    asked = told.shared_memory_per_multiprocessor // (most + 1) + 1
    if asked <= shared or asked > told.shared_memory_per_block_optin:
        return shared
    failed = _driver().cuFuncSetAttribute(ctypes.c_void_p(compiled.function), _MOST_SHARED, asked)
    return shared if failed else asked


def _is_plain(compiled: Any) -> bool:
    """Whether a kernel needs nothing but its parameters: no memory beside them, nor a profiler's,
    no clusters, no grid that meets; and whether this version of Triton tells all that.
    """
    if _driver_launch() is None or torch.version.hip is not None:
        return False
    try:
        told = compiled.metadata
        plain = told.num_ctas == 1 and not told.global_scratch_size
        plain = plain and not getattr(told, "profile_scratch_size", 0)
        plain = plain and not getattr(told, "launch_cooperative_grid", False)
        types = {kind for kind in compiled.src.signature.values() if kind[:1] != "*"}
        return plain and types <= {*_NUMBERS, "constexpr"} and bool(compiled.function)
    except (AttributeError, TypeError):
        return False


def _by_driver(
    compiled: Any,
    grid: tuple[int, ...],
    tensors: int,
    types: list,
    numbers: tuple,
    early: bool,
    shared: int,
    otherwise: Any,
) -> Callable[[int, tuple[int, ...]], None]:
    """A launch with a place of 8 bytes for each parameter: first the tensors' addresses, then the
    numbers that are not part of the code, then two addresses of memory that it does not use.
    """
    launch, lock = _driver_launch(), Lock()
    typed = zip(types, numbers, strict=True)
    given = [_NUMBERS[kind](value) for kind, value in typed if kind in _NUMBERS]
    places = (ctypes.c_uint64 * (tensors + len(given) + 2))()
    base = ctypes.addressof(places)
    for index, number in enumerate(given, start=tensors):
        ctypes.memmove(base + 8 * index, ctypes.addressof(number), ctypes.sizeof(number))
    parameters = (ctypes.c_void_p * len(places))(*(base + 8 * i for i in range(len(places))))
    threads = 32 * compiled.metadata.num_warps
    how = _Launch(grid, (threads, 1, 1), shared, None, ctypes.pointer(_EARLY), int(early))
    at, function = ctypes.addressof(how), compiled.function

    def by_driver(stream: int, addresses: tuple[int, ...]) -> None:
        with lock:  # the places are one thread's at a time
            places[:tensors] = addresses
            how.stream = stream
            failed = launch(at, function, parameters, None)
        if failed:  # a thread without a context, say: Triton provides one, or tells what is wrong
            otherwise(stream, addresses)

    return by_driver
