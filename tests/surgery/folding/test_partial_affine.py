"""BatchNorms with one of their two parameters: as ``bias=False`` makes them, or their owner."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import isonorm


@pytest.mark.parametrize("absent", ["weight", "bias"])
@pytest.mark.parametrize("before", [True, False], ids=["after a convolution", "before one"])
def test_a_norm_without_one_parameter_is_merged(absent, before):
    norm = nn.BatchNorm2d(6)
    for tensor in (norm.weight, norm.bias, norm.running_mean):
        nn.init.normal_(tensor)
    nn.init.uniform_(norm.running_var, 0.5, 2)
    norm.register_parameter(absent, None)
    layers = [nn.Conv2d(6, 6, 3), norm] if before else [norm, nn.Conv2d(6, 6, 3)]
    model = nn.Sequential(*layers).eval()
    folded = isonorm.fold(model)
    assert [fate.became for fate in folded.fold_report] == ["merged"]
    x = torch.randn(2, 6, 7, 7)
    torch.testing.assert_close(folded(x), model(x), rtol=1e-4, atol=1e-5)
