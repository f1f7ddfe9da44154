"""The operators a compiler sees: schema, fake implementation, autograd and AOT dispatch."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from isonorm import area, functional, operation
from isonorm.kernels import autograd
from isonorm.kernels.plan import Plan

C = 7  # groups of 3 leave a remainder of 1

PLANS = {
    "newton": Plan(area.batch(3), operation.whiten("newton"), 1e-3),
    "one-step": Plan(area.batch(2), operation.whiten("newton", 1), 1e-3),
    "zca": Plan(area.batch(3), operation.whiten("zca"), 1e-3),
    "pca": Plan(area.batch(3), operation.whiten("pca"), 1e-3),
    "cholesky": Plan(area.batch(3), operation.whiten("cholesky"), 1e-3),
    "polar": Plan(area.batch(3), operation.whiten("polar"), 1e-3),
    "instance": Plan(area.instance(3), operation.whiten("newton"), 1e-3),
    "group": Plan(area.group(7), operation.whiten("newton"), 1e-3),
    "batchnorm": Plan(area.batch(1).featurewise(), operation.standardize(), 1e-3),
    "layernorm": Plan(area.layer().featurewise(), operation.standardize(), 1e-3),
    "batchgroup": Plan(area.batch_group(7).featurewise(), operation.standardize(), 1e-3),
    "position": Plan(area.position().featurewise(), operation.standardize(), 1e-3),
    "rms": Plan(area.batch(1).featurewise(), operation.scale(), 1e-3),
}


def arguments(name, recovery, requires_grad=True):
    """x, weight, bias, color for a plan; color has a matrix for each group of channels."""
    plan = PLANS[name]
    x = torch.randn(5, C, 6, dtype=torch.float64)
    weight = torch.randn(C, dtype=torch.float64) if recovery in ("affine", "weight") else None
    bias = torch.randn(C, dtype=torch.float64) if recovery in ("affine", "coloring") else None
    color = None
    if recovery == "coloring":
        blocks = plan.area.partition(C)
        size = blocks[0].size
        color = torch.randn(sum(b.groups for b in blocks), size, size, dtype=torch.float64)
    tensors = (x, weight, bias, color)
    for tensor in tensors:
        if tensor is not None:
            tensor.requires_grad_(requires_grad)
    return tensors, plan


CASES = [
    *((name, "affine") for name in PLANS),
    ("newton", "none"),
    ("layernorm", "none"),
    ("newton", "weight"),
    ("group", "weight"),
    ("newton", "coloring"),
    ("instance", "coloring"),
]
cases = pytest.mark.parametrize("name, recovery", CASES, ids=lambda value: value)
# opcheck takes the longest of all: every plan once, and among them every recovery
OPCHECKED = {name: "affine" for name in PLANS} | {
    "newton": "coloring", "layernorm": "none", "group": "weight", "instance": "coloring"
}  # fmt: skip
opchecked = pytest.mark.parametrize("name, recovery", OPCHECKED.items(), ids=lambda value: value)


@opchecked
def test_the_operator_passes_opcheck(name, recovery):
    tensors, plan = arguments(name, recovery)
    torch.library.opcheck(torch.ops.isonorm.normalize.default, (*tensors, None, plan.encode()))


@cases
def test_outputs_lie_as_the_fake_says(name, recovery):
    """A compiler builds on strides, too."""
    tensors, plan = arguments(name, recovery, requires_grad=False)
    found = torch.ops.isonorm.normalize(*tensors, None, plan.encode())
    with FakeTensorMode() as mode:
        fakes = [None if t is None else mode.from_tensor(t) for t in tensors]
        expected = torch.ops.isonorm.normalize(*fakes, None, plan.encode())
    for a, b in zip(found, expected, strict=True):
        assert (a.shape, a.stride(), a.dtype) == (b.shape, b.stride(), b.dtype)


@opchecked
def test_its_backward_passes_opcheck(name, recovery):
    check_backward(name, recovery, statistics=True)


@pytest.mark.parametrize("name", ["newton", "layernorm"])
def test_its_backward_passes_opcheck_without_gradients_of_statistics(name):
    check_backward(name, "affine", statistics=False)


def test_gradients_lie_as_the_fake_says():
    """Also that of a matrix which is a view of another."""
    (x, weight, bias, color), plan = arguments("newton", "coloring", requires_grad=False)
    inputs = backward_inputs((x, weight, bias, color.mT), plan, statistics=False)
    found = torch.ops.isonorm.normalize_backward(*inputs)
    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(t) if isinstance(t, torch.Tensor) else t for t in inputs]
        expected = torch.ops.isonorm.normalize_backward(*fakes)
    for a, b in zip(found, expected, strict=True):
        assert (a.shape, a.stride(), a.dtype) == (b.shape, b.stride(), b.dtype)


def backward_inputs(tensors, plan, statistics):
    y, *saved = torch.ops.isonorm.normalize(*tensors, None, plan.encode())
    dmean, dcov = (torch.randn_like(t) if statistics else None for t in saved[1:3])
    return (torch.randn_like(y), dmean, dcov, *tensors, None, *saved, False, plan.encode())


def check_backward(name, recovery, statistics):
    tensors, plan = arguments(name, recovery, requires_grad=False)
    inputs = backward_inputs(tensors, plan, statistics)
    # It has no derivative of its own: a backward that is to be differentiated runs the reference.
    checks = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
    torch.library.opcheck(torch.ops.isonorm.normalize_backward.default, inputs, test_utils=checks)


@pytest.mark.parametrize("memory_format", [torch.channels_last, torch.contiguous_format], ids=str)
def test_the_operator_keeps_the_inputs_strides(memory_format):
    plan = PLANS["newton"]
    x = torch.randn(5, C, 3, 4).to(memory_format=memory_format).flatten(2)
    y, *_ = torch.ops.isonorm.normalize(x, None, None, None, None, plan.encode())
    assert y.stride() == x.stride()
    torch.library.opcheck(
        torch.ops.isonorm.normalize.default,
        (x.requires_grad_(), None, None, None, None, plan.encode()),
    )


@cases
def test_the_operator_is_the_eager_function(name, recovery):
    """Both wrappers of the explicit path, by outputs and gradients."""
    tensors, plan = arguments(name, recovery)
    inputs = [t for t in tensors if t is not None]
    found, _, *statistics = torch.ops.isonorm.normalize(*tensors, None, plan.encode())[:4]
    expected, saved = autograd.run(*tensors, plan)
    cotangents = [torch.randn_like(t) for t in (found, *statistics)]
    results = [
        [outputs[0], *torch.autograd.grad(outputs, inputs, cotangents)]
        for outputs in ([found, *statistics], [expected, saved.mean, saved.cov])
    ]
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["newton", "zca", "layernorm"])
def test_the_operator_twice_differentiated(name):
    (x, weight, bias, _), plan = arguments(name, "affine")

    def normalize(x, weight, bias):
        return torch.ops.isonorm.normalize(x, weight, bias, None, None, plan.encode())[0]

    assert torch.autograd.gradgradcheck(normalize, (x, weight, bias), fast_mode=True)


@pytest.mark.parametrize("mode", ["fake", "symbolic"])
def test_tracers_see_the_eager_function(mode):
    """Their tensors have no memory to look at."""
    x = torch.randn(5, C, 3, 4, dtype=torch.float64)

    def normalize(x):
        return functional.normalize(x, area=area.batch(3), operation="whiten")[0]

    traced = make_fx(normalize, tracing_mode=mode)(x)
    torch.testing.assert_close(traced(x), normalize(x))


@pytest.mark.parametrize("name", PLANS)
def test_plans_survive_their_text(name):
    plan = PLANS[name]
    assert Plan.decode(plan.encode()) == plan
    assert hash(Plan.decode(plan.encode())) == hash(plan)
