"""Networks with something to lose: statistics, and parameters that are not ones and zeros."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn


@pytest.fixture
def images() -> Tensor:
    return torch.randn(6, 3, 9, 9) * torch.tensor([1.0, 5.0, 0.1]).view(3, 1, 1) + 3


@pytest.fixture
def lived_in(images) -> Callable[[nn.Module], nn.Module]:
    """Gives a network of images running statistics and parameters of its own; in eval."""

    def live(model: nn.Module) -> nn.Module:
        dtype = next(model.parameters()).dtype
        with torch.no_grad():
            for module in model.modules():
                if "Norm" in type(module).__name__:
                    for parameter in module.parameters(recurse=False):
                        parameter += 0.5 * torch.randn_like(parameter)
            for _ in range(3):
                model(images.to(dtype) + torch.randn_like(images).to(dtype))
        return model.eval()

    return live


@pytest.fixture
def network(lived_in) -> Callable[..., nn.Module]:
    """Two convolutions, each with a norm (BatchNorm2d unless told otherwise) and a ReLU."""

    def make(norm: Callable[[int], nn.Module] = nn.BatchNorm2d, **options) -> nn.Module:
        model = nn.Sequential(
            nn.Conv2d(3, 20, 3),
            norm(20),
            nn.ReLU(),
            nn.Conv2d(20, 10, 3),
            norm(10),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(10, 4),
        )
        return lived_in(model.to(**options) if options else model)

    return make


def _relative_error(found: Tensor, expected: Tensor) -> float:
    return ((found - expected).norm() / expected.norm()).item()


@pytest.fixture
def relative_error() -> Callable[[Tensor, Tensor], float]:
    return _relative_error
