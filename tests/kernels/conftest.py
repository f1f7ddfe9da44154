"""Memory in which an output that is not written shows."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor


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
