"""Layers in equilibrium as compilers, exporters and other runtimes see them."""

from __future__ import annotations

import copy

import onnxruntime
import pytest
import torch
from torch import nn
from torch.export import Dim

from isonorm import EquiConv2d, EquiLinear


@pytest.fixture(autouse=True)
def _forget_compiled_code():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def network() -> nn.Module:
    return nn.Sequential(
        EquiConv2d(3, 4, 3, 2, 1, statistics_fraction=0.25),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        EquiLinear(4, 2, single_pass=False),
    )


def run(model: nn.Module, call, x, cotangent) -> list:
    """Output, gradients by input and parameters, and the buffers afterwards."""
    x = x.detach().requires_grad_()
    y = call(x)
    grads = torch.autograd.grad(y, [x, *model.parameters()], cotangent)
    return [y, *grads, *(b.clone() for b in model.buffers())]


@pytest.mark.slow
def test_compiled_in_one_graph_it_is_eager_mode():
    model = network().double()
    other = copy.deepcopy(model)
    compiled = torch.compile(other, fullgraph=True, backend="inductor")
    for training, batch in ((True, 4), (True, 7), (False, 5)):
        model.train(training)
        other.train(training)
        x, cotangent = torch.rand(batch, 3, 6, 5).double(), torch.randn(batch, 2).double()
        expected = run(model, model, x, cotangent)
        for a, b in zip(run(other, compiled, x, cotangent), expected, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


@pytest.fixture
def evaluated() -> nn.Module:
    """A network in eval with statistics of its own."""
    model = network()
    model(torch.rand(8, 3, 6, 5))
    return model.eval()


def test_export(evaluated):
    sizes = {0: Dim("batch"), 2: Dim("height", min=4), 3: Dim("width", min=4)}
    program = torch.export.export(evaluated, (torch.rand(4, 3, 6, 5),), dynamic_shapes=(sizes,))
    for shape in ((4, 3, 6, 5), (1, 3, 9, 4)):
        x = torch.rand(shape)
        torch.testing.assert_close(program.module()(x), evaluated(x))


def test_export_of_the_fused_network_is_convolutions_alone(evaluated):
    for name, module in list(evaluated.named_children()):
        if hasattr(module, "fuse"):
            setattr(evaluated, name, module.fuse())
    program = torch.export.export(evaluated, (torch.rand(4, 3, 6, 5),))
    names = {str(node.target) for node in program.graph.nodes if node.op == "call_function"}
    assert {"aten.conv2d.default", "aten.linear.default"} <= names
    assert not any("where" in name or "sum" in name for name in names), names


@pytest.mark.slow
def test_onnx(evaluated, tmp_path):
    program = torch.onnx.export(
        evaluated, (torch.rand(4, 3, 6, 5),), dynamo=True,
        dynamic_shapes=({0: Dim("batch")},), verbose=False,
    )  # fmt: skip
    path = tmp_path / "model.onnx"
    program.save(path)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    for size in (4, 1):
        x = torch.rand(size, 3, 6, 5)
        (y,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
        torch.testing.assert_close(torch.from_numpy(y), evaluated(x).detach(), rtol=1e-4, atol=1e-5)
