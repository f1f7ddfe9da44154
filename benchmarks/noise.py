"""Whether two ways to compute the same training give the same curve, but for chance."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
from scipy.stats import t as student

#: How often two ways that are the same would be told apart, over all epochs together.
FALSE_ALARMS = 0.01


class Comparison(NamedTuple):
    """Of the losses of two kinds, epoch by epoch and over all of them.

    ``passed``: no epoch's means over seeds differ by more than ``limit`` standard errors.
    """

    passed: bool
    limit: float  # of |t|
    largest: float  # |t|
    t: list[float]
    noticed_percent: float  # the difference at the limit, of the loss: the median of the epochs
    noticed_by_epoch: list[float]
    between_kinds: float  # mean |difference|, of the same seed
    between_seeds: float  # mean |difference|, of the same kind


def limit_of(seeds: int, epochs: int) -> float:
    """The |t| that the largest of ``epochs`` stays below by chance but for ``FALSE_ALARMS``:
    Student's two-sided quantile with 2 (seeds − 1) degrees of freedom, by Bonferroni.

    >>> round(limit_of(seeds=4, epochs=1), 3)
    3.707
    """
    return float(student.ppf(1 - FALSE_ALARMS / (2 * epochs), 2 * (seeds - 1)))


def compare(one: Sequence[Sequence[float]], other: Sequence[Sequence[float]]) -> Comparison:
    """Curves of the same seeds in the same order, each a loss an epoch.

    >>> found = compare([[2.0, 1.0], [2.2, 1.2]], [[2.1, 1.0], [2.3, 1.2]])
    >>> found.passed, [round(t, 3) for t in found.t], round(found.between_kinds, 3)
    (True, [-0.707, 0.0], 0.05)
    """
    a, b = np.asarray(one), np.asarray(other)  # (seeds, epochs)
    if a.shape != b.shape or a.ndim != 2 or len(a) < 2 or not np.isfinite([a, b]).all():
        raise ValueError(
            "curves can be compared where both kinds have the same two seeds or more, all of them "
            f"with a finite loss for every epoch; got shapes {a.shape} and {b.shape}."
        )
    seeds, epochs = a.shape
    variance = (a.var(axis=0, ddof=1) + b.var(axis=0, ddof=1)) / 2
    error = np.sqrt(2 * variance / seeds)  # of the difference of two means
    difference = a.mean(axis=0) - b.mean(axis=0)
    if not error.all():
        raise ValueError("curves of different seeds are equal in some epoch: there is no chance.")
    t, limit = difference / error, limit_of(seeds, epochs)
    noticed = 100 * limit * error / ((a.mean(axis=0) + b.mean(axis=0)) / 2)
    pairs = [np.abs(kind[i] - kind[j]) for kind in (a, b) for i, j in combinations(range(seeds), 2)]
    largest = float(np.abs(t).max())
    return Comparison(
        passed=largest <= limit,
        limit=limit,
        largest=largest,
        t=t.tolist(),
        noticed_percent=float(np.median(noticed)),
        noticed_by_epoch=noticed.tolist(),
        between_kinds=float(np.abs(a - b).mean()),
        between_seeds=float(np.mean(pairs)),
    )
