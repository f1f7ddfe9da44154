"""Folded networks, traced by torch.fx, as passes over its graphs and quantization do."""

from __future__ import annotations

import pytest
import torch
from torch import fx, nn

import isonorm

from .nets import Net, conv, norm


def calls(traced: fx.GraphModule) -> list[str]:
    return [str(node.target) for node in traced.graph.nodes if node.op == "call_module"]


def test_a_norm_in_a_convolution_leaves_no_trace(same, x):
    """So that what matches a convolution and its activation finds them."""
    net = nn.Sequential(norm(), conv(0), conv(), norm(), nn.ReLU(), conv(), norm(act="relu"))
    folded = same(net, x)
    assert not folded.fold_report.which("convolution")
    traced = fx.symbolic_trace(folded)
    assert calls(traced) == ["1", "2", "4", "5", "6.act"]
    torch.testing.assert_close(traced(x.double()), folded(x.double()), rtol=0, atol=0)


def test_a_residual_is_added_in_the_graph(same, x):
    net = Net(lambda s, x: s.norm(s.conv(x), residual=x), conv=conv(), norm=norm(act="silu"))
    folded = same(net, x)
    traced = fx.symbolic_trace(folded)
    assert calls(traced) == ["conv", "norm.act"]
    torch.testing.assert_close(traced(x.double()), folded(x.double()), rtol=0, atol=0)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_norm_that_stays_a_map_is_one_call(size, same, x):
    net = Net(
        lambda s, x: s.norm(s.act(x), residual=x),
        act=nn.ReLU(),
        norm=isonorm.IterNorm(4, group_size=size),
    )
    folded = same(net, x)
    assert folded.fold_report.which("convolution") == ["norm"]
    traced = fx.symbolic_trace(folded)
    assert calls(traced) == ["act", "norm"]
    torch.testing.assert_close(traced(x.double()), folded(x.double()), rtol=0, atol=0)


def test_behind_a_linear_layer_the_axes_are_still_checked(same):
    folded = same(nn.Sequential(nn.Linear(5, 4), norm()), torch.randn(3, 5))
    traced = fx.symbolic_trace(folded)
    x = torch.randn(3, 5, dtype=torch.float64)
    torch.testing.assert_close(traced(x), folded(x), rtol=0, atol=0)
    with pytest.raises(ValueError, match="merged into '0' for inputs of 2 axes"):
        traced(torch.randn(2, 4, 5, dtype=torch.float64))
