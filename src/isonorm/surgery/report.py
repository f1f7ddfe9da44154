"""What a change to a model did: a table to print, and its rows to compute with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from torch import nn


def is_same(deviation: float | None) -> bool:
    """Whether a deviation, in the mean square, is rounding: 1e-4 of the output at most."""
    return deviation is not None and deviation < 1e-8


class Refused(Exception):
    """Why a module is left as it is, as the end of a sentence that begins with its name."""


class Change(NamedTuple):
    """A norm that was replaced. ``deviation`` is the part of its eval output, in the mean square
    over data with its running statistics, that is now different; None where nobody can say.
    """

    name: str
    before: str
    after: str
    deviation: float | None = None
    note: str = ""

    @property
    def same(self) -> bool:
        """Whether eval is the same function as before, up to rounding."""
        return is_same(self.deviation)


class Left(NamedTuple):
    """A norm that was not replaced, and why."""

    name: str
    module: str
    reason: str


class Conversion:
    """The report of ``convert`` and its kin.

    ``unknown`` maps norms that changed to why their use is not known, where torch.fx cannot follow
    the model's forward: code there may read the norm's weight or statistics by itself.

    >>> print(Conversion([Change("bn", "BatchNorm2d(8)", "IterNorm(8)", 0.0)], []))
    1 norm changed, none left.
      bn  BatchNorm2d(8)  →  IterNorm(8)  same in eval
    """

    def __init__(
        self,
        changed: Sequence[Change],
        left: Sequence[Left],
        unknown: Mapping[str, str] | None = None,
    ) -> None:
        self.changed, self.left, self.unknown = tuple(changed), tuple(left), dict(unknown or {})

    def __repr__(self) -> str:
        return f"<Conversion: {len(self.changed)} changed, {len(self.left)} left>"

    def __str__(self) -> str:
        heading = f"{_count(self.changed)} changed, {len(self.left) or 'none'} left."
        rows = [(c.name, c.before, "→", c.after, _in_eval(c)) for c in self.changed]
        rows_left = [(row.name, row.module, row.reason) for row in self.left]
        lines = [heading, *table(rows)]
        if rows_left:
            lines += ["Left as they were:", *table(rows_left)]
        if self.unknown:
            lines += ["Not known: whether other code reads what these norms hold.", *self._doubts()]
        return "\n".join(lines)

    def _doubts(self) -> list[str]:
        """Return a line for each reason why the use of norms is not known."""
        names: dict[str, list[str]] = {}
        for name, why in self.unknown.items():
            names.setdefault(why, []).append(name)
        return table([(_some(found), why) for why, found in names.items()])


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


def _in_eval(change: Change) -> str:
    if change.same:
        words = "same in eval"
    elif change.deviation is None:
        words = "new in eval"
    else:
        words = f"differs in eval by {change.deviation**0.5:.1%}"
    return f"{words}: {change.note}" if change.note else words


def _count(rows: Sequence) -> str:
    return f"{len(rows) or 'no'} norm{'' if len(rows) == 1 else 's'}"


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows as lines whose columns are aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        ("  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)))
        .rstrip()
        for row in rows
    ]  # fmt: skip


def class_name(module: nn.Module) -> str:
    """Return the name of a module's class, also of one that was scripted since."""
    return getattr(module, "original_name", type(module).__name__)


def short(module: nn.Module) -> str:
    """A layer as a table shows it: class and channels."""
    channels = getattr(module, "num_features", getattr(module, "num_channels", None))
    if isinstance(module, nn.LayerNorm):
        channels = ", ".join(map(str, module.normalized_shape))
    parts = [] if channels is None else [str(channels)]
    act = getattr(module, "act", None)
    if isinstance(act, str | nn.Module):
        parts.append(act if isinstance(act, str) else type(act).__name__)
    return f"{class_name(module)}({', '.join(parts)})"
