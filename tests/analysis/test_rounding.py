"""Condition numbers know rounding from variance, whatever the mean."""

from __future__ import annotations

from math import inf

import pytest
import torch
from torch import Tensor, nn

from isonorm.analysis import Monitor, condition, condition_number, layer_conditioning

OFFSETS = [0.0, 0.3, -10.0, 513.0, 1000.0, -1e5]
DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def dependent(kind: str, dtype: torch.dtype) -> Tensor:
    """Columns of which one follows from the others, in exact arithmetic."""
    x = torch.randn(4000, 5, dtype=torch.float64)
    match kind:
        case "sum":
            extra = x.sum(1, keepdim=True)
        case "mixture":
            extra = x @ torch.randn(5, 3, dtype=torch.float64)
        case _:  # most of it cancels, as a feature that is nearly another's copy
            extra = x[:, :1] + 1e-3 * x[:, 1:2]
    return torch.cat([x, extra], dim=1).to(dtype)


@pytest.mark.parametrize("offset", OFFSETS)
@pytest.mark.parametrize("kind", ["sum", "mixture", "copy"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_dependent_columns_are_singular(kind, dtype, offset):
    if dtype == torch.float16 and abs(offset) > 6e4:
        pytest.skip("no number of float16")
    x = dependent(kind, dtype) + torch.tensor(offset, dtype=dtype)
    assert condition_number(x) == condition(x).condition_number == inf


@pytest.mark.parametrize("spread", [False, True])
def test_dependent_columns_with_means_of_their_own(spread):
    x = dependent("mixture", torch.float32)
    means = 10 ** torch.linspace(0, 4, x.shape[1]) if spread else 300 * torch.randn(x.shape[1])
    assert condition_number(x + means) == inf


@pytest.mark.parametrize("of", ["input", "output"])
def test_layers_and_monitors_know_it_too(of):
    """A layer of lower rank, or an input of it, with a bias."""
    layer = nn.Linear(6, 6)
    with torch.no_grad():
        layer.weight[5] = layer.weight[:5].sum(0)
        layer.bias.fill_(500.0)
    x = torch.randn(2000, 6)
    if of == "input":
        x = torch.cat([x[:, :5], x[:, :5].sum(1, keepdim=True)], 1) + 500
    assert layer_conditioning(layer, x, of=of)[""].condition_number == inf
    with Monitor(layer, every=1, of=of) as monitor:
        layer(x)
        monitor.step()
    assert monitor.latest[0]["condition_number"] is None


@pytest.mark.parametrize(
    ("dtype", "offset", "smallest"),
    [
        (torch.float32, 0.0, 1e-6),
        (torch.float32, 1e3, 1e-3),
        (torch.float32, -1e5, 0.1),
        (torch.float32, 1e6, 1.0),
        (torch.float16, 100.0, 0.3),
        (torch.bfloat16, 10.0, 0.3),
        (torch.float64, 1e9, 1e-3),
    ],
)
def test_a_large_mean_alone_makes_nothing_singular(dtype, offset, smallest):
    """Standard deviations from 1 down to the smallest, about the offset; float64 is the judge."""
    scales = torch.logspace(0, torch.tensor(smallest).log10().item(), 16, dtype=torch.float64)
    x = torch.randn(4000, 16, dtype=torch.float64) * scales
    expected = condition_number(x)
    assert condition_number((x + offset).to(dtype)) == pytest.approx(expected, rel=0.2)
