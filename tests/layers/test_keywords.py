"""The first argument of a layer is called ``input``, as that of torch's layers is."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch import nn

import isonorm
from isonorm import recovery

X = torch.randn(3, 32, 5, 5)
LAYERS: dict[str, nn.Module] = {
    **{name: isonorm.create_norm(name, 32) for name in isonorm.list_norms()},
    "equiconv1d": isonorm.EquiConv1d(32, 4, 3),
    "equiconv2d": isonorm.EquiConv2d(32, 4, 3),
    "equiconv3d": isonorm.EquiConv3d(32, 4, 3),
    "equilinear": isonorm.EquiLinear(5, 4),
    "fixed": isonorm.IterNorm(32).eval().fuse(),
}


@pytest.mark.parametrize("name", LAYERS)
def test_the_input_by_keyword(name):
    layer = LAYERS[name].eval()
    assert next(iter(inspect.signature(layer.forward).parameters)) == "input"
    others = [
        parameter
        for parameter in list(inspect.signature(layer.forward).parameters.values())[1:]
        if parameter.default is parameter.empty
    ]
    if not others and name not in ("equiconv1d", "equiconv3d"):
        assert torch.equal(layer(input=X), layer(X))


def test_modulations():
    labels = torch.tensor([0, 1, 2])
    for layer, given in [
        (recovery.Conditional(isonorm.BatchNorm(32, affine=False), 3), {"labels": labels}),
        (recovery.AdaIN(isonorm.InstanceNorm(32, affine=False)), {"style": X}),
        (recovery.Attentive(isonorm.BatchNorm(32, affine=False)), {}),
    ]:
        layer.eval()
        assert torch.equal(layer(**given, input=X), layer(X, *given.values()))
