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
    """What a recovery of your own has to have: a class, made by keyword of the tensors that
    ``initial`` names. A subclass inherits everything here but ``initial`` and ``scale``.

    Ψ(x̂) = ψ(x̂) + β must have a ψ that is linear in the channels at each position: eval, ``fold``
    and conversion make one matrix of it. Layers and functions run it after Φ.

    >>> import isonorm, torch
    >>> class Shared(Recovery):  # one γ for all channels
    ...     def __init__(self, size):
    ...         self.size = size
    ...     @staticmethod
    ...     def initial(num_features, area, device=None, dtype=None):
    ...         return {"size": nn.Parameter(torch.ones(1, device=device, dtype=dtype))}
    ...     def scale(self, normalized, block):
    ...         return normalized * self.size.to(normalized.dtype)
    >>> isonorm.Normalize(8, recovery=Shared).size.shape
    torch.Size([1])
    """

    @property
    def gain(self) -> Tensor | None:
        """γ or Γ, where a parameter ``weight`` of shape (C,), or ``color``, multiplies x̂; None
        for anything else.
        """
        return None

    @property
    def bias(self) -> Tensor | None:
        """β, of shape (C,), which is added last."""
        return None

    @staticmethod
    def initial(num_features: int, area: Area, device=None, dtype=None) -> dict[str, nn.Parameter]:
        """A layer's parameters by name, with which Ψ is the identity."""
        ...

    def fold(self, w: Tensor, block: Block) -> Tensor:
        """ψ's matrix times W, for the (…, K, c, d) rows of a block whose features are channels."""
        columns = w.reshape(-1, *w.shape[-3:])
        return self.scale(columns, block).reshape(w.shape)

    def scale(self, normalized: Tensor, block: Block) -> Tensor:
        """ψ of a block's (N, K, c, S) view."""
        ...


RECOVERIES = {"affine": Affine, "coloring": Coloring}
#: What a recovery's class must have, and its objects, beside ``gain`` and ``bias``.
_CALLABLES = ("initial", "fold", "scale")


def is_own(recovery: object) -> bool:
    """Return whether a recovery is not isonorm's, which other code may know in detail."""
    return type(recovery) not in (Affine, Coloring)  # a tuple, which every compiler can trace


def missing_parts(recovery: object) -> list[str]:
    """Return what a recovery, or its class, does not have of ``Recovery``, by name."""
    lacks = [name for name in _CALLABLES if not callable(getattr(recovery, name, None))]
    if isinstance(recovery, type):
        return lacks  # a class may make its gain and bias in ``__init__``
    return lacks + [name for name in ("gain", "bias") if not hasattr(recovery, name)]


def name_of(recovery: type) -> str:
    """Return the name of a recovery's class, as a layer's repr shows it."""
    name = getattr(recovery, "name", None)
    return name if isinstance(name, str) else recovery.__name__


def resolve(recovery: str | type | None) -> type | None:
    """The class of a recovery from its name or from itself; None and "none" recover nothing."""
    if recovery is None or recovery == "none":
        return None
    if isinstance(recovery, str) and recovery in RECOVERIES:
        return RECOVERIES[recovery]
    if isinstance(recovery, type) and issubclass(recovery, nn.Module):
        raise ValueError(
            f"recovery must be a class with the parts of isonorm.recovery.Recovery; "
            f"{recovery.__name__} is a module: recoveries that are computed, such as "
            "isonorm.recovery.SPADE, go around a norm."
        )
    if isinstance(recovery, type):
        if lacks := missing_parts(recovery):
            raise ValueError(
                f"a recovery's class must have {', '.join(_CALLABLES)}, gain and bias, as "
                f"isonorm.recovery.Recovery has; {recovery.__name__} lacks {', '.join(lacks)}."
            )
        return recovery
    plain = isinstance(recovery, (str, int, float))
    got = repr(recovery) if plain else f"an object, {type(recovery).__name__}"
    raise ValueError(
        f"recovery must be None or one of {', '.join(RECOVERIES)}, or a recovery's class; got "
        f"{got}: a layer makes the parameters of the class itself."
    )
