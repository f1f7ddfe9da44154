"""How C hands prepared kernels to the driver, with a stand-in for the driver."""

from __future__ import annotations

import ctypes
import gc
import weakref

import pytest
import torch

from isonorm.kernels.native import library

pytest.importorskip("triton")
launch = pytest.importorskip("isonorm.kernels.gpu.launch")

DRIVER = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.POINTER(launch._Config),
    ctypes.c_void_p,
    ctypes.POINTER(ctypes.POINTER(ctypes.c_uint64)),
    ctypes.c_void_p,
)


def kernel(function: int, tensors: int, numbers: list[int]):
    """A kernel as ``Launcher`` settles it, and the memory that it refers to."""
    memory = (ctypes.c_uint64 * len(numbers))(*numbers)
    how = launch._Config((function, 2, 1), (128, 1, 1), 64, None, None, 0)
    of = launch._Kernel(how, function, tensors, tensors + len(numbers), ctypes.addressof(memory))
    return of, memory


@pytest.fixture
def steps():
    found = library.load(torch.float32)
    if isinstance(found, str):
        pytest.skip(f"no native code: {found}")
    kernels = [kernel(7, 2, [40, 41]), kernel(8, 3, []), kernel(9, 1, [42])]
    slots = [(ctypes.c_uint8 * len(s))(*s) for s in ([2, 0], [1, 1, 3], [0])]
    made = (launch._Step * 3)(
        *(
            launch._Step(ctypes.addressof(of), ctypes.addressof(own))
            for (of, _), own in zip(kernels, slots, strict=True)
        )
    )
    return found.launch_kernels, made, (kernels, slots)


def run(steps, failing: int | None) -> tuple[int, list]:
    function, made, (kernels, _) = steps
    seen: list = []
    counts = {of.function: of.parameters for of, _ in kernels}

    def driver(how, called, parameters, extra) -> int:
        values = [parameters[i][0] for i in range(counts[called])]
        seen.append((called, list(how[0].grid), how[0].stream, values))
        return 1 if called == failing else 0

    callback = DRIVER(driver)
    addresses = (ctypes.c_uint64 * 4)(100, 101, 102, 2**63)
    at = ctypes.cast(callback, ctypes.c_void_p)
    return function(at, ctypes.addressof(made), len(made), 5, addresses), seen


def test_each_kernel_gets_its_tensors_and_then_its_numbers(steps) -> None:
    launched, seen = run(steps, failing=None)
    assert launched == 3
    assert seen == [
        (7, [7, 2, 1], 5, [102, 100, 40, 41]),
        (8, [8, 2, 1], 5, [101, 101, 2**63]),
        (9, [9, 2, 1], 5, [100, 42]),
    ]


def test_what_follows_a_failure_is_not_launched(steps) -> None:
    launched, seen = run(steps, failing=8)
    assert launched == 1 and [called for called, *_ in seen] == [7, 8]


class Compiled:
    """Stands in for a ``Launcher`` whose kernel Triton has compiled."""

    def __init__(self, function: int) -> None:
        self._function = function
        self.settle()

    def launch(self, *tensors: torch.Tensor) -> None:
        pass

    def settle(self) -> None:
        of, memory = kernel(self._function, 1, [40, 41])
        self.settled = launch.Settled(lambda *_: None, of, (memory,))


def test_c_reads_memory_that_lives_however_often_kernels_are_settled(steps, monkeypatch) -> None:
    """Threads may be the first to launch the same kernels, at once: each settles them, and the
    later one's memory takes the place of what the earlier one still reads.
    """
    seen: list = []

    def driver(how, called, parameters, extra) -> int:
        seen.append((called, [parameters[i][0] for i in range(3)]))
        return 0

    callback = DRIVER(driver)
    monkeypatch.setattr(launch, "_driver_launch", lambda: callback)
    compiled = [Compiled(7), Compiled(8)]
    chain = launch.Chain((compiled[0], (0,)), (compiled[1], (1,)))
    unaligned = [torch.zeros(2)[1:], torch.zeros(2)[1:]]
    chain(unaligned)
    assert chain.ready
    memory = [weakref.ref(launcher.settled.owned[0]) for launcher in compiled]
    begun = chain._by_c  # as another thread holds it, which C keeps busy
    for launcher in compiled:
        launcher.settle()
    chain(unaligned)
    gc.collect()
    assert all(numbers() is not None for numbers in memory)
    assert chain._by_c is begun, "what is settled stays settled"
    assert begun(5, (ctypes.c_uint64 * 2)(100, 101)) == 2
    assert seen == [(7, [100, 40, 41]), (8, [101, 40, 41])]
