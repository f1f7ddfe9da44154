"""Several seeds as one line of a table: mean ± standard deviation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import mean, quantiles, stdev

from rich.table import Table

from .train import Result

TARGET_ACCURACY = 0.95


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


@dataclass(frozen=True)
class Summary:
    """What the seeds of one normalization have in common."""

    norm: str
    train_loss: Estimate
    test_error: Estimate
    epochs_to_target: Estimate
    seconds_per_step: Estimate


def summarize(results: dict[str, Sequence[Result]]) -> list[Summary]:
    """One summary for each normalization, from the results of its seeds."""

    def over(ask: Callable[[Result], float | None], seeds: Sequence[Result]) -> Estimate:
        return Estimate.over(map(ask, seeds))

    return [
        Summary(
            norm,
            train_loss=over(lambda result: result.train_loss, seeds),
            test_error=over(lambda result: result.test_error, seeds),
            epochs_to_target=over(lambda result: result.epochs_to(TARGET_ACCURACY), seeds),
            seconds_per_step=over(lambda result: result.seconds_per_step, seeds),
        )
        for norm, seeds in results.items()
    ]


def table(summaries: Sequence[Summary], description: str) -> Table:
    """The summaries as a rich table, in familiar units."""
    spread = any(row.train_loss.total > 1 for row in summaries)
    caption = f"{description}; mean ± standard deviation" if spread else description
    table = Table(caption=caption, caption_justify="left")
    table.add_column("norm", style="bold", no_wrap=True)
    for heading in (
        "train loss",
        "test error, %",
        f"epochs to {TARGET_ACCURACY:.0%}",
        "ms per step",
    ):
        table.add_column(heading, justify="right")
    for row in summaries:
        table.add_row(
            row.norm,
            row.train_loss.text(4, missing="diverged"),
            _scaled(row.test_error, 100).text(2, missing="diverged"),
            row.epochs_to_target.text(1, missing="not reached"),
            _scaled(row.seconds_per_step, 1000).text(2, missing="–"),
        )
    return table


def _scaled(estimate: Estimate, factor: float) -> Estimate:
    def scale(value: float | None) -> float | None:
        return None if value is None else value * factor

    return Estimate(scale(estimate.mean), scale(estimate.spread), estimate.count, estimate.total)


def _quartiles(values: Sequence[float]) -> tuple[float, float, float] | None:
    if len(values) < 2:
        return None
    low, middle, high = quantiles(values, n=4, method="inclusive")
    return low, middle, high
