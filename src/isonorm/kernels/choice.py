"""Which implementation runs, and why: the one place that chooses.

``reference``  plain, differentiable torch, written like the papers; right under every transform
``torch``      the explicit forward and backward in plain torch, on any device
``native``     the same in C, on a CPU, for groups of channels that are whitened
``triton``     the same in Triton kernels, on a GPU
"""

from __future__ import annotations

import importlib.util
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

from .. import area as areas
from .. import operation as operations
from ..area import Area
from ..operation import Operation
from ..recovery import Coloring, Recovery
from ..symbolic import is_traced

BACKENDS = ("auto", "reference", "torch", "native", "triton")

HAS_TRITON = importlib.util.find_spec("triton") is not None
#: Whether Triton's interpreter stands in for a GPU, as in the tests.
INTERPRETING = os.environ.get("TRITON_INTERPRET") == "1"
#: The largest group the kernels take, and the largest where they need more shared memory: for full
#: whitening, for a recovery applied after the kernels and, in float32, for a fused activation.
LARGEST_GROUP, LARGEST_DEMANDING_GROUP = 128, 64
#: The largest group that native code takes: larger ones are products that torch's libraries cut up
#: for the caches better. And the smallest for which it is chosen whatever the input's size: it
#: pads matrices of fewer features to ``NATIVE_PADDING``, and where that is more work than this, all
#: that torch's calls cost is less.
LARGEST_NATIVE_GROUP, SMALLEST_NATIVE_GROUP = 128, 5
NATIVE_PADDING, MOST_PADDED_WORK = 16, 800_000
#: Kernels that go channel by channel write two sums per channel; with fewer positions than this,
#: that traffic is not negligible.
FEWEST_POSITIONS = 16


class Choice(NamedTuple):
    backend: str
    reason: str


def _checked(name: str, source: str) -> str:
    if name not in BACKENDS:
        raise ValueError(f"{source} must be one of {', '.join(BACKENDS)}; got {name!r}.")
    return name


#: The choice outside of every ``backend`` block.
_default = _checked(os.environ.get("ISONORM_BACKEND", "auto"), "ISONORM_BACKEND")


class _Blocks:
    """The ``backend`` blocks a thread is in, the latest last, and the name that one gives."""

    def __init__(self) -> None:
        self.name: str | None = None
        self._open: list[list[str]] = []

    def enter(self, block: list[str]) -> None:
        self._open = [*self._open, block]
        self.name = block[0]

    def leave(self, block: list[str]) -> None:
        self._open = [other for other in self._open if other is not block]
        self.name = self._open[-1][0] if self._open else None


class _Here(threading.local):
    """This thread's blocks. torch.compile guards what it compiles by an attribute of a
    ``threading.local``, and cannot trace a ``ContextVar``.
    """

    def __init__(self) -> None:
        self.blocks = _Blocks()


_here = _Here()
#: The open blocks of all threads, for autograd's own threads, which open none.
_everywhere: dict[int, list[str]] = {}


@contextmanager
def backend(name: str) -> Iterator[None]:
    """Run the block with one implementation: "auto", "reference", "torch", "native" or "triton".

    "reference" always runs; "native" and "triton" run, or the call raises with the reason; "torch"
    leaves to the reference what only that can do (``choose`` tells). The choice is the thread's, as
    ``torch.no_grad`` is; the threads in which autograd runs a GPU's backward take the latest choice
    of any thread that is in force. ``ISONORM_BACKEND`` chooses for the whole process.

    >>> with backend("reference"):
    ...     choose(torch.randn(8, 4), area="batch", operation="whiten")
    Choice(backend='reference', reason='asked for')
    """
    blocks, block = _here.blocks, [_checked(name, "backend")]
    blocks.enter(block)
    if not torch.compiler.is_compiling():
        _everywhere[id(block)] = block
    try:
        yield
    finally:  # blocks may end in any order: generators and coroutines suspend inside of them
        blocks.leave(block)
        if not torch.compiler.is_compiling():
            del _everywhere[id(block)]


def requested() -> str:
    """Return the implementation this thread asks for, "auto" by default."""
    name = _here.blocks.name
    if name is None and not torch.compiler.is_compiling() and _everywhere and _is_autograds():
        # What is recomputed there must keep for backward what it kept the first time.
        name = list(_everywhere.values())[-1][0]
    return _default if name is None else name


def _is_autograds() -> bool:
    """Whether this thread is autograd's own, which Python has not started."""
    in_backward = torch._C._current_graph_task_id() != -1
    return in_backward and isinstance(threading.current_thread(), threading._DummyThread)


#: Since torch 2.9 the precision of products can be set for each device, and where it is, the older
#: question raises.
_precision_of = getattr(torch._C, "_get_fp32_precision_getter", None)


