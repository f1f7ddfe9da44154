"""Parameters of many shapes, and gradients that two optimizers are given alike."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

#: A matrix, a convolution, a column, a bias, a number, one with nothing in it.
SHAPES = ((4, 3), (2, 3, 3, 3), (5, 1), (4,), (), (0, 3))


def make_params(dtype: torch.dtype = torch.float64, shapes=SHAPES) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [
        torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
        for shape in shapes
    ]


def set_grads(params: list[Tensor], step: int, scale: float = 1.0) -> None:
    generator = torch.Generator().manual_seed(100 + step)
    for p in params:
        grad = torch.randn(p.shape, generator=generator, dtype=torch.float64)
        p.grad = (scale * grad).to(p.dtype)


@pytest.fixture
def params() -> list[Tensor]:
    return make_params()
