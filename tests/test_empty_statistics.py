"""Statistics of no samples, the neutral element of ``merge``."""

from __future__ import annotations

import pytest
import torch

from isonorm.statistics import Statistics, measure, merge


def nothing(count) -> Statistics:
    double = {"dtype": torch.float64}
    return Statistics(count, torch.zeros(2, 3, **double), torch.zeros(2, 3, 3, **double))


counts = pytest.mark.parametrize("count", [0, torch.tensor(0)], ids=["int", "tensor"])


@counts
def test_two_empty_sets_are_an_empty_one(count):
    both = merge(nothing(count), nothing(count))
    assert both.count == 0
    torch.testing.assert_close(both[1:], nothing(count)[1:], rtol=0, atol=0)


@counts
def test_an_empty_set_changes_nothing(count):
    some = measure(1e4 + torch.randn(2, 3, 50, dtype=torch.float64))
    for both in (merge(some, nothing(count)), merge(nothing(count), some)):
        assert both.count == 50
        torch.testing.assert_close(both[1:], some[1:])
