"""The kernel in equilibrium, explicit and by Triton's kernels, beside the reference."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from isonorm import EquiConv2d, EquiLinear, kernels
from isonorm.weights.balance import balanced_kernel
from isonorm.weights.equilibrium import normalize_kernel
from tests.weights.kernel_checks import (
    FALLBACKS,
    SHAPES,
    TOLERANCE,
    check_compiled,
    check_fallbacks,
    check_kernels,
    check_layer,
    check_operator,
)

FORMS = pytest.mark.parametrize("single_pass", [False, True], ids=["exact", "single-pass"])


def both_ways(w, v, gamma, **options):
    """Kernel and gradients: explicit, and the reference's."""
    given = [t.requires_grad_() for t in (w, v, gamma) if t is not None]
    kernel = balanced_kernel(w, v, 7, gamma, **options)
    expected = normalize_kernel(w, v / 7, gamma, **options)
    cotangent = torch.randn_like(kernel)
    assert "_Explicit" in type(kernel.grad_fn).__name__
    yield kernel, expected
    grads = (torch.autograd.grad(k, given, cotangent) for k in (kernel, expected))
    yield from zip(*grads, strict=True)


@FORMS
@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize(("shape", "groups"), SHAPES)
def test_explicit_is_the_reference(shape, groups, channels_last, affine, single_pass):
    w = torch.randn(shape, dtype=torch.float64)
    if channels_last:
        w = w.movedim(1, -1).contiguous().movedim(-1, 1)
    v = 9 * torch.rand(groups * shape[1], dtype=torch.float64)
    gamma = torch.randn(shape[0], dtype=torch.float64) if affine else None
    for found, expected in both_ways(w, v, gamma, groups=groups, single_pass=single_pass):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-10)
        assert found.stride() == expected.stride()


@FORMS
@pytest.mark.parametrize("case", FALLBACKS)
def test_explicit_is_the_reference_where_assumptions_fail(case, single_pass):
    w, v = (torch.tensor(t, dtype=torch.float64) for t in FALLBACKS[case])
    gamma = torch.tensor([1.7], dtype=torch.float64)
    for found, expected in both_ways(w, v, gamma, single_pass=single_pass):
        torch.testing.assert_close(found, expected)


@FORMS
def test_gradients_of_every_order(single_pass):
    w = torch.randn(4, 2, 3, dtype=torch.float64, requires_grad=True)
    v = (5 * torch.rand(4, dtype=torch.float64)).requires_grad_()
    gamma = torch.randn(4, dtype=torch.float64, requires_grad=True)

    def call(w, v, gamma):
        return balanced_kernel(w, v, 7, gamma, groups=2, single_pass=single_pass)

    assert gradcheck(call, (w, v, gamma), check_batched_grad=True)
    assert gradgradcheck(call, (w, v, gamma))


def test_a_layer_of_several_dtypes():
    """γ and v wider than w, as a user may have left them."""
    w = torch.randn(4, 3, 3, dtype=torch.bfloat16)
    v, gamma = 5 * torch.rand(3, dtype=torch.float64), torch.randn(4)
    for found, expected in both_ways(w, v, gamma, single_pass=True):
        assert found.dtype == expected.dtype
        torch.testing.assert_close(found, expected)


def test_the_reference_is_taken_where_it_is_asked_for():
    w, v = torch.randn(4, 3, 3, requires_grad=True), torch.rand(3)
    with kernels.backend("reference"):
        assert "_Explicit" not in type(balanced_kernel(w, v, 7).grad_fn).__name__


def test_tracing_records_the_reference():
    layer, x = EquiLinear(4, 3).eval(), torch.rand(5, 4)
    graph = torch.fx.experimental.proxy_tensor.make_fx(layer)(x)
    torch.testing.assert_close(graph(x), layer(x))


def test_training_between_the_forward_and_the_backward_of_eval():
    layer = EquiConv2d(3, 4, 3)
    x = torch.rand(2, 3, 5, 5, requires_grad=True)
    y = layer.eval()(x)
    cotangent = torch.randn_like(y)
    (expected,) = torch.autograd.grad(y, layer.weight, cotangent, retain_graph=True)
    layer.train()(x)
    (found,) = torch.autograd.grad(y, layer.weight, cotangent)
    assert torch.equal(found, expected)


@pytest.mark.gpu
@FORMS
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(("shape", "groups"), [*SHAPES, ((256, 256, 3, 3), 1), ((64, 8, 7, 7), 4)])
def test_kernels_agree_with_float64(shape, groups, dtype, channels_last, single_pass):
    check_kernels(shape, groups, single_pass, dtype, channels_last)


@pytest.mark.gpu
@FORMS
def test_fallbacks_of_the_kernels(single_pass):
    check_fallbacks(single_pass)


@pytest.mark.gpu
@pytest.mark.parametrize(
    "options",
    [{}, {"single_pass": False, "affine": False, "momentum": None}, {"statistics_fraction": 0.5}],
    ids=str,
)
def test_layers_on_the_kernels(options):
    check_layer(**options)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_layers_compiled(dtype):
    torch._dynamo.reset()
    check_compiled(dtype)
    check_compiled(dtype, single_pass=False, affine=False, statistics_fraction=0.5)


@pytest.mark.gpu
def test_operator():
    check_operator()
