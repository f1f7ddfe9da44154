"""When layers leave the fast path alone; what it computes is for ``fast_path_checks``."""

from __future__ import annotations

import sys

import pytest
import torch
from torch._dynamo.exc import BackendCompilerFailed

import isonorm
from isonorm.kernels import choice


def test_a_gpu_without_triton_trains_by_the_general_path(monkeypatch) -> None:
    """As torch for Windows has it. Interpreting stands in for the GPU."""
    for name in [*sys.modules]:
        if name.startswith("isonorm.kernels.gpu"):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.setattr(choice, "INTERPRETING", True)
    monkeypatch.setattr(choice, "HAS_TRITON", False)
    x, dy = torch.randn(2, 8, 4)
    found = []
    for backend in ("auto", "reference"):
        layer, leaf = isonorm.IterNorm(4, group_size=2), x.clone().requires_grad_()
        with isonorm.backend(backend):
            y = layer(leaf)
        gradients = torch.autograd.grad(y, (leaf, layer.weight, layer.bias), dy)
        found.append((y, *gradients, *layer.buffers()))
    assert int(layer.num_batches_tracked) == 1
    for got, want in zip(*found, strict=True):
        torch.testing.assert_close(got, want)


def test_every_supported_compiler_traces_the_fast_path(monkeypatch) -> None:
    """Without a GPU to run what it finds."""
    monkeypatch.setattr(choice, "INTERPRETING", True)
    monkeypatch.setattr(choice, "HAS_TRITON", True)
    found: list[str] = []

    def look(graph: torch.fx.GraphModule, _) -> None:
        found.extend(str(node.target) for node in graph.graph.nodes)
        raise NotImplementedError("nothing runs here")

    torch.compiler.reset()
    layer = torch.compile(isonorm.IterNorm(8, group_size=4), fullgraph=True, backend=look)
    with pytest.raises(BackendCompilerFailed, match="nothing runs here"):
        layer(torch.randn(6, 8, 5, 3))
    torch.compiler.reset()
    assert "isonorm.train" in found
