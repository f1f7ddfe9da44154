"""What an explicit pass has to do, as a value: hashable, comparable, and a string where an
operator needs one.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..area import Area, Block, flat_shape
from ..operation import Operation
from ..recovery import Recovery
from ..roots import DEFAULT_STEPS, Recurrence, Root
from ..roots.recurrence import UNWATCHED_STEPS
from ..statistics import Statistics

#: Newton steps whose iterates and gradients stay in float16's range.
SHORT = 7
#: The largest group whose matrices fit the registers and shared memory of one program: for short
#: iterations, whose products are float16's, and for all.
LARGEST_SHORT_ROOT, LARGEST_ROOT = 128, 64
#: Iterations that kernels run: Newton's that need no watching, polar's that arrive.
FUSED_STEPS = {"newton": UNWATCHED_STEPS, "polar": (DEFAULT_STEPS,)}


#: Input shapes a plan remembers the problems of.
MOST_SHAPES = 256


class Result(NamedTuple):
    """What a pass gives back: the output, the statistics it used, and W, padded like Σ."""

    y: Tensor
    statistics: Statistics
    transform: Tensor


class Problem(NamedTuple):
    """One block with its problem shape, its statistics, and what forward kept of its root."""

    block: Block
    b: int
    d: int
    m: int
    mean: Tensor  # (b, d)
    cov: Tensor  # (b, d, d)
    w: Tensor  # (b, d, d)
    memo: Tensor
    rest: Tensor | None = None  # (b, d), of the mean


class Sums(NamedTuple):
    """What step 4 adds up over samples; the recovery's gradients only where they need x̂."""

    f: Tensor  # (b, d) Σ dy
    outer: Tensor  # (b, d, d) Σ dy(x − μ)ᵀ
    dweight: Tensor | None = None
    dbias: Tensor | None = None


class Gradients(NamedTuple):
    """What step 5 makes of the sums: the recovery's gradients, and dx = Aᵀdy + slope(x − μ) +
    shift.
    """

    dweight: Tensor | None
    dbias: Tensor | None
    a: Tensor  # (b, d, d)
    slope: Tensor  # (b, d, d), symmetric
    shift: Tensor  # (b, d)


def is_short(root: Recurrence) -> bool:
    """Whether kernels can run an iteration in float16."""
    return root.name == "newton" and len(root.steps) <= SHORT


