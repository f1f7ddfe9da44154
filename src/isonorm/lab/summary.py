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

    def text(self, missing: str, *, decimals: int | None = None, quartiles: bool = False) -> str:
        """Mean ± standard deviation, or, as EquiNorm's Section 6.5 argues, median and quartiles; to
        so many decimals, or to four digits of the mean or the median.

        >>> Estimate.over([2.0, 4.0, None]).text("never", decimals=1)
        '3.0 ± 1.4 (2 of 3)'
        >>> Estimate.over([1.0, 2.0, 9.0]).text("never", quartiles=True)
        '2.000 [1.500, 5.500]'
        >>> Estimate.over([768.4, 2e7, 2e9]).text("never", quartiles=True)
        '2.000e+07 [1.000e+07, 1.010e+09]'
        """
        if self.mean is None:
            return missing
        if quartiles and self.quartiles is not None:
            middle = self.quartiles[1]
            low, median, high = (_number(value, middle, decimals) for value in self.quartiles)
            return f"{median} [{low}, {high}]{self._share}"
        told = [value for value in (self.mean, self.spread) if value is not None]
        return " ± ".join(_number(value, self.mean, decimals) for value in told) + self._share

    @property
    def _share(self) -> str:
        return "" if self.count == self.total else f" ({self.count} of {self.total})"


def _number(value: float, like: float, decimals: int | None) -> str:
    """With so many decimals, or with those that give the number it stands beside four digits; then
    from 10⁴ on as a power of ten, as the evidence of claims has it.

    >>> [_number(value, 0.012345, None) for value in (0.012345, 0.1, 2083e4)]
    ['0.01235', '0.10000', '2.083e+07']
    >>> [_number(value, 2083e4, None) for value in (2083e4, 768.4, 0.0)]
    ['2.083e+07', '768', '0']
    """
    if decimals is None and abs(value) >= 1e4:
        return f"{value:.3e}"
    if decimals is None:
        size = math.floor(math.log10(abs(like))) if like else 0
        decimals = min(max(3 - size, 0), 7)
    return f"{value:.{decimals}f}"


def quantile(values: Sequence[float], share: float) -> float:
    """Between the two values nearest to it, as ``statistics.quantiles`` has it, which makes NaN of
    an infinite neighbor that has no weight.

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
