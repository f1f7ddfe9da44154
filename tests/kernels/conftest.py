"""Memory in which an output that is not written shows, and products of numbers as they lie."""

from __future__ import annotations

import sys

import pytest
import torch
from torch import Tensor

from isonorm.kernels import tiles


@pytest.fixture
def poisoned_memory(monkeypatch):
    """An output that is not written shows as NaN."""

    def poisoned(make):
        def filled(*args, **kwargs) -> Tensor:
            tensor = make(*args, **kwargs)
            return tensor.fill_(torch.nan) if tensor.is_floating_point() else tensor

        return filled

    for name in ("empty", "empty_like"):
        monkeypatch.setattr(torch, name, poisoned(getattr(torch, name)))
    monkeypatch.setattr(Tensor, "new_empty", poisoned(Tensor.new_empty))


@pytest.fixture(params=["centered", "as they lie"])
def tiles_for_products(request, monkeypatch):
    """Small inputs, too, have products of numbers that are not centered, where that may be; or
    nothing has.
    """
    least = sys.maxsize if request.param == "centered" else 1
    monkeypatch.setattr(tiles, "FEWEST_TO_ASK", least)
