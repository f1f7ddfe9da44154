"""One style for every figure: for the screen, for print, and without relying on color."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from itertools import cycle
from typing import Any, ParamSpec

import matplotlib
from matplotlib.axes import Axes
from matplotlib.colors import to_hex

P = ParamSpec("P")

STYLE: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.edgecolor": "0.4",
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "0.9",
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.7,
    "xtick.color": "0.4",
    "xtick.labelcolor": "0.2",
    "ytick.color": "0.4",
    "ytick.labelcolor": "0.2",
    "ytick.minor.size": 0,
    "legend.frameon": False,
    "savefig.dpi": 200,
    "svg.hashsalt": "isonorm",  # equal curves give equal files
}

_SOLID, _DASHED, _DOTTED, _DASHDOT = "-", (0, (5, 1.5)), (0, (1.2, 1.2)), (0, (6, 1.5, 1.2, 1.5))
_DASHDOTDOT = (0, (8, 1.5, 1.2, 1.5, 1.2, 1.5))

# Colors of Okabe and Ito, with dashes for where color is lost. A norm that most comparisons show
# looks the same in all of them; others take what is free.
_LOOKS = {
    "plain": ("#6b6b6b", _DOTTED),
    "batchnorm": ("#E69F00", _DASHED),
    "dbn": ("#009E73", _DASHDOT),
    "iternorm": ("#0072B2", _SOLID),
    "equinorm": ("#D55E00", _DASHDOTDOT),
}
#: The papers' names for them, in small letters.
_ALSO_CALLED = {"bn": "batchnorm", "baseline": "batchnorm"}
_OTHER_COLORS = ("#D55E00", "#CC79A7", "#56B4E9", "#000000", "#F0E442")
_OTHER_DASHES = (_SOLID, _DASHED, _DASHDOT, _DOTTED)

INK, PALE = "#0072B2", "0.75"  # what a picture is about, and what surrounds it
ACCENT = "#D55E00"


def looks(norms: Sequence[str]) -> list[tuple[str, Any]]:
    """Color and dashes of each norm: its own, or the next free ones."""
    own = [_LOOKS.get(_ALSO_CALLED.get(norm.lower(), norm.lower())) for norm in norms]
    own = [look if look not in own[:i] else None for i, look in enumerate(own)]
    taken = {look[0] for look in own if look is not None}
    colors, dashes = _OTHER_COLORS * len(_OTHER_DASHES), _OTHER_DASHES * len(_OTHER_COLORS)
    every = zip(colors, dashes, strict=True)
    free = cycle([look for look in every if look[0] not in taken])
    return [next(free) if look is None else look for look in own]


def ramp(count: int) -> list[str]:
    """Blues from dark to light, for things that have an order."""
    colors = matplotlib.colormaps["Blues"]
    shares = [1 - 0.65 * i / max(count - 1, 1) for i in range(count)]
    return [to_hex(colors(share)) for share in shares]


def styled(draw: Callable[P, Axes]) -> Callable[P, Axes]:
    """Draws in the house's style; without ``ax``, on new axes of pyplot's."""

    @wraps(draw)
    def drawn(*args: P.args, **kwargs: P.kwargs) -> Axes:
        with matplotlib.rc_context(STYLE):
            if kwargs.get("ax") is None:
                from matplotlib import pyplot

                kwargs["ax"] = pyplot.subplots(figsize=(4.2, 3.2), layout="constrained")[1]
            return draw(*args, **kwargs)

    return drawn


def axes_of(ax: Axes | None) -> Axes:
    """For the type checker: ``styled`` has put axes there."""
    assert ax is not None
    return ax