def float32_precision() -> str:
    """What a GPU's products of float32 are to be: "highest", as accurate as float32, or "high",
    TF32; set by ``torch.set_float32_matmul_precision`` or ``torch.backends``.
    """
    if _precision_of is None:
        return "highest" if torch.get_float32_matmul_precision() == "highest" else "high"
    return "high" if _precision_of("cuda", "matmul") == "tf32" else "highest"


def transforms_active() -> bool:
    """Whether a ``torch.func`` transform (vmap, grad, jvp, …) is running; the compiler can trace
    this question.
    """
    return torch._C._are_functorch_transforms_active()


def is_watched(x: Tensor) -> bool:
    """Whether operations on a tensor are recorded or intercepted, not simply run: by a tracer, a
    fake or subclassed tensor, or a dispatch mode such as selective checkpointing's. What is
    recorded may be kept, and kernels, which need addresses, must then be inside an operator.
    """
    return (
        type(x) not in (Tensor, torch.nn.Parameter)
        or torch._C._len_torch_dispatch_stack() > 0
        or is_traced()
    )


def choose(
    x: Tensor,
    *,
    area: str | Area,
    operation: str | Operation,
    recovery: Recovery | None = None,
    training: bool = True,
) -> Choice:
    """The implementation of a pass that normalizes by the input's own statistics, and the reason
    for it. The first arguments are those of ``functional.normalize``; ``training`` is the layer's.

    >>> choose(torch.randn(8, 4), area="batch", operation="center").reason
    'center() is not made of means and covariances'
    """
    area, operation, asked = areas.resolve(area), operations.resolve(operation), requested()
    if asked == "reference":
        return Choice("reference", "asked for")
    fast = asked if asked in ("native", "triton") else _fast_on(x.device)
    backend, reason = "reference", _why_reference(operation, area, training)
    if reason is None:
        if x.dim() < 2:
            raise ValueError(f"expected an input (N, C, *); got shape {tuple(x.shape)}.")
        reason = _why_not_own_root(operation, area, x)
    if reason is None:
        if asked == "torch":
            return Choice("torch", "asked for")
        if fast == "native":
            backend, reason = "torch", _why_not_native(area, operation, x)
        else:
            colors = isinstance(recovery, Coloring)
            backend, reason = "torch", why_not_triton(area, operation, x, colors)
    if reason is None:
        return Choice(fast, "asked for" if asked == fast else _what_is_there(fast))
    if asked == fast:
        raise RuntimeError(f"backend={fast!r} was asked for, but {reason}.")
    return Choice(backend, reason)


def _what_is_there(fast: str) -> str:
    if fast == "native":
        return "a C compiler is there"
    return "Triton's interpreter stands in for a GPU" if INTERPRETING else "a GPU is there"


def _fast_on(device: torch.device) -> str:
    return "native" if device.type == "cpu" and not INTERPRETING else "triton"


def has_room_for_activation(operation: Operation, area: Area, x: Tensor) -> bool:
    """Whether the kernels, where they are chosen, can do an activation besides."""
    if not operation.is_matrix:
        return True
    size = area.num_features(x.shape[1])
    if x.dtype == torch.float32 and size > LARGEST_DEMANDING_GROUP:
        return False
    needed = _shared_memory_needed(x.dtype, size, operation.method != "newton", activates=True)
    return needed <= _shared_memory(x.device)


def why_not_explicit() -> str | None:
    """What around a layer only the reference can do, if anything."""
    if transforms_active():
        return "a torch.func transform is active, which the explicit path has no rule for"
    # The flag itself: inside a compiler some versions answer is_exporting() with True.
    if getattr(torch.compiler, "_is_exporting_flag", False):
        return "an export wants operators of torch alone"
    if forward_ad._current_level >= 0:
        return "forward-mode differentiation is active, which the explicit path has no rule for"
    return None


def _why_reference(operation: Operation, area: Area, training: bool) -> str | None:
    """What only the reference can do here, if anything."""
    reason = why_not_explicit()
    if reason is not None:
        return reason
    if is_traced() and not (training and area.spans_batch):
        return "torch.jit traces what may be deployed, where operators of torch alone are"
    if not operation.is_quadratic:
        # A compiler cannot trace a repr of numbers that it takes for symbols.
        name = "this operation" if torch.compiler.is_compiling() else repr(operation)
        return name + " is not made of means and covariances"
    return None


def _why_not_own_root(operation: Operation, area: Area, x: Tensor) -> str | None:
    """Return why a root of one's own leaves only the reference, if it does."""
    root = operation.own
    if root is None:
        return None
    if not root.is_explicit:
        return f"autograd differentiates the root {root.name!r}, which has no backward"
    if torch.compiler.is_compiling() or is_watched(x):
        return f"operators do not know the root {root.name!r}, which is not isonorm's"
    applied = area if operation.is_matrix else area.featurewise()
    if any([applied.problem_shape(b, 1, 1)[1] == 1 for b in applied.partition(x.shape[1])]):
        return f"the explicit path divides one channel by its deviation, without {root.name!r}"
    return None


