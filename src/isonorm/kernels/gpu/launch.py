"""Launching Triton kernels at little more than the cost of a C call.

Triton's own ``kernel[grid](…)`` looks at every argument again on every call, which takes longer
than a small layer's kernel runs. Here all but the tensors is settled beforehand: what Triton
compiled is handed to the driver with the addresses written where its parameters lie, and kernels
that follow each other are launched by one call of C (``native/launch.c``). Triton compiles for
addresses that are divisible by 16; tensors at others take its own way, and so do all where there is
no C compiler.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from triton.runtime.errors import OutOfResources

from ..native import library

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

    __slots__ = ("constants", "early", "grid", "kernel", "most", "numbers", "sequence", "settled")

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
        #: The kernel as Triton compiled it; None before its first launch with aligned tensors.
        self.settled: Settled | None = None
        self.sequence: Chain | None = None

    def __call__(self, *tensors: Tensor) -> None:
        if self.sequence is None:
            self.sequence = Chain((self, tuple(range(len(tensors)))))
        self.sequence(tensors)

    def launch(self, *tensors: Tensor) -> None:
        """Launch by Triton's own way, and settle what it compiled."""
        compiled = self._launch(*tensors)
        aligned = all(t.data_ptr() % ALIGNMENT == 0 for t in tensors)
        if compiled is not None and aligned and self.settled is None:  # the interpreter has none
            self.settled = self._settle(compiled, len(tensors), tensors[0].get_device())

    def _launch(self, *tensors: Tensor) -> Any:
        """Launch, with fewer tiles in flight where shared memory does not hold all, as on older
        cards.
        """
        while True:
            try:
                return self.kernel[self.grid](*tensors, *self.numbers, **self.constants)
            except OutOfResources:
                stages = self.constants.get("num_stages", 1)
                if stages == 1:
                    raise
                self.constants = self.constants | {"num_stages": stages - 1}

    def _settle(self, compiled: Any, tensors: int, device: int) -> Settled:
        names = self.kernel.arg_names[tensors + len(self.numbers) :]
        rest = (*self.numbers, *(self.constants[name] for name in names))
        grid = self.grid + (1,) * (3 - len(self.grid))
        run = compiled[grid]

        def by_triton(stream: int, addresses: Sequence[int]) -> None:
            run(*addresses, *rest, stream=stream)

        if not _is_plain(compiled):
            return Settled(by_triton, None, ())
        types = list(compiled.src.signature.values())[tensors : tensors + len(self.numbers)]
        # First the tensors, then the numbers that are not part of the code, then two addresses of
        # memory that a plain kernel does not use.
        typed = zip(types, self.numbers, strict=True)
        given = [_NUMBERS[kind](number) for kind, number in typed if kind in _NUMBERS]
        numbers = (ctypes.c_uint64 * (len(given) + 2))()
        for index, number in enumerate(given):
            at = ctypes.addressof(numbers) + 8 * index
            ctypes.memmove(at, ctypes.addressof(number), ctypes.sizeof(number))
        shared = compiled.metadata.shared
        if self.early and self.most:
            shared = _spread(compiled, device, self.most)
        threads = 32 * compiled.metadata.num_warps
        how = _Config(grid, (threads, 1, 1), shared, None, ctypes.pointer(_EARLY), int(self.early))
        parameters = tensors + len(numbers)
        kernel = _Kernel(how, compiled.function, tensors, parameters, ctypes.addressof(numbers))
        return Settled(by_triton, kernel, (numbers, compiled))


class Settled(NamedTuple):
    """A compiled kernel: launched by Triton, with (stream, addresses); as C has it, where the
    driver can be handed it; and what must live as long.
    """

    by_triton: Callable[[int, Sequence[int]], None]
    kernel: _Kernel | None
    owned: tuple


