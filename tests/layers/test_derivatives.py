"""Derivatives of every layer, in every mode autograd and ``torch.func`` know."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.autograd import forward_ad
from torch.func import functional_call, grad, jvp, vmap

import isonorm


def gradients(layer, x, cotangent):
    """Gradients of ⟨y, cotangent⟩ by the input and every parameter."""
    x = x.detach().requires_grad_()
    y = layer(x)
    return y, torch.autograd.grad(y, [x, *layer.parameters()], cotangent)


def trained(case, draw, **options):
    """A layer in eval whose running statistics are not those of initialization."""
    layer = case.make(**options)
    for _ in range(3):
        layer(draw(6, 12, 4, 3, dtype=options.get("dtype", torch.float32)))
    return layer.eval()


def as_function(layer):
    """The layer as a function of its input and parameters, and the values of the parameters."""
    names, values = [n for n, _ in layer.named_parameters()], tuple(layer.parameters())
    return lambda x, *ps: functional_call(layer, dict(zip(names, ps, strict=True)), (x,)), values


@pytest.mark.parametrize(
    "dtype, tolerance", [(torch.float64, 1e-10), (torch.float32, 2e-3)], ids=["f64", "f32"]
)
def test_training_backward_is_that_of_the_reference(case, draw, dtype, tolerance):
    layer = case.make(dtype=dtype)
    exact = copy.deepcopy(layer).double()
    x, cotangent = draw(6, 12, 4, 3), torch.randn(6, 12, 4, 3)
    y, found = gradients(layer, x.to(dtype), cotangent.to(dtype))
    with isonorm.backend("reference"):
        expected_y, expected = gradients(exact, x.double(), cotangent.double())
    torch.testing.assert_close(y.double(), expected_y, rtol=tolerance, atol=tolerance)
    for a, b in zip(found, expected, strict=True):
        scale = b.abs().max().item()
        torch.testing.assert_close(a.double(), b, rtol=tolerance, atol=tolerance * max(scale, 1))


def test_eval_backward(case, draw):
    f, parameters = as_function(trained(case, draw, dtype=torch.float64))
    x = draw(3, 12, 4, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(f, (x, *parameters), fast_mode=True)


def test_parameters_can_be_trained_in_eval(learning_case, draw):
    """Fine-tuning with frozen statistics: a step on γ and β is seen by the next forward."""
    layer, x = trained(learning_case, draw), draw(4, 12, 5)
    buffers = {name: b.clone() for name, b in layer.named_buffers()}
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    before = layer(x)
    before.backward(torch.randn_like(x))
    optimizer.step()
    after = layer(x)
    fresh = learning_case.build(12)
    fresh.load_state_dict(layer.state_dict())
    assert not torch.allclose(before, after, atol=1e-3)
    torch.testing.assert_close(after, fresh.eval()(x))
    for name, b in layer.named_buffers():
        assert torch.equal(b, buffers[name]), name


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_second_backward_over_one_graph(case, draw, training):
    layer = trained(case, draw).train(training)
    x, cotangent = draw(6, 12, 4).requires_grad_(), torch.randn(6, 12, 4)
    y, inputs = layer(x), [x, *layer.parameters()]
    first = torch.autograd.grad(y, inputs, cotangent, retain_graph=True)
    second = torch.autograd.grad(y, inputs, cotangent)
    for a, b in zip(first, second, strict=True):
        assert torch.equal(a, b)


def test_eval_graph_survives_another_call_of_eval(batch_case, draw):
    layer, x = trained(batch_case, draw), draw(4, 12, 5).requires_grad_()
    cotangent = torch.randn(4, 12, 5)
    _, expected = gradients(layer, x, cotangent)
    y = layer(x)
    layer.eval()
    found = torch.autograd.grad(y, [x, *layer.parameters()], cotangent)
    for a, b in zip(found, expected, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_double_backward(case, draw, training):
    # A large eps keeps the third derivatives, by which the check's differences err, small.
    layer = trained(case, draw, dtype=torch.float64, eps=0.1).train(training)
    f, parameters = as_function(layer)
    x = draw(4, 12, 6, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradgradcheck(f, (x, *parameters), fast_mode=True)


def difference(f, x, direction, step=1e-5):
    """The directional derivative by central differences."""
    return (f(x + step * direction) - f(x - step * direction)) / (2 * step)


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_forward_mode(case, draw, training):
    if training:
        layer = case.untracked(dtype=torch.float64)
    else:
        layer = trained(case, draw, dtype=torch.float64)
    x, direction = (draw(4, 12, 6, dtype=torch.float64) for _ in range(2))
    expected = difference(layer, x, direction)
    y, tangent = jvp(layer, (x,), (direction,))
    torch.testing.assert_close(y, layer(x))
    torch.testing.assert_close(tangent, expected, rtol=1e-5, atol=1e-6)
    with forward_ad.dual_level():
        dual = forward_ad.unpack_dual(layer(forward_ad.make_dual(x, direction)))
        torch.testing.assert_close(dual.primal, y)
        torch.testing.assert_close(dual.tangent, expected, rtol=1e-5, atol=1e-6)


def test_dual_numbers_leave_running_statistics_plain(batch_case, draw):
    layer, plain = (batch_case.make(dtype=torch.float64) for _ in range(2))
    plain.load_state_dict(layer.state_dict())
    x = draw(4, 12, 6, dtype=torch.float64)
    plain(x)
    with forward_ad.dual_level():
        layer(forward_ad.make_dual(x, torch.randn_like(x)))
    for (name, a), b in zip(layer.named_buffers(), plain.buffers(), strict=True):
        torch.testing.assert_close(a, b, msg=name)
    layer(x)  # and the layer is not left in a state that only that level understands


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_vmap(case, draw, training):
    if training:
        layer = case.untracked(dtype=torch.float64)
    else:
        layer = trained(case, draw, dtype=torch.float64)
    x = draw(6, 12, 4, 5, dtype=torch.float64).unflatten(0, (2, 3))
    torch.testing.assert_close(vmap(layer)(x), torch.stack([layer(part) for part in x]))
    inner = x.movedim(0, 2)
    found = vmap(layer, in_dims=2, out_dims=2)(inner)
    torch.testing.assert_close(found, torch.stack([layer(part) for part in x], dim=2))


def test_ensemble_of_eval_models(batch_case, draw):
    models = [trained(batch_case, draw, dtype=torch.float64) for _ in range(2)]
    parameters, buffers = torch.func.stack_module_state(models)
    x = draw(3, 12, 5, dtype=torch.float64)

    def run(parameters, buffers):
        return functional_call(models[0], (parameters, buffers), (x,))

    found = vmap(run)(parameters, buffers)
    torch.testing.assert_close(found, torch.stack([model(x) for model in models]))


def test_functional_gradient(case, draw):
    layer = case.untracked(dtype=torch.float64)
    x, cotangent = draw(4, 12, 6, dtype=torch.float64), torch.randn(4, 12, 6, dtype=torch.float64)
    parameters = dict(layer.named_parameters())

    def loss(parameters, x):
        return (functional_call(layer, parameters, (x,)) * cotangent).sum()

    by_parameters, by_x = grad(loss, argnums=(0, 1))(parameters, x)
    _, expected = gradients(layer, x, cotangent)
    for a, b in zip((by_x, *by_parameters.values()), expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


def test_hessian_vector_product(case, draw):
    """Forward over reverse, against differences of the explicit backward's gradients."""
    layer = case.untracked(dtype=torch.float64, eps=0.1)
    x, direction, cotangent = (draw(4, 12, 6, dtype=torch.float64) for _ in range(3))

    def loss(x):
        return (layer(x).square() * cotangent).sum()

    _, found = jvp(grad(loss), (x,), (direction,))

    def gradient(x):
        x = x.detach().requires_grad_()
        return torch.autograd.grad(loss(x), x)[0]

    torch.testing.assert_close(found, difference(gradient, x, direction), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["iternorm", "batchnorm"])
def test_a_layer_used_twice_has_the_same_gradients_with_a_graph(name, draw):
    """With a graph, gradients come from the reference; they must not run on into the first use."""
    layer = isonorm.create_norm(name, 12, dtype=torch.float64)
    x, mix = draw(8, 12, dtype=torch.float64).requires_grad_(), draw(12, 12, dtype=torch.float64)
    wanted = [x, *layer.parameters()]
    results = [
        torch.autograd.grad(layer(layer(x) @ mix).pow(3).sum(), wanted, create_graph=create_graph)
        for create_graph in (False, True)
    ]
    for plain, graph in zip(*results, strict=True):
        torch.testing.assert_close(graph, plain, rtol=1e-10, atol=1e-10)
