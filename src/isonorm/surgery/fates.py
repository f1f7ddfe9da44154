"""What ``fold`` tells of its work."""

from __future__ import annotations

from typing import NamedTuple


class Fate(NamedTuple):
    """What became of one norm."""

    name: str
    kind: str  # its class
    became: str  # "merged", "convolution" or "left"
    into: str  # the layer it was merged into, or ""
    note: str  # why it was not merged, or what else changed, or ""

    def __str__(self) -> str:
        into = f" → {self.into}" if self.into else ""
        note = f": {self.note}" if self.note else ""
        return f"{self.became:11}  {self.name or 'the model'} ({self.kind}){into}{note}"


class FoldReport(tuple[Fate, ...]):
    """The fates of all norms, in the order of ``named_modules``; printed, one line each."""

    def which(self, became: str) -> list[str]:
        """The names of the norms with one fate."""
        return [fate.name for fate in self if fate.became == became]

    def __str__(self) -> str:
        head = f"{len(self.which('merged'))} of {len(self)} norms merged"
        return "\n".join([head, *(f"  {fate}" for fate in self)])
