"""``torch.compile(fullgraph=True)`` over every layer: outputs, gradients and buffers are those of
eager mode.
"""

from __future__ import annotations

import copy
from math import inf

import pytest
import torch
import torch._dynamo.testing
from torch.func import grad, jvp

import isonorm
from isonorm import operation


@pytest.fixture(autouse=True)
def _forget_compiled_code():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def run(layer, call, x, cotangent):
    """Output, gradients by input and parameters, and the buffers afterwards."""
    x = x.detach().requires_grad_()
    y = call(x)
    grads = torch.autograd.grad(y, [x, *layer.parameters()], cotangent)
    return [y, *grads, *(b.clone() for b in layer.buffers())]


def assert_compiled_equals_eager(layer, backend, draw, tolerance):
    other = copy.deepcopy(layer)
    compiled = torch.compile(other, fullgraph=True, backend=backend)
    dtype = next(layer.buffers(), torch.empty(0, dtype=torch.float64)).dtype
    for training in (True, False):
        layer.train(training)
        other.train(training)
        for _ in range(2):
            x, cotangent = draw(4, 12, 5, 3, dtype=dtype), torch.randn(4, 12, 5, 3, dtype=dtype)
            expected = run(layer, layer, x, cotangent)
            found = run(other, compiled, x, cotangent)
            for a, b in zip(found, expected, strict=True):
                torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)
            assert found[0].stride() == expected[0].stride()


def test_every_layer_traced_whole_equals_eager(graph_case, draw):
    layer = graph_case.make(dtype=torch.float64)
    assert_compiled_equals_eager(layer, "aot_eager", draw, tolerance=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["iternorm", "batchnorm"])
def test_layers_compiled_by_inductor_equal_eager(name, draw):
    options = {"group_size": 5} if name == "iternorm" else {}
    layer = isonorm.create_norm(name, 12, dtype=torch.float64, act="relu", **options)
    assert_compiled_equals_eager(layer, "inductor", draw, tolerance=1e-10)


def test_channels_last_residual_and_mixed_precision(draw):
    """What a compiled network brings along, in one graph."""
    layer = isonorm.IterNorm(12, group_size=5, act="silu")
    other = copy.deepcopy(layer)
    x = draw(4, 12, 5, 3).to(memory_format=torch.channels_last)
    residual = torch.randn_like(x)
    compiled = torch.compile(other, fullgraph=True, backend="aot_eager")
    with torch.autocast("cpu", torch.bfloat16):
        found = compiled(x.bfloat16(), residual.bfloat16())
        expected = layer(x.bfloat16(), residual.bfloat16())
    assert found.dtype == torch.bfloat16
    assert found.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(other.running_cov, layer.running_cov)


def graphs_for_all_batch_sizes(layer, draw, **options):
    """How many graphs a layer needs for batches of several sizes, each compared with eager mode."""
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    other = copy.deepcopy(layer)
    compiled = torch.compile(other, fullgraph=True, backend=counter, **options)
    for batch in (4, 7, 9, 12):
        x, cotangent = draw(batch, 12, 5, 3), torch.randn(batch, 12, 5, 3)
        expected, found = run(layer, layer, x, cotangent), run(other, compiled, x, cotangent)
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
    return counter.frame_count


@pytest.mark.parametrize(
    "name, dynamic",
    [("iternorm", None), ("iternorm", True), ("groupnorm", None), ("instancewhitening", None)],
    ids=["iternorm", "iternorm-dynamic", "groupnorm", "instancewhitening"],
)
def test_batches_of_any_size_share_a_graph(cases, name, dynamic, draw):
    """One graph for the first size, at most one more for all others."""
    assert graphs_for_all_batch_sizes(cases[name].make(), draw, dynamic=dynamic) <= 2


def test_layers_compiled_one_by_one(draw):
    """Layers share their code, so the compiler takes what differs between them for variables."""
    x = draw(4, 12, 5)
    for options in ({}, {"eps": 1e-3}, {"num_iters": 3}, {"group_size": 4}, {"momentum": 0.3}):
        layer = isonorm.IterNorm(12, **options)
        expected = copy.deepcopy(layer)(x)
        compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), expected)


@pytest.mark.parametrize("method", ["zca", "polar"])
def test_compiled_functions_equal_eager(method, draw):
    def whiten(x):
        return isonorm.functional.dbn(x, group_size=5, method=method)

    x = draw(6, 12, 4, dtype=torch.float64)
    compiled = torch.compile(whiten, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), whiten(x))


JVPS = {
    "newton": (isonorm.IterNorm, {"num_iters": 2}),
    "zca": (isonorm.DBN, {}),
    "cholesky": (isonorm.DBN, {"method": "cholesky"}),
}


# torch's own way to trace an autograd.Function, of which it warns itself
@pytest.mark.filterwarnings("ignore:.*Function'> should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize(("norm", "options"), JVPS.values(), ids=JVPS)
def test_jvp_inside_compile_is_that_of_eager(norm, options, draw):
    layer = norm(12, track_running_stats=False, dtype=torch.float64, **options)
    x, direction = (draw(4, 12, 5, dtype=torch.float64) for _ in range(2))

    def push(x, direction):
        return jvp(layer, (x,), (direction,))

    found = torch.compile(push, fullgraph=True, backend="aot_eager")(x, direction)
    expected = push(x, direction)
    assert expected[1].abs().max() > 0.1
    torch.testing.assert_close(found, expected)


def test_gradient_inside_compile(draw):
    layer = isonorm.IterNorm(12, num_iters=2, track_running_stats=False, dtype=torch.float64)
    x, cotangent = (draw(4, 12, 5, dtype=torch.float64) for _ in range(2))

    def pull(x):
        return grad(lambda x: (layer(x) * cotangent).sum())(x)

    found = torch.compile(pull, fullgraph=True, backend="aot_eager")(x)
    torch.testing.assert_close(found, pull(x))


@pytest.mark.parametrize("p", [1, 2, inf])
def test_symbols_for_sizes_do_not_keep_a_layer_from_being_traced(p, draw):
    layer = isonorm.Normalize(12, operation=operation.standardize(p), dtype=torch.float64)
    compiled = torch.compile(copy.deepcopy(layer), fullgraph=True, backend="eager", dynamic=True)
    for shape in ((4, 12, 5), (6, 12, 7)):
        x = draw(*shape, dtype=torch.float64)
        torch.testing.assert_close(compiled(x), layer(x))
