"""What a study is: numbers, what they must show, and a picture of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from matplotlib.figure import Figure


class Claim(NamedTuple):
    """Something the numbers must show, and whether they do."""

    sentence: str
    holds: bool


@dataclass(frozen=True)
class Study:
    """An experiment of analysis.

    ``run`` takes sizes as keywords, by default the paper's, and returns numbers as JSON's types;
    ``claims`` judges them; ``draw`` shows them.
    """

    name: str
    title: str
    run: Callable[..., dict[str, Any]]
    claims: Callable[[dict[str, Any]], list[Claim]]
    draw: Callable[[dict[str, Any]], Figure]
