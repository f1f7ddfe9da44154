"""The layers in equilibrium, one of each kind, and inputs for them."""

from __future__ import annotations

import pytest
import torch

from isonorm import EquiConv1d, EquiConv2d, EquiConv3d, EquiLinear

LAYERS = {
    "conv1d": (lambda **o: EquiConv1d(4, 6, 3, padding=1, **o), (5, 4, 7)),
    "conv2d": (
        lambda **o: EquiConv2d(4, 6, (3, 2), stride=(1, 2), padding=(1, 0), groups=2, **o),
        (5, 4, 6, 7),
    ),
    "conv3d": (lambda **o: EquiConv3d(4, 6, 2, dilation=2, **o), (3, 4, 4, 3, 5)),
    "linear": (lambda **o: EquiLinear(4, 6, **o), (5, 3, 4)),
}


class Case:
    def __init__(self, name: str) -> None:
        self.build, self.shape = LAYERS[name]

    def make(self, **options):
        """The layer, with an affine that is neither ones nor zeros."""
        layer = self.build(**options)
        with torch.no_grad():
            for name, parameter in layer.named_parameters():
                if name != "weight":
                    parameter += 0.3 * torch.randn_like(parameter)
        return layer

    def draw(self, dtype=torch.float32):
        return torch.rand(self.shape, dtype=dtype)


@pytest.fixture(params=LAYERS)
def case(request):
    return Case(request.param)


@pytest.fixture
def trained(case):
    layer = case.make()
    for _ in range(2):
        layer(case.draw())
    return layer
