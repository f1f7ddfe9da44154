"""Ψ, the recovery: how a normalized activation gets its capacity back. One file each.

A recovery is a value, the tensors it acts with, for ``functional``; and a recipe for a layer's
parameters, ``initial``. It acts in one of two places. Where an area's features are channels,
``fold`` joins it to the problem's matrix, and the layer stays one map y = A(x − μ) + β; elsewhere
``scale`` acts per channel after Φ. The bias is added last in both.

Where γ and β are computed, of a label, a style, a map or the input, a recovery is a module around a
norm that recovers nothing: see ``modulation``.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor, nn

from ..area import Area, Block
from .adain import AdaIN as AdaIN
from .affine import Affine as Affine
from .attentive import Attentive as Attentive
from .coloring import Coloring as Coloring
from .conditional import Conditional as Conditional
from .conditional import Dynamic as Dynamic
from .modulation import Modulation as Modulation
from .spade import SPADE as SPADE

__all__ = [
    "SPADE",
    "AdaIN",
    "Affine",
    "Attentive",
    "Coloring",
    "Conditional",
    "Dynamic",
    "Modulation",
    "Recovery",
]


class Recovery(Protocol):
    @property
    def gain(self) -> Tensor | None:
        """γ or Γ: what multiplies x̂."""
        ...

    @property
    def bias(self) -> Tensor | None: ...

    @staticmethod
    def initial(
        num_features: int, area: Area, device=None, dtype=None
    ) -> dict[str, nn.Parameter]: ...

    def fold(self, w: Tensor, block: Block) -> Tensor: ...

    def scale(self, normalized: Tensor, block: Block) -> Tensor: ...


RECOVERIES = {"affine": Affine, "coloring": Coloring}


def resolve(recovery: str | type | None) -> type | None:
    """The class of a recovery from its name or from itself; None and "none" recover nothing."""
    if recovery is None or recovery == "none":
        return None
    if recovery in RECOVERIES.values():
        return recovery  # type: ignore[return-value]
    if not isinstance(recovery, str) or recovery not in RECOVERIES:
        raise ValueError(
            f"recovery must be None or one of {', '.join(RECOVERIES)}; got {recovery!r}: "
            "recoveries that are computed, such as isonorm.recovery.SPADE, go around a norm."
        )
    return RECOVERIES[recovery]