class Chain:
    """Launchers that follow each other, each with the slots of its tensors among those given."""

    __slots__ = ("_by_c", "ready", "steps")

    def __init__(self, *steps: tuple[Launcher, tuple[int, ...]]) -> None:
        self.steps = steps
        #: Whether all kernels are compiled, so that ``launch`` can take addresses.
        self.ready = False
        self._by_c: Callable[[int, Any], int] | None = None

    def __call__(self, tensors: Sequence[Tensor]) -> None:
        """Launch with tensors."""
        if self.ready:
            addresses = [tensor.data_ptr() for tensor in tensors]
            bits = 0
            for address in addresses:
                bits |= address
            if bits % ALIGNMENT == 0:
                self.launch(raw_stream(tensors[0].get_device()), addresses)
                return
        for launcher, slots in self.steps:
            launcher.launch(*[tensors[slot] for slot in slots])
        if not self.ready:
            self._settle()

    def launch(self, stream: int, addresses: Sequence[int]) -> None:
        """Launch with the addresses of tensors, all divisible by ALIGNMENT."""
        launched = 0
        if self._by_c is not None:
            launched = self._by_c(stream, (ctypes.c_uint64 * len(addresses))(*addresses))
        # What is left: a thread without a context, say. Triton provides one, or raises.
        for launcher, slots in self.steps[launched:]:
            settled = launcher.settled
            assert settled is not None
            settled.by_triton(stream, [addresses[slot] for slot in slots])

    def _settle(self) -> None:
        found = [launcher.settled for launcher, _ in self.steps]
        if None in found:
            return
        kernels = [s.kernel for s in found if s is not None and s.kernel is not None]
        if len(kernels) == len(found):
            slots = [(ctypes.c_uint8 * len(own))(*own) for _, own in self.steps]
            steps = (_Step * len(kernels))(
                *(
                    _Step(ctypes.addressof(kernel), ctypes.addressof(own))
                    for kernel, own in zip(kernels, slots, strict=True)
                )
            )
            self._by_c = _in_c(steps, (found, slots))
        self.ready = True


def _in_c(steps: Any, owned: tuple) -> Callable[[int, Any], int] | None:
    """Return how C launches steps: (stream, addresses) → how many it has launched; None where there
    is no library. It owns all memory that it refers to: other threads may settle the same kernels
    anew while C reads it.
    """
    driver, launch = library.load(torch.float32), _driver_launch()
    if isinstance(driver, str) or launch is None:
        return None
    function, first, count = driver.launch_kernels, ctypes.addressof(steps), len(steps)
    at = ctypes.cast(launch, ctypes.c_void_p).value

    def launch_kernels(stream: int, addresses: Any, owned: tuple = (steps, owned)) -> int:
        return function(at, first, count, stream, addresses)

    return launch_kernels


def raw_stream(device: int) -> int:
    """Return the current stream as the driver knows it."""
    return torch._C._cuda_getCurrentRawStream(device)


@lru_cache
def _driver() -> Any:
    return ctypes.CDLL("libcuda.so.1")


@lru_cache
def _driver_launch() -> Any:
    """Return the driver's cuLaunchKernelEx; None where there is no such library."""
    try:
        return _driver().cuLaunchKernelEx
    except (OSError, AttributeError):
        return None


class _Attribute(ctypes.Structure):
    """The driver's CUlaunchAttribute."""

    _fields_ = (("name", ctypes.c_int), ("padding", ctypes.c_int), ("value", ctypes.c_int * 16))


class _Config(ctypes.Structure):
    """The driver's CUlaunchConfig, and C's ``struct config``."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("threads", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("count", ctypes.c_uint),
    )


class _Kernel(ctypes.Structure):
    """C's ``struct kernel``."""

    _fields_ = (
        ("how", _Config),
        ("function", ctypes.c_void_p),
        ("tensors", ctypes.c_int),
        ("parameters", ctypes.c_int),
        ("numbers", ctypes.c_void_p),
    )


class _Step(ctypes.Structure):
    """C's ``struct step``."""

    _fields_ = (("kernel", ctypes.c_void_p), ("slots", ctypes.c_void_p))


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
