"""Networks with layers in equilibrium, traced by torch.fx."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import fx, nn

from isonorm import EquiConv1d, EquiConv2d, EquiConv3d, EquiLinear

NETWORKS = {
    "conv1d": (lambda: EquiConv1d(3, 4, 3), (5, 3, 8)),
    "conv2d": (lambda: EquiConv2d(3, 4, 3, padding=1), (5, 3, 6, 6)),
    "conv3d": (lambda: EquiConv3d(3, 4, 2), (5, 3, 4, 4, 4)),
    "linear": (lambda: EquiLinear(3, 4), (5, 3)),
}


@pytest.mark.parametrize("kind", NETWORKS)
def test_a_layer_in_equilibrium_is_one_call(kind):
    make, shape = NETWORKS[kind]
    network = nn.Sequential(make(), nn.ReLU())
    traced = fx.symbolic_trace(copy.deepcopy(network))
    assert [node.op for node in traced.graph.nodes] == [
        "placeholder", "call_module", "call_module", "output",
    ]  # fmt: skip
    for mode in (True, False):
        network.train(mode)
        traced.train(mode)
        x = torch.rand(shape)
        ours, theirs = traced(x), network(x)
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
        cotangent = torch.randn_like(ours)
        grads = [torch.autograd.grad(y, list(m.parameters()), cotangent)
                 for y, m in ((ours, traced), (theirs, network))]  # fmt: skip
        torch.testing.assert_close(*grads, rtol=0, atol=0)
    torch.testing.assert_close(traced.state_dict(), network.state_dict(), rtol=0, atol=0)


def test_a_layer_deep_in_a_network_is_found_by_its_path():
    traced = fx.symbolic_trace(nn.Sequential(nn.Sequential(nn.ReLU(), EquiLinear(3, 4))))
    assert "0.1" in [node.target for node in traced.graph.nodes]
