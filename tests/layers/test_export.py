"""Eval as other runtimes see it: one product a group, no linear algebra, batches of any size."""

from __future__ import annotations

from io import BytesIO
from math import inf

import pytest
import torch
from torch import nn
from torch.export import Dim

import isonorm
from tests.exporting import (
    LINEAR_ALGEBRA,
    LOOPS_AND_ROOTS,
    operators,
    run_in_onnx,
    run_in_onnx_by_torchscript,
    traced,
)


def network(case, draw):
    """A layer in eval with statistics of its own, between two convolutions."""
    layer = case.make(act="relu")
    layer(draw(6, 12, 4, 3))
    return nn.Sequential(nn.Conv2d(3, 12, 1), layer, nn.Conv2d(12, 2, 1)).eval()


def exported(model, example, dynamic=("batch", "height", "width")):
    """A program for inputs of many sizes: the module to call, and its operators, all of torch."""
    axes = {"batch": 0, "height": 2, "width": 3}
    sizes = {axes[name]: Dim(name) for name in dynamic}
    program = torch.export.export(model, (example,), dynamic_shapes=(sizes,))
    names = operators(program)
    assert not any(name.startswith("isonorm") for name in names)
    return program.module(), names


def test_export_is_a_product(batch_graph_case, draw):
    model = network(batch_graph_case, draw)
    module, names = exported(model, torch.randn(4, 3, 5, 6))
    for shape in ((4, 3, 5, 6), (1, 3, 5, 6), (7, 3, 2, 9)):
        x = torch.randn(shape)
        torch.testing.assert_close(module(x), model(x))
    assert not any(word in name for name in names for word in LINEAR_ALGEBRA), names


