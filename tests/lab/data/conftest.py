"""Comparison of what was read with what was written."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor


@pytest.fixture(scope="session")
def same() -> Callable[[Tensor, Tensor, tuple[np.ndarray, np.ndarray]], None]:
    """Images and labels are exactly those of a part that was written."""

    def check(images: Tensor, labels: Tensor, part: tuple[np.ndarray, np.ndarray]) -> None:
        assert images.dtype == torch.uint8 and labels.dtype == torch.int64
        assert images.is_contiguous()
        np.testing.assert_array_equal(images.numpy(), part[0])
        np.testing.assert_array_equal(labels.numpy(), part[1])

    return check
