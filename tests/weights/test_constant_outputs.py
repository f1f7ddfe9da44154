"""Data-dependent initialization where outputs do not vary, but for their last bits."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from isonorm.weights import centered_weight_norm, initialize_from_data, weight_norm


def gains(layer: nn.Module) -> torch.Tensor:
    return layer.parametrizations.weight.original0.detach().flatten().clone()


def equal_but_for_rounding(offset: float, dtype: torch.dtype) -> tuple[nn.Linear, torch.Tensor]:
    """A layer whose inputs have the same weights five at a time, and samples that differ in the
    order of such inputs alone. With so many outputs some are small differences of large terms.
    """
    layer = nn.Linear(65, 2000)
    with torch.no_grad():
        layer.weight.copy_(torch.randn(2000, 13).repeat(1, 5))
    five = torch.randn(5, 13) + offset
    x = torch.stack([five[torch.randperm(5)].flatten() for _ in range(100)])
    assert (layer(x).var(0) > 0).any()  # otherwise there is nothing to be told apart
    return layer.to(dtype), x.to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("offset", [0.0, 5.0])
@pytest.mark.parametrize("method", [weight_norm, centered_weight_norm])
def test_what_rounding_alone_makes_differ_keeps_every_gain(method, offset, dtype):
    layer, x = equal_but_for_rounding(offset, dtype)
    method(layer)
    before = gains(layer)
    initialize_from_data(layer, x)
    torch.testing.assert_close(gains(layer), before, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_small_variations_far_from_zero_are_no_rounding(dtype):
    layer = weight_norm(nn.Linear(8, 16).to(dtype))
    spread = {torch.float32: 1e-3, torch.bfloat16: 0.2, torch.float16: 0.03}[dtype]
    x = (3 + spread * torch.randn(400, 8)).to(dtype)
    initialize_from_data(layer, x)
    y = layer.float()(x.float())
    tolerance = 0.01 if dtype == torch.float32 else 0.3
    torch.testing.assert_close(y.std(0), torch.ones(16), rtol=tolerance, atol=0)


def test_an_input_may_be_given_by_name():
    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = weight_norm(nn.Linear(5, 3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(input=x)

    network, x = Network(), 2 + torch.randn(50, 5)
    assert initialize_from_data(network, x) == ["layer"]
    torch.testing.assert_close(network(x).var(0, correction=0), torch.ones(3))


def test_layers_called_with_more_than_their_input():
    class Up(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up = weight_norm(nn.ConvTranspose2d(3, 4, 3, stride=2))

        def forward(self, x):
            return self.up(x, output_size=(12, 12))

    model, x = Up(), torch.randn(16, 3, 5, 5)
    initialize_from_data(model, x)
    y = model(x).transpose(0, 1).flatten(1)
    torch.testing.assert_close(y.mean(1), torch.zeros(4), atol=1e-4, rtol=0)
    torch.testing.assert_close(y.std(1), torch.ones(4), atol=1e-2, rtol=0)
