"""Several seeds as one cell of a table: mean ± standard deviation, or median and quartiles."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import mean, quantiles, stdev


@dataclass(frozen=True)
class Estimate:
    """A number over seeds, of which ``count`` have it: some may diverge or miss a target."""

    mean: float | None
    spread: float | None  # standard deviation, where two seeds or more have the number
    count: int
    total: int
    quartiles: tuple[float, float, float] | None = None  # 25 %, median, 75 %

    @classmethod
    def over(cls, values: Iterable[float | None]) -> Estimate:
        """
        >>> Estimate.over([2.0, 4.0, None]).mean
        3.0
        """
        values = list(values)
        present = [value for value in values if value is not None]
        return cls(
            mean=mean(present) if present else None,
            spread=stdev(present) if len(present) > 1 else None,
            count=len(present),
            total=len(values),
            quartiles=_quartiles(present),
        )

    def scaled(self, factor: float) -> Estimate:
        """In another unit.

        >>> Estimate.over([0.25, 0.75]).scaled(100).mean
        50.0
        """

        def scale(value: float | None) -> float | None:
            return None if value is None else value * factor

        quartiles = self.quartiles and (
            self.quartiles[0] * factor,
            self.quartiles[1] * factor,
            self.quartiles[2] * factor,
        )
        return replace(
            self, mean=scale(self.mean), spread=scale(self.spread), quartiles=quartiles or None
        )

    def text(self, decimals: int, missing: str, *, quartiles: bool = False) -> str:
        """Mean ± standard deviation, or, as EquiNorm's Section 6.5 argues, median and quartiles.

        >>> Estimate.over([2.0, 4.0, None]).text(1, missing="never")
        '3.0 ± 1.4 (2 of 3)'
        >>> Estimate.over([1.0, 2.0, 9.0]).text(1, missing="never", quartiles=True)
        '2.0 [1.5, 5.5]'
        """
        if self.mean is None:
            return missing
        if quartiles and self.quartiles is not None:
            low, middle, high = self.quartiles
            between = f"[{low:.{decimals}f}, {high:.{decimals}f}]"
            return f"{middle:.{decimals}f} {between}{self._share}"
        spread = "" if self.spread is None else f" ± {self.spread:.{decimals}f}"
        return f"{self.mean:.{decimals}f}{spread}{self._share}"

    @property
    def _share(self) -> str:
        return "" if self.count == self.total else f" ({self.count} of {self.total})"


def quantile(values: Sequence[float], share: float) -> float:
    """Between the two values nearest to it, as ``statistics.quantiles`` has it, which makes NaN of
    an infinite neighbour that has no weight.

    >>> quantile([1.0, 2.0, 3.0, 4.0, math.inf], 0.75)
    4.0
    """
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below, above = ordered[math.floor(place)], ordered[math.ceil(place)]
    return below if below == above else below + (above - below) * (place % 1)


def _quartiles(values: Sequence[float]) -> tuple[float, float, float] | None:
    if len(values) < 2:
        return None
    low, middle, high = quantiles(values, n=4, method="inclusive")
    return low, middle, high
