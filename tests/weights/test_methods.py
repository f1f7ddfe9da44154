"""Each method against its formula, in float64, or against torch's own."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from isonorm import weights

from .test_parametrizations import LAYERS, inputs_for, outputs_of


@pytest.mark.parametrize("layer, dim", [("linear", 0), ("conv2d", 0), ("transposed1d", 1)])
def test_weight_norm_is_torchs_along_the_outputs(layer, dim):
    torch.manual_seed(1)
    mine = weights.weight_norm(LAYERS[layer]())
    torch.manual_seed(1)
    theirs = parametrizations.weight_norm(LAYERS[layer](), dim=dim)
    mine_state, their_state = mine.state_dict(), theirs.state_dict()
    assert list(mine_state) == list(their_state)
    torch.testing.assert_close(mine_state, their_state)
    torch.testing.assert_close(mine.weight, theirs.weight)


def test_an_explicit_dim_is_obeyed():
    module = weights.centered_weight_norm(nn.Linear(4, 6).double(), dim=-1, gain=False)
    torch.testing.assert_close(module.weight.norm(dim=0), torch.ones(4, dtype=torch.float64))


@pytest.mark.parametrize("layer", LAYERS)
def test_centered_weight_norm_is_its_formula(layer):
    module = LAYERS[layer]().double()
    raw = [row.detach().clone() for row in outputs_of(module)]
    weights.centered_weight_norm(module)
    gains = module.parametrizations.weight.original0
    with torch.no_grad():
        gains.mul_(1 + torch.rand_like(gains))
    for g, v, w in zip(gains, raw, outputs_of(module), strict=True):
        deviation = v - v.sum() / v.numel()
        torch.testing.assert_close(w, g * deviation / deviation.norm(), rtol=1e-9, atol=1e-9)


def test_centered_weight_norm_starts_from_the_centered_weight():
    module = nn.Linear(5, 3).double()
    before = module.weight.detach().clone()
    weights.centered_weight_norm(module)
    torch.testing.assert_close(
        module.weight.detach(), before - before.mean(1, keepdim=True), rtol=1e-9, atol=1e-9
    )
    assert module.parametrizations.weight.original0.shape == (3,)  # spared by no-decay rules


@pytest.mark.parametrize("eps", [0.0, 1e-5])
@pytest.mark.parametrize("layer", LAYERS)
def test_weight_standardization_is_its_formula(layer, eps):
    module = LAYERS[layer]().double()
    raw = [row.detach().clone() for row in outputs_of(module)]
    weights.weight_standardization(module, eps=eps)
    for v, w in zip(raw, outputs_of(module), strict=True):
        deviation = v - v.sum() / v.numel()
        sigma = (deviation.square().sum() / v.numel() + eps).sqrt()
        torch.testing.assert_close(w, deviation / sigma)


def groups_of(module: nn.Module) -> list[torch.Tensor]:
    rows, groups = torch.stack(outputs_of(module)), getattr(module, "groups", 1)
    return list(rows.chunk(groups))


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("method", ["polar", "zca", "pca", "cholesky"])
def test_orthogonal_weights_are(method, layer):
    module = weights.orthogonal(LAYERS[layer]().double(), method=method)
    original = module.parametrizations.weight.original
    with torch.no_grad():  # away from the orthogonal proxy it starts with
        original.add_(0.2 * torch.randn_like(original) * original.abs().max())
    for rows in groups_of(module):
        product = rows @ rows.T if len(rows) <= rows.shape[1] else rows.T @ rows
        eye = torch.eye(len(product), dtype=torch.float64)
        torch.testing.assert_close(product, eye, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("shape", [(4, 7), (7, 4), (5, 5)])
@pytest.mark.parametrize("method", ["polar", "zca"])
def test_the_symmetric_roots_give_the_nearest_orthogonal_matrix(method, shape):
    module = weights.orthogonal(nn.Linear(shape[1], shape[0]).double(), method=method)
    u, s, vh = torch.linalg.svd(torch.randn(shape, dtype=torch.float64), full_matrices=False)
    s = torch.logspace(0, -2, len(s), dtype=torch.float64)
    module.parametrizations.weight.original.data.copy_(u @ s.diag() @ vh)
    torch.testing.assert_close(module.weight.detach(), u @ vh, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("shape", [(4, 7), (7, 4)])
def test_newton_is_oni(shape):
    """Huang et al. 2020: V/√‖VVᵀ‖_F, B ← ½(3B − B³·VVᵀ), W = B·V, and its scale."""
    module = weights.orthogonal(
        nn.Linear(shape[1], shape[0]).double(), method="newton", num_iters=3, scale=2**0.5
    )
    proxy = torch.randn(shape, dtype=torch.float64)
    module.parametrizations.weight.original.data.copy_(proxy)
    v = proxy if shape[0] < shape[1] else proxy.T
    v = v / (v @ v.T).norm().sqrt()
    b = torch.eye(4, dtype=torch.float64)
    for _ in range(3):
        b = 0.5 * (3 * b - b @ b @ b @ v @ v.T)
    expected = 2**0.5 * (b @ v)
    found = module.weight.detach()
    torch.testing.assert_close(
        found, expected if shape[0] < shape[1] else expected.T, rtol=1e-9, atol=1e-9
    )


def test_more_newton_steps_are_more_orthogonal():
    def distance(num_iters: int) -> float:
        torch.manual_seed(0)
        layer = weights.orthogonal(nn.Linear(9, 6).double(), method="newton", num_iters=num_iters)
        return (layer.weight @ layer.weight.T - torch.eye(6)).norm().item()

    distances = [distance(t) for t in (0, 2, 5, 8, 12)]
    assert distances == sorted(distances, reverse=True) and distances[-1] < 1e-10


def test_centered_orthogonal_weights_sum_to_zero():
    layer = weights.orthogonal(nn.Conv2d(2, 5, 3).double(), centered=True)
    rows = layer.weight.flatten(1)
    torch.testing.assert_close(rows.sum(1), torch.zeros(5, dtype=torch.float64))
    torch.testing.assert_close(rows @ rows.T, torch.eye(5, dtype=torch.float64))


def test_orthogonal_layers_keep_the_length_of_gradients():
    """24 layers deep, forwards and backwards: what orthogonality is for."""
    layers = [weights.orthogonal(nn.Linear(6, 6, bias=False).double()) for _ in range(24)]
    x = torch.randn(3, 6, dtype=torch.float64, requires_grad=True)
    y = nn.Sequential(*layers)(x)
    cotangent = torch.randn_like(y)
    y.backward(cotangent)
    torch.testing.assert_close(y.norm(dim=1), x.norm(dim=1))
    torch.testing.assert_close(x.grad.norm(dim=1), cotangent.norm(dim=1))


@pytest.mark.parametrize(
    "activation, mean, variance",
    [
        (nn.ReLU(), 1 / math.sqrt(2 * math.pi), 0.5 * (1 - 1 / math.pi)),
        (nn.ReLU(inplace=True), 1 / math.sqrt(2 * math.pi), 0.5 * (1 - 1 / math.pi)),
        (nn.LeakyReLU(0.5), 0.5 / math.sqrt(2 * math.pi), 0.625 - 0.125 / math.pi),
        (nn.PReLU(init=0.5), 0.5 / math.sqrt(2 * math.pi), 0.625 - 0.125 / math.pi),
        (torch.square, 1.0, 2.0),
        (torch.exp, math.exp(0.5), math.e**2 - math.e),
        (torch.erf, 0.0, 2 / math.pi * math.asin(2 / 3)),
    ],
)
def test_moments_of_activations_are_their_closed_forms(activation, mean, variance):
    module = weights.StandardizedActivation(activation)
    assert module.mean == pytest.approx(mean, abs=1e-10)
    assert module.std == pytest.approx(math.sqrt(variance), rel=1e-10)


def test_normalization_propagates():
    """Standard Gaussians in, mean 0 and variance 1 out of every unit: by its exact moments, since
    wᵀx is a standard Gaussian for ‖w‖ = 1."""
    torch.manual_seed(2)
    layer = weights.normalization_propagation(nn.Linear(30, 8).double(), gain=1.0)
    with torch.no_grad():
        v = layer.parametrizations.weight.original1
        v.mul_(10 * torch.rand(8, 1))  # lengths do not matter
    x = torch.randn(200_000, 30, dtype=torch.float64)
    y = weights.StandardizedActivation(nn.ReLU())(layer(x))
    assert y.mean(0).abs().max() < 0.015  # standard error 0.0022
    assert (y.var(0) - 1).abs().max() < 0.03
    assert (layer.bias == 0).all()


def test_the_papers_gain_keeps_the_size_of_gradients():
    slope = torch.tensor(0.5).sqrt() / weights.StandardizedActivation(nn.ReLU()).std
    assert 1 / slope.item() == pytest.approx(1 / 1.21, rel=2e-3)
    layer = weights.normalization_propagation(nn.Conv2d(3, 4, 3))
    torch.testing.assert_close(layer.weight.flatten(1).norm(dim=1), torch.full((4,), 1 / 1.21))


@pytest.mark.parametrize(
    "activation, message",
    [
        (lambda z: torch.zeros_like(z), "positive variance"),
        (lambda z: 1 / z, "finite mean"),
        (lambda z: z.sum(), "each element by itself"),
        (nn.Softmax(0), "each element by itself"),
        (nn.Dropout(0.5), "always in the same way"),
    ],
)
def test_activations_without_moments_are_refused(activation, message):
    with pytest.raises(ValueError, match=message):
        weights.StandardizedActivation(activation)


@pytest.mark.parametrize("layer", ["linear", "conv1d", "conv2d", "transposed1d", "transposed3d"])
@pytest.mark.parametrize("method", [weights.weight_norm, weights.centered_weight_norm])
def test_initialization_from_data_standardizes_each_output(method, layer):
    module = method(LAYERS[layer]().double())
    x = 3 + 2 * torch.randn(40, *inputs_for(module)[0].shape[1:], dtype=torch.float64)
    assert weights.initialize_from_data(module, x) == [""]
    y = module(x).movedim(1, 0).flatten(1)
    torch.testing.assert_close(y.var(1, correction=0), torch.ones_like(y[:, 0]))
    if module.bias is not None:
        torch.testing.assert_close(y.mean(1), torch.zeros_like(y[:, 0]))


def test_initialization_from_data_works_its_way_up():
    model = nn.Sequential(
        weights.weight_norm(nn.Linear(5, 6)), nn.ReLU(), nn.Linear(6, 6),
        weights.weight_norm(nn.Linear(6, 2)),
    ).double()  # fmt: skip
    plain = model[2].weight.detach().clone()
    x = torch.randn(50, 5, dtype=torch.float64)
    assert weights.initialize_from_data(model, x) == ["0", "3"]
    y = model(x)
    torch.testing.assert_close(y.mean(0), torch.zeros(2, dtype=torch.float64))
    torch.testing.assert_close(y.var(0, correction=0), torch.ones(2, dtype=torch.float64))
    assert torch.equal(model[2].weight, plain)
    assert not model[0]._forward_hooks  # nothing stays behind


def test_a_layer_used_twice_is_initialized_by_its_first_use():
    layer = weights.weight_norm(nn.Linear(4, 4)).double()
    x = torch.randn(30, 4, dtype=torch.float64)
    weights.initialize_from_data(nn.Sequential(layer, nn.ReLU(), layer), x)
    torch.testing.assert_close(layer(x).mean(0), torch.zeros(4, dtype=torch.float64))


def test_a_failed_initialization_leaves_no_hooks():
    layer = weights.weight_norm(nn.Linear(5, 6))
    with pytest.raises(RuntimeError):
        weights.initialize_from_data(layer, torch.randn(3, 4))
    assert not layer._forward_hooks


@pytest.mark.parametrize("batch", ["empty", "nan", "fails"])
def test_a_failed_initialization_changes_no_layer(batch):
    model = nn.Sequential(*(weights.weight_norm(nn.Linear(3, 3)) for _ in range(2)))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    x = torch.randn(0 if batch == "empty" else 8, 3)
    if batch == "nan":
        x[0, 0] = float("nan")
    if batch == "fails":
        model.append(nn.Linear(4, 4))
    error, message = (
        (RuntimeError, "shapes") if batch == "fails" else (ValueError, "no gain can be")
    )
    with pytest.raises(error, match=message):
        weights.initialize_from_data(model, x)
    layers = [layer for layer in model if isinstance(layer, nn.Linear) and layer.in_features == 3]
    found = nn.Sequential(*layers).state_dict()
    torch.testing.assert_close(found, before, rtol=0, atol=0)