def _why_not_native(area: Area, operation: Operation, x: Tensor) -> str | None:
    """What keeps native code from running, if anything."""
    if is_traced():
        return "what is exported may run where there is no native code"
    if x.device.type != "cpu":
        return f"the input is on {x.device.type}, and native code runs on a CPU"
    if not operation.is_matrix or area.features != "channels":
        return "native code whitens groups of channels, and nothing else"
    if x.dtype not in (torch.float32, torch.float64):
        return f"native code takes float32 and float64 input, not {x.dtype}"
    size = area.num_features(x.shape[1])
    if size < SMALLEST_NATIVE_GROUP and requested() != "native" and _is_mostly_padding(x, area):
        return f"plain torch is faster with so many groups of {size} channels"
    if size > LARGEST_NATIVE_GROUP:
        return f"native code takes groups up to {LARGEST_NATIVE_GROUP} channels, not {size}"
    # A compiler has an operator, in which nothing else looks on.
    if not torch.compiler.is_compiling() and is_watched(x):
        return "what is done to this tensor is watched, and native code cannot be"
    from . import native

    return native.why_not(x.dtype)


def _is_mostly_padding(x: Tensor, area: Area) -> bool:
    """Whether padded tiles, and d × d work on padded matrices, would be much."""
    if torch.compiler.is_compiling():  # sizes may be symbols, and should not be settled by this
        return True
    size = area.num_features(x.shape[1])
    problems = -(-x.shape[1] // size) * (1 if area.spans_batch else x.shape[0])
    return x.numel() // size * NATIVE_PADDING + problems * NATIVE_PADDING**3 > MOST_PADDED_WORK


def why_not_triton(area: Area, operation: Operation, x: Tensor, colors: bool) -> str | None:
    """Return what keeps the kernels from running, if anything."""
    if not x.is_cuda and not INTERPRETING:
        return f"the input is on {x.device.type}, and the kernels need a CUDA or ROCm GPU"
    if not HAS_TRITON:
        return "triton is not installed"
    if x.dtype not in (torch.float16, torch.bfloat16, torch.float32):
        return f"the kernels take float16, bfloat16 and float32 input, not {x.dtype}"
    if area.roles[3] == "b":
        return "the kernels do not add over the channels of one position"
    if colors and not (operation.is_matrix and area.features == "channels"):
        return "the kernels color only where Γ is part of their matrix"
    if not operation.is_matrix:
        if area.features != "channels" and x.shape[2:].numel() < FEWEST_POSITIONS:
            return f"with fewer than {FEWEST_POSITIONS} positions per channel, kernels gain nothing"
        return None
    size = area.num_features(x.shape[1])
    outside = area.features == "groups"  # a recovery then follows the kernels, which give float32
    exact = operation.method != "newton"
    if torch.version.hip is not None and (exact or x.dtype == torch.float32):
        return "Triton has no products as accurate as float32 for AMD's GPUs"
    largest = LARGEST_DEMANDING_GROUP if exact or outside else LARGEST_GROUP
    if size > largest:
        return f"the kernels take groups up to {largest} channels for this, not {size}"
    needed, there = _shared_memory_needed(x.dtype, size, exact), _shared_memory(x.device)
    if needed > there:
        return (
            f"the kernels need {needed >> 10} KB of shared memory for groups of {size} channels in "
            f"{x.dtype}, and this GPU has {there >> 10}"
        )
    return None


def _shared_memory_needed(
    dtype: torch.dtype, size: int, exact: bool, activates: bool = False
) -> int:
    """Bytes that the largest kernel takes with one tile in flight (see ``gpu.launch``), compiled
    for sm_80 and sm_86: Hopper has room for all. Groups up to 64 share matrices of 64 × 64.
    """
    if size > LARGEST_DEMANDING_GROUP:
        needed = {torch.float32: 192, torch.float16: 128}.get(dtype, 112 if activates else 96)
    elif dtype == torch.float32:
        needed = 112 if activates else 96
    else:
        needed = 96 if exact else 40
    return needed << 10


def _shared_memory(device: torch.device) -> int:
    """Bytes that one program can have at most; no limit where the device does not tell."""
    if device.type == "cuda":  # otherwise Triton's interpreter
        properties = torch.cuda.get_device_properties(device)
        if hasattr(properties, "shared_memory_per_block_optin"):
            return properties.shared_memory_per_block_optin
    return sys.maxsize


# The compiler takes the answer for a constant: it need not trace questions to the driver.
_shared_memory._dynamo_marked_constant = True  # type: ignore[attr-defined]
