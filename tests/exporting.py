"""Models as other runtimes see them: graphs of torch.export, ONNX and torch.jit, run and read."""

from __future__ import annotations

import warnings
from collections import Counter
from pathlib import Path

import onnxruntime
import torch
from torch import Tensor, nn
from torch.export import Dim

#: Operators that would put a factorization, or its iteration, into an exported eval graph.
LINEAR_ALGEBRA = ("linalg", "cholesky", "eigh", "solve", "inverse", "rsqrt")

#: What they would be in ONNX.
LOOPS_AND_ROOTS = {"Loop", "Scan", "If", "Det", "Inverse", "Sqrt", "Reciprocal"}


def operators(program: torch.export.ExportedProgram) -> Counter[str]:
    """How often each operator stands in an exported graph."""
    return Counter(str(node.target) for node in program.graph.nodes if node.op == "call_function")


def run_in_onnx(model: nn.Module, example: Tensor, folder: Path) -> Counter[str]:
    """Compares with onnxruntime, on batches of several sizes; how often each operator is used."""
    program = torch.onnx.export(
        model, (example,), dynamo=True, dynamic_shapes=({0: Dim("batch")},), verbose=False
    )
    assert program is not None
    path = folder / "model.onnx"
    program.save(path)
    _compare_in_onnxruntime(path, model, example)
    return Counter(node.op_type for node in program.model.graph)


def run_in_onnx_by_torchscript(model: nn.Module, example: Tensor, folder: Path) -> None:
    """The same with the exporter that torch 2.8 takes unless told otherwise."""
    path = folder / "model.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", torch.jit.TracerWarning)  # shapes are checked in Python
        warnings.simplefilter("ignore", DeprecationWarning)  # the exporter itself
        warnings.filterwarnings("ignore", "Constant folding", UserWarning)  # which it leaves out
        torch.onnx.export(
            model, (example,), path, dynamo=False, input_names=["x"], dynamic_axes={"x": {0: "n"}}
        )
    _compare_in_onnxruntime(path, model, example)


def _compare_in_onnxruntime(path: Path, model: nn.Module, example: Tensor) -> None:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    for size in (4, 1, 9):
        x = torch.randn(size, *example.shape[1:])
        (y,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
        torch.testing.assert_close(torch.from_numpy(y), model(x).detach(), rtol=1e-4, atol=1e-5)


def traced(model: nn.Module, example: Tensor) -> torch.jit.ScriptModule:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", torch.jit.TracerWarning)  # shapes are checked in Python
        warnings.simplefilter("ignore", DeprecationWarning)  # torch.jit itself
        return torch.jit.trace(model, example)  # type: ignore[return-value]