class Packing:
    """Several arrays of numbers, 4 bytes or more each, in one tensor, at addresses that are
    divisible by 16.

    >>> packing = Packing(3, 5)
    >>> packing.size, [part.tolist() for part in packing.cut(torch.arange(packing.size))]
    (12, [[0, 1, 2], [4, 5, 6, 7, 8]])
    """

    __slots__ = ("parts", "size")

    def __init__(self, *sizes: int) -> None:
        starts = [0]
        for size in sizes:
            starts.append(starts[-1] + (size + 3) // 4 * 4)
        # Strictly: the compiler of torch 2.8 refuses unequal lengths in any case.
        self.parts = tuple(zip(starts[:-1], sizes, strict=True))
        self.size = starts[-1]

    def cut(self, tensor: Tensor) -> list[Tensor]:
        return [tensor.narrow(0, start, size) for start, size in self.parts]

    def addresses(self, tensor: Tensor) -> list[int]:
        base, step = tensor.data_ptr(), tensor.itemsize
        return [base + step * start for start, _ in self.parts]


@dataclass(frozen=True)
class Plan:
    """Area and operation of one pass, its eps, the process group it reduces over ("" for none), the
    implementation that runs it, and the activation fused with it ("" for none).

    The area is featurewise where the operation treats features one by one, so that ``"d" in
    area.roles`` says whether there are matrices to multiply.
    """

    area: Area
    operation: Operation
    eps: float
    group: str = ""
    backend: str = "torch"
    act: str = ""
    #: What an implementation has settled for the shapes it has seen.
    passes: dict[Hashable, Any] = field(default_factory=dict, compare=False, repr=False)
    _shapes: dict[tuple, list[tuple[Block, int, int, int]]] = field(
        default_factory=dict, compare=False, repr=False
    )

    def root(self, d: int, device: torch.device) -> Root | None:
        """The root of a whitening with more than one feature, as this plan's implementation has
        it; None where W is one reciprocal square root.
        """
        root = self._root(d, device)
        if root is None or self.backend != "native":
            return root
        from .native import in_native_code

        return in_native_code(root)

    def _root(self, d: int, device: torch.device) -> Root | None:
        root = self.operation.root if "d" in self.area.roles and d > 1 else None
        return None if root is None else root.on(device)

    @property
    def keeps_rest(self) -> bool:
        """Whether the rest of the mean matters: a matrix multiplies deviations from it."""
        return "d" in self.area.roles and self.operation.centers

    @property
    def folds_recovery(self) -> bool:
        """Whether γ multiplies the rows of W; otherwise it acts per channel, along the samples."""
        return self.area.features == "channels"

    def problem_shapes(self, x: Tensor) -> list[tuple[Block, int, int, int]]:
        """Return (block, b, d, m) for each block of an (N, C, *) input."""
        key = (*flat_shape(x), x.device)
        if torch.compiler.is_compiling() or any(type(n) is not int for n in key[:3]):
            return self._problem_shapes(*key)  # a compiler's sizes are symbols
        found = self._shapes.get(key)
        if found is None:
            if len(self._shapes) >= MOST_SHAPES:
                self._shapes.clear()
            found = self._shapes[key] = self._problem_shapes(*key)
        return found

    def _problem_shapes(
        self, batch: int, channels: int, positions: int, device: torch.device
    ) -> list[tuple[Block, int, int, int]]:
        blocks = self.area.partition(channels)
        if len(blocks) > 1 and self.area.spans_batch and self.fuses_root(blocks[0].size, device):
            blocks = (self.area.whole(channels),)  # kernels mask a shorter last group
        return [(block, *self.area.problem_shape(block, batch, positions)) for block in blocks]

    def fuses_root(self, d: int, device: torch.device) -> bool:
        """Whether one kernel runs the whole recurrence of a group: newton or polar, d up to 64, or
        up to 128 for a few steps of newton.

        Not where statistics come from all ranks: the kernels begin with this rank's own sums.
        """
        root = self._root(d, device)
        if self.backend != "triton" or self.group or not isinstance(root, Recurrence):
            return False
        largest = LARGEST_SHORT_ROOT if is_short(root) else LARGEST_ROOT
        return d <= largest and len(root.steps) in FUSED_STEPS[root.name]

    def memo_shape(self, b: int, d: int, device: torch.device) -> tuple[int, ...]:
        root = self._root(d, device)
        if self.fuses_root(d, device):
            assert isinstance(root, Recurrence)
            steps = len(root.steps)
            newton = 2 * max(
                steps - 1, 0
            )  # H and P of every step but the first: see ``gpu.iterates``
            return (0 if root.name == "polar" else newton, b, d, d)
        return (0,) if root is None else root.memo_shape(b, d)

    def kept(self, x: Tensor) -> Packing:
        """What ``gpu.fast_path`` keeps of its one block: μ, Σ, W, the root's memo and μ's rest."""
        _, b, d, _ = self.problem_shapes(x)[0]
        memo = self.memo_shape(b, d, x.device) if self.fuses_root(d, x.device) else (0,)
        return Packing(b * d, b * d * d, b * d * d, prod(memo), b * d)

    def encode(self) -> str:
        """One word a field, since the compiler must be able to trace this: "batch mbdm channels
        64 None whiten …".
        """
        a, o = self.area, self.operation
        c = _constant
        area = f"{a.name} {a.roles} {a.features} {c(a.group_size)} {c(a.num_groups)}"
        kind = f"{o.name} {o.centers} {o.scales} {c(o.norm)} {o.method} {c(o.num_iters)}"
        return f"{area} {kind} {c(self.eps)} {self.backend} {self.act} {self.group}"

    def shared_with(self, recovery: Recovery) -> str:
        """Name what ranks that share statistics must have in common; a compiler can trace this."""
        a, o = self.area, self.operation
        c = _constant
        groups = f"group_size={c(a.group_size)}, num_groups={c(a.num_groups)}"
        root = f"method={o.method}, num_iters={c(o.num_iters)}"
        given = f"weight={recovery.gain is not None}, bias={recovery.bias is not None}"
        return (
            f"{a.name} area ({groups}), {o.name} ({root}), eps={c(self.eps)}, "
            f"{type(recovery).__name__} ({given})"
        )

    @staticmethod
    @lru_cache(maxsize=512)
    def decode(text: str) -> Plan:
        words = text.split(" ", 14)
        name, roles, features, size, count, kind, centers, scales, norm, method, steps = words[:11]
        area = Area(name, roles, features, _integer(size), _integer(count))  # type: ignore[arg-type]
        operation = Operation(
            kind,
            centers == "True",
            scales == "True",
            float(norm),
            None if method == "None" else method,
            _integer(steps),
        )
        eps, backend, act, group = words[11:]
        return Plan(area, operation, float(eps), group, backend, act)


def make_plan(
    area: Area, operation: Operation, eps: float, group: str, backend: str, act: str = ""
) -> Plan:
    """The same plan for the same choices, so that it remembers what it has worked out."""
    if torch.compiler.is_compiling():
        return Plan(area, operation, eps, group, backend, act)
    return _cached_plan(area, operation, eps, group, backend, act)


_cached_plan = lru_cache(maxsize=512)(Plan)


def pack(parts: Sequence[Tensor]) -> Tensor:
    """The blocks' tensors as one: as it is for one block, the usual case; flat for two."""
    return parts[0] if len(parts) == 1 else torch.cat([p.reshape(-1) for p in parts])


def cut(packed: Tensor, shapes: Sequence[Sequence[int]]) -> list[Tensor]:
    """The blocks' tensors from what ``pack`` made of them."""
    parts = packed.reshape(-1).split([prod(shape) for shape in shapes])
    return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]


def _constant(value):
    """The value itself, also where the compiler would rather treat a number as unknown."""
    return [*{value}][0]  # noqa: RUF015 (a set's only member is what the compiler must know)


def _integer(text: str) -> int | None:
    return None if text == "None" else int(text)
