"""Folded networks run the operators of networks without norms: in torch and in other runtimes."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

import isonorm
from benchmarks.folding import without_norms
from isonorm.lab.models import create_model
from tests.exporting import LINEAR_ALGEBRA, LOOPS_AND_ROOTS, operators, run_in_onnx, traced
from tests.lab.networks import NETWORKS


class Recorder(TorchDispatchMode):
    """The operators that run, each with the shapes of its tensors and its other arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.ran: list[tuple] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.ran.append((str(func), *map(_shapes, ((args, kwargs), out))))
        return out


def _shapes(values):
    return pytree.tree_map_only(torch.Tensor, lambda t: tuple(t.shape), values)


def ran(model: nn.Module, x: torch.Tensor) -> list[tuple]:
    with Recorder() as recorder, torch.no_grad():
        model(x)
    return recorder.ran


def test_resnet50_runs_what_it_runs_without_norms():
    """In full size, on the meta device."""
    with torch.device("meta"):
        model = create_model("resnet50", norm="iternorm")
        x = torch.empty(2, 3, 224, 224)
    folded = isonorm.fold(model)
    assert len(folded.fold_report.which("merged")) == len(folded.fold_report) == 53
    ours, plain = ran(folded, x), ran(without_norms(model), x)
    assert ours == plain
    assert sum("convolution" in operator for operator, *_ in ours) == 53
    assert len(ran(model.eval(), x)) > len(plain) + 53  # the recorder does see norms


def lived_in(label: str, norm: str) -> tuple[nn.Module, torch.Tensor]:
    """A small network in eval, with statistics of its own, and an input."""
    (network,) = (n for n in NETWORKS if str(n) == label)
    model, x = network.build(norm), network.example(4)
    with torch.no_grad():
        model(3 * network.example(seed=1) + 1)
    return model.eval(), x


@pytest.mark.slow
def test_resnet18_in_onnx_has_no_node_for_its_norms(tmp_path):
    model, x = lived_in("resnet18", "iternorm")
    kinds = run_in_onnx(isonorm.fold(model), x, tmp_path)
    layers = {"Conv": 20, "Relu": 17, "Add": 8, "MaxPool": 1, "Gemm": 1}
    pooling = {"GlobalAveragePool", "ReduceMean", "Reshape", "Flatten"}
    assert {kind: n for kind, n in kinds.items() if kind not in pooling} == layers, kinds


@pytest.mark.slow
@pytest.mark.parametrize(
    ("label", "norm", "fold"),
    [
        ("small_cnn", "iternorm", False),
        ("wrn_10_2", "dbn:group_size=3", True),  # norms that stay, some with a remainder
    ],
)
def test_networks_in_onnx(label, norm, fold, tmp_path):
    model, x = lived_in(label, norm)
    kinds = run_in_onnx(isonorm.fold(model) if fold else model, x, tmp_path)
    assert not set(kinds) & LOOPS_AND_ROOTS, kinds


@pytest.mark.parametrize("fold", [False, True], ids=["unfolded", "folded"])
def test_torch_export_and_trace(fold):
    model, x = lived_in("wrn_10_2", "dbn:group_size=3")
    model = isonorm.fold(model) if fold else model
    program = torch.export.export(model, (x,))
    torch.testing.assert_close(program.module()(x), model(x))
    names = operators(program)
    assert not any(word in name for name in names for word in LINEAR_ALGEBRA), names
    torch.testing.assert_close(traced(model, x)(x), model(x))
