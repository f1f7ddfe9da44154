"""What an explicit pass has to do, as a value: hashable, comparable, and a string where an
operator needs one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from ..area import Area, Block
from ..operation import Operation
from ..roots import Root
from ..statistics import Statistics


class Result(NamedTuple):
    """What a pass gives back: the output, the statistics it used, and W, padded like Σ."""

    y: Tensor
    statistics: Statistics
    transform: Tensor


@dataclass(frozen=True)
class Plan:
    """Area and operation of one pass, its eps, and the process group it reduces over ("" for none).

    The area is featurewise where the operation treats features one by one, so that ``"d" in
    area.roles`` says whether there are matrices to multiply.
    """

    area: Area
    operation: Operation
    eps: float
    group: str = ""

    def root(self, device: torch.device) -> Root | None:
        """The root of a whitening with more than one feature; None where W is one reciprocal
        square root.
        """
        root = self.operation.root if "d" in self.area.roles else None
        return None if root is None else root.on(device)

    @property
    def folds_recovery(self) -> bool:
        """Whether γ multiplies the rows of W; otherwise it acts per channel, along the samples."""
        return self.area.features == "channels"

    def problem_shapes(
        self, batch: int, channels: int, positions: int
    ) -> list[tuple[Block, int, int, int]]:
        """(block, b, d, m) for each block of an (N, C, S) input."""
        blocks = self.area.partition(channels)
        return [(block, *self.area.problem_shape(block, batch, positions)) for block in blocks]

    def memo_shape(self, b: int, d: int, m: int, device: torch.device) -> tuple[int, ...]:
        root = self.root(device)
        return (0,) if root is None else root.memo_shape(b, d, m)

    def encode(self) -> str:
        """One word a field, since the compiler must be able to trace this: "batch mbdm channels
        64 None whiten …".
        """
        a, o = self.area, self.operation
        area = f"{a.name} {a.roles} {a.features} {a.group_size} {a.num_groups}"
        operation = f"{o.name} {o.centers} {o.scales} {o.norm} {o.method} {o.num_iters}"
        return f"{area} {operation} {self.eps} {self.group}"

    @staticmethod
    @lru_cache(maxsize=512)
    def decode(text: str) -> Plan:
        words = text.split(" ", 12)
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
        return Plan(area, operation, float(words[11]), words[12])


def _integer(text: str) -> int | None:
    return None if text == "None" else int(text)