def test_export_within_an_example(sample_case, draw):
    layer, shapes, dynamic = sample_case.make().eval(), [(4, 12, 5, 6)], ["batch"]
    if layer.operation.norm < inf:  # the constant of p = ∞ is made for one number of samples
        dynamic += ["height", "width"]
        shapes += [(7, 12, 2, 9)]
    module, _ = exported(layer, draw(4, 12, 5, 6), dynamic)
    for shape in (*shapes, (7, 12, 5, 6)):
        x = draw(*shape)
        torch.testing.assert_close(module(x), layer(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["iternorm", "dbn", "batchgroupnorm"])
def test_export_of_a_layer_fresh_from_a_checkpoint(cases, name, draw):
    """Cold: no forward, no second ``eval()`` between loading and export."""
    trained = cases[name].make()
    trained(draw(6, 12, 4, 3))
    layer = cases[name].build(12).eval()
    layer.load_state_dict(trained.state_dict())
    program = torch.export.export(layer, (draw(4, 12, 5),))
    x = draw(4, 12, 5)
    torch.testing.assert_close(program.module()(x), trained.eval()(x))


def test_a_saved_program_is_loaded(case, draw):
    """Of layers with running statistics, and of those that normalize by their input's."""
    for layer in (case.make().eval(), case.untracked().eval()):
        if torch.__version__ < "2.9" and layer.operation.method in ("zca", "pca"):
            continue  # that torch writes no NaN, which stands in them for what is not finite
        x, file = draw(4, 12, 5, 6), BytesIO()
        torch.export.save(torch.export.export(layer, (x,)), file)
        file.seek(0)
        torch.testing.assert_close(torch.export.load(file).module()(x), layer(x))


def test_trace(batch_case, draw):
    frozen, x = network(batch_case, draw), torch.randn(4, 3, 5, 6)
    module = traced(frozen, x)
    torch.testing.assert_close(module(x), frozen(x))
    graph = str(module.inlined_graph)
    assert not any(f"aten::{word}" in graph for word in LINEAR_ALGEBRA)


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
@pytest.mark.parametrize("size", [5, 80], ids=["few positions", "many"])
def test_a_trace_that_normalizes_by_its_input_is_of_torch_alone(case, size, draw):
    """Norms within an example, and over the batch where there are no running statistics."""
    layer, file = case.untracked().eval(), BytesIO()
    if layer.operation.norm == inf:
        pytest.skip("the constant of p = ∞ is made for one number of samples")
    module = traced(layer, draw(4, 12, 5, 6))
    assert "isonorm::" not in str(module.inlined_graph)
    torch.jit.save(module, file)
    for examples in (4, 7):
        x = draw(examples, 12, size, size)
        torch.testing.assert_close(module(x), layer(x), rtol=1e-3, atol=1e-4)


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
@pytest.mark.parametrize("tracked", [True, False], ids=["running statistics", "none"])
def test_traces_keep_channels_last(case, tracked, draw):
    layer = (case.make() if tracked else case.untracked()).eval()
    x = torch.randn(4, 12, 5, 6).to(memory_format=torch.channels_last)
    module = traced(layer, x)
    assert module(x).is_contiguous(memory_format=torch.channels_last)
    assert module(x.contiguous()).shape == x.shape


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
@pytest.mark.parametrize("name", ["instancewhitening", "groupwhitening"])
@pytest.mark.parametrize("method", ["zca", "polar", "newton", "cholesky"])
def test_traces_have_finite_gradients_where_eigenvalues_are_equal(name, method):
    layer = isonorm.create_norm(
        name, 8, method=method, **{"num_groups": 4} if "group" in name else {}
    )
    x = torch.zeros(2, 8, 3, 3, requires_grad=True)
    y = traced(layer.eval(), x)(x)
    (dx,) = torch.autograd.grad(y, x, torch.randn_like(y))
    assert y.isfinite().all() and dx.isfinite().all()


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
@pytest.mark.parametrize("name", ["iternorm", "dbn", "batchnorm"])
def test_a_trace_of_training_is_saved_and_learns(cases, name, draw):
    layer, x, file = cases[name].make(), draw(6, 12, 12, 12), BytesIO()
    torch.jit.save(traced(layer, x), file)
    file.seek(0)
    loaded = torch.jit.load(file)
    other = draw(6, 12, 12, 12).requires_grad_()
    cotangent = torch.randn_like(other)
    found, expected = (
        (y, *torch.autograd.grad(y, other, cotangent)) for y in (loaded(other), layer(other))
    )
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(loaded.running_mean, layer.running_mean)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["iternorm", "batchgroupnorm", "whiten-coloring"])
def test_onnx(cases, name, draw, tmp_path):
    kinds = run_in_onnx(network(cases[name], draw), torch.randn(4, 3, 5, 6), tmp_path)
    assert not set(kinds) & LOOPS_AND_ROOTS, kinds


@pytest.mark.slow
def test_onnx_within_an_example(cases, draw, tmp_path):
    run_in_onnx(network(cases["groupnorm"], draw), torch.randn(4, 3, 5, 6), tmp_path)


@pytest.mark.parametrize("shape", [(4, 12), (4, 12, 5, 6)], ids=str)
@pytest.mark.parametrize("fuse", [False, True], ids=["layer", "fused"])
@pytest.mark.parametrize("name", ["iternorm", "dbn", "batchgroupnorm", "whiten-coloring"])
def test_onnx_by_torchscript(cases, name, fuse, shape, draw, tmp_path):
    layer = cases[name].make(act="relu")
    layer(draw(64, *shape[1:]))
    layer.eval()
    run_in_onnx_by_torchscript(layer.fuse() if fuse else layer, torch.randn(shape), tmp_path)


@pytest.mark.parametrize("name", ["layernorm", "groupnorm", "instancenorm", "positionalnorm"])
def test_onnx_by_torchscript_within_an_example(cases, name, draw, tmp_path):
    run_in_onnx_by_torchscript(cases[name].make().eval(), draw(4, 12, 5, 6), tmp_path)


def test_onnx_by_torchscript_without_running_statistics(draw, tmp_path):
    layer = isonorm.IterNorm(12, group_size=4, track_running_stats=False).eval()
    run_in_onnx_by_torchscript(layer, draw(4, 12, 5, 6), tmp_path)
