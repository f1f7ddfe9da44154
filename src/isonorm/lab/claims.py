"""What a run says about a paper's claims."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, median, stdev

from .measuring.words import Measured
from .recipe import Claim, Spread
from .summary import quantile
from .train import Epoch, Result


def _last(quantity: Callable[[Epoch], float]) -> Callable[[Result], float]:
    return lambda result: quantity(result.epochs[-1])


def _average(quantity: Callable[[Epoch], float]) -> Callable[[Result], float]:
    return lambda result: mean(quantity(epoch) for epoch in result.epochs)


def _rise_of_test_loss(result: Result) -> float:
    """From its least to its last, as a factor: infinite from nothing to something."""
    losses = [epoch.test_loss for epoch in result.epochs]
    last, least = losses[-1], min(losses)
    if least == 0:  # logits so far apart that float32 has no loss for them
        return 1.0 if last == 0 else math.inf * last
    return last / least


def _early_test_error(result: Result) -> float:
    """Over the first tenth of the epochs."""
    return mean(epoch.test_error for epoch in result.epochs[: -(-len(result.epochs) // 10)])


def _condition_number(result: Result) -> float:
    """The median of those that were measured."""
    measured = [epoch.condition_number for epoch in result.epochs]
    measured = [number for number in measured if not math.isnan(number)]
    return median(measured) if measured else math.nan


#: What can be claimed of a training. Of each, less is better.
MEASURES: dict[str, Callable[[Result], float]] = {
    "train_loss": _last(lambda epoch: epoch.train_loss),
    "train_error": _last(lambda epoch: epoch.train_error),
    "test_loss": _last(lambda epoch: epoch.test_loss),
    "test_error": _last(lambda epoch: epoch.test_error),
    "test_top5_error": _last(lambda epoch: epoch.test_top5_error),
    # Over all epochs: the area under the curve, which is small where training is fast.
    "average_train_loss": _average(lambda epoch: epoch.train_loss),
    "average_train_error": _average(lambda epoch: epoch.train_error),
    "average_test_error": _average(lambda epoch: epoch.test_error),
    "early_test_error": _early_test_error,
    "rise_of_test_loss": _rise_of_test_loss,
    "seconds_per_step": lambda result: result.seconds_per_step,
    "seconds_per_epoch": lambda result: median(epoch.seconds for epoch in result.epochs),
    "test_seconds": lambda result: median(epoch.test_seconds for epoch in result.epochs),
    "condition_number": _condition_number,
    "peak_bytes": lambda result: max(epoch.peak_bytes for epoch in result.epochs),
}

#: Measures that are fractions, which the papers and the tables give in percent.
PERCENT = frozenset(name for name in MEASURES if name.endswith("error"))

#: What stands behind other measures in evidence; those that are not here have no unit.
_UNITS = {
    **dict.fromkeys(("seconds_per_step", "seconds_per_epoch", "test_seconds"), " s"),
    **dict.fromkeys(("milliseconds", "device_milliseconds"), " ms"),
    "peak_bytes": " bytes",
}

#: Losses and errors, of which nothing is worse than to diverge.
_OUTCOMES = PERCENT | {name for name in MEASURES if name.endswith("_loss")} - {"rise_of_test_loss"}
#: What a training takes, whatever becomes of it.
_WHILE_IT_RUNS = frozenset(("seconds_per_step", "seconds_per_epoch", "test_seconds", "peak_bytes"))


def in_words(name: str) -> str:
    """A measure as the head of a column.

    >>> in_words("test_error")
    'test error, %'
    """
    return name.replace("_", " ") + ", %" * (name in PERCENT)


def measure(name: str, result: Result | Measured) -> float:
    """A number of a training or of a layer. Of a training that diverged, losses and errors are
    infinite, its time and memory are what they were, and everything else is NaN.
    """
    if isinstance(result, Measured):
        return result.values[name]
    if not result.diverged or name in _WHILE_IT_RUNS:
        return MEASURES[name](result)
    return math.inf if name in _OUTCOMES else math.nan


#: By configuration: of each seed a training, or a measurement.
Results = Mapping[str, Sequence[Result]] | Mapping[str, Sequence[Measured]]


@dataclass(frozen=True)
class Verdict:
    """Whether a claim holds in a run, and by how much."""

    claim: Claim
    answer: str  # "holds", "fails", "undecided" or "not measured"
    evidence: str

    def content(self) -> dict[str, str]:
        """For ``result.json``."""
        return {
            "claim": self.claim.text,
            "measure": self.claim.measure,
            "answer": self.answer,
            "evidence": self.evidence,
        }

    def __str__(self) -> str:
        return f"{self.answer}: {self.claim.text} ({self.evidence})"


def judge(claim: Claim, results: Results, spread: Spread = "mean") -> Verdict:
    """Compare the means over seeds, or the medians. A claim is decided where they differ by the
    standard error of their difference or more, and in any case where it is true, or false, of every
    pair of seeds: the error of a median is estimated for a normal distribution, too large for
    numbers that span decades, and either is infinite where some seeds diverged and others did not.
    With one seed there is no such error, and their order counts.
    """
    sides = [_values(side, claim.measure, results) for side in (claim.lower, claim.higher)]
    if not all(sides):
        return Verdict(claim, "not measured", "no result yet")
    middle, error_of = (mean, _error_of_mean) if spread == "mean" else (_median, _error_of_median)
    low, high = sides
    evidence = (
        f"{_text(claim.lower, claim.measure, low, spread)} against "
        f"{_text(claim.higher, claim.measure, high, spread)}"
    )
    if _single_training(claim, results):
        evidence += ", one seed"
    difference = middle(high) + claim.margin - middle(low)
    if math.isnan(difference):  # both diverged, or nothing was measured
        return Verdict(claim, "undecided", evidence)
    error = math.hypot(error_of(low), error_of(high))
    apart = max(low) < min(high) + claim.margin or min(low) > max(high) + claim.margin
    enough = apart or (math.isfinite(error) and abs(difference) >= error)
    if difference == 0 or not enough:
        return Verdict(claim, "undecided", evidence)
    return Verdict(claim, "holds" if difference > 0 else "fails", evidence)


def _single_training(claim: Claim, results: Results) -> bool:
    """Whether chance alone may have put two trainings in this order."""
    sides = [results[side] for side in (claim.lower, claim.higher) if isinstance(side, str)]
    return all(len(side) == 1 and isinstance(side[0], Result) for side in sides)


def _values(side: str | float, name: str, results: Results) -> list[float]:
    if not isinstance(side, str):
        return [side]
    return [measure(name, result) for result in results.get(side, ())]


def _median(values: Sequence[float]) -> float:
    """NaN where one of them is, which has no place in an order."""
    return math.nan if any(map(math.isnan, values)) else median(values)


def _error_of_mean(values: Sequence[float]) -> float:
    if len(set(values)) < 2:  # one, or all of them diverged
        return 0.0
    return stdev(values) / math.sqrt(len(values)) if math.isfinite(sum(values)) else math.inf


def _error_of_median(values: Sequence[float]) -> float:
    """√(π/2)·σ/√n, with σ from the quartiles of a normal distribution: seeds that diverged do not
    count as long as they are few, nor do those that did not where these are few.
    """
    low, high = (quantile(values, share) for share in (0.25, 0.75))
    sigma = 0.0 if low == high else (high - low) / 1.349
    return math.sqrt(math.pi / 2) * sigma / math.sqrt(len(values))


def _text(side: str | float, name: str, values: Sequence[float], spread: Spread) -> str:
    numbers = [100 * value if name in PERCENT else value for value in values]
    unit = "%" if name in PERCENT else _UNITS.get(name, "")
    if any(map(math.isnan, numbers)):
        return f"{side} not measured with every seed"
    if not isinstance(side, str):
        return f"{numbers[0]:.4g}{unit}"
    if spread == "median" and len(numbers) > 1:
        return f"{side}: {_median(numbers):.4g}{unit}, the median"
    deviation = ""
    if len(numbers) > 1 and math.isfinite(sum(numbers)):
        spread_out = stdev(numbers)
        digits = ".0f" if 99.5 <= spread_out < 1e4 else ".2g"
        deviation = f" ± {spread_out:{digits}}"
    return f"{side}: {mean(numbers):.4g}{deviation}{unit}"
