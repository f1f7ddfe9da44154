"""Fisher information against per-example gradients, written out in float64."""

from __future__ import annotations

from math import inf

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import isonorm
from isonorm.analysis import (
    fisher_condition,
    fisher_factors,
    fisher_spectrum,
    jacobian_singular_values,
    softmax_fisher,
)


def mlp(norm: str) -> nn.Sequential:
    """A small MLP in float64, its last hidden layer of 6 features, 4 classes."""
    make = {
        "plain": lambda d: nn.Identity(),
        "batchnorm": isonorm.BatchNorm,
        "layernorm": isonorm.LayerNorm,
        "dbn": isonorm.DBN,
    }[norm]
    return nn.Sequential(
        nn.Linear(5, 7), make(7), nn.Tanh(), nn.Linear(7, 6), make(6), nn.Tanh(), nn.Linear(6, 4)
    ).double()


def dense_fisher(features: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """E_x E_y∼p [g·gᵀ], g = ∇_W log p(y | x), one example and class at a time, (K·d, K·d)."""
    total = torch.zeros(weight.numel(), weight.numel(), dtype=torch.float64)
    for h in features:
        w = weight.clone().requires_grad_()
        log_p = F.log_softmax(w @ h + bias, dim=-1)
        for k in range(len(log_p)):
            (g,) = torch.autograd.grad(log_p[k], w, retain_graph=True)
            total += log_p[k].exp().detach() * torch.outer(g.flatten(), g.flatten())
    return total / len(features)


@pytest.mark.parametrize("norm", ["plain", "batchnorm", "layernorm", "dbn"])
def test_the_last_layers_fisher_is_the_dense_one(norm):
    model, x = mlp(norm), torch.randn(40, 5, dtype=torch.float64)
    with torch.no_grad():
        features = model[:-1](x)
        logits = model[-1](features)
    weight, bias = model[-1].weight.detach(), model[-1].bias.detach()
    dense = torch.linalg.eigvalsh(dense_fisher(features, weight, bias)).flip(0)
    assert dense[18:].abs().max() < 1e-12 < dense[17]  # d = 6 directions are singular, 18 are not
    found = torch.linalg.eigvalsh(softmax_fisher(features, logits)).flip(0)
    assert torch.allclose(found, dense[:18], rtol=1e-9)
    assert fisher_condition(model, x) == pytest.approx((dense[0] / dense[17]).item(), rel=1e-9)


def test_bias_is_a_constant_feature():
    model, x = mlp("plain"), torch.randn(40, 5, dtype=torch.float64)
    with torch.no_grad():
        features = model[:-1](x)
    widened = torch.cat([features, torch.ones(40, 1, dtype=torch.float64)], dim=1)
    weight = torch.cat([model[-1].weight.detach(), model[-1].bias.detach()[:, None]], dim=1)
    dense = dense_fisher(widened, weight, torch.zeros(4, dtype=torch.float64))
    expected = torch.linalg.eigvalsh(dense).flip(0)[:21]
    assert torch.allclose(fisher_spectrum(model, x, bias=True), expected, rtol=1e-9)


def test_a_dead_feature_makes_it_infinite():
    model = nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 3))
    model[0].weight.data[2] = 0
    model[0].bias.data[2] = -1
    assert fisher_condition(model, torch.randn(100, 5)) == inf


def test_parts_add_up_to_the_whole(monkeypatch):
    h, logits = torch.randn(100, 6), torch.randn(100, 3)
    whole = softmax_fisher(h, logits)
    monkeypatch.setitem(softmax_fisher.__globals__, "_TOGETHER", 7 * 36)
    assert torch.allclose(softmax_fisher(h, logits), whole, rtol=1e-12)


def test_a_classifier_is_named_or_found():
    model = nn.Sequential(nn.Conv1d(2, 2, 1), nn.Flatten())
    with pytest.raises(ValueError, match="none"):
        fisher_condition(model, torch.randn(4, 2, 2))
    with pytest.raises(ValueError, match="'0', '3', '6'"):
        fisher_condition(mlp("plain"), torch.randn(4, 5).double(), layer="1")
    with pytest.raises(ValueError, match="of the same examples"):
        softmax_fisher(torch.randn(4, 5), torch.randn(5, 5))


def test_factors_are_second_moments_of_inputs_and_gradients():
    model, x = mlp("dbn"), torch.randn(30, 5, dtype=torch.float64)
    labels = torch.randint(4, (30,))
    found = fisher_factors(model, x, labels)
    assert list(found) == ["0", "3", "6"]
    # by hand, one layer in the middle: the gradient of the sum of losses at its output
    inner = model[:3](x)
    outer = model[3](inner)
    loss = F.cross_entropy(model[4:](outer), labels, reduction="sum")
    (gradient,) = torch.autograd.grad(loss, outer)
    for factor, rows in ((found["3"].input, inner), (found["3"].gradient, gradient)):
        values = torch.linalg.eigvalsh(rows.detach().T @ rows.detach() / 30)
        assert factor.largest == pytest.approx(values[-1].item())
        assert factor.smallest == pytest.approx(values[0].item(), abs=1e-12)


def test_labels_are_drawn_from_the_model_where_none_are_given():
    model, x = mlp("plain"), torch.randn(30, 5, dtype=torch.float64)
    first, again, other = (
        fisher_factors(model, x, generator=torch.Generator().manual_seed(seed))
        for seed in (0, 0, 1)
    )
    assert first == again and first["6"].gradient != other["6"].gradient
    assert first["6"].input == other["6"].input


def test_convolutions_have_factors_and_buffers_stay():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 3))
    before = model[1].running_mean.clone()
    found = fisher_factors(model, torch.randn(10, 3, 4, 4))
    assert list(found) == ["0", "3"] and found["0"].input.largest > 0
    assert torch.equal(model[1].running_mean, before) and model[1].num_batches_tracked == 0


def whole_jacobian(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    rows = []
    y = model(x).flatten(1)
    for entry in y.flatten():
        (row,) = torch.autograd.grad(entry, x, retain_graph=True)
        rows.append(row.flatten())
    return torch.stack(rows)


@pytest.mark.parametrize("norm", ["plain", "batchnorm", "dbn"])
def test_jacobians_are_those_of_autograd(norm):
    model, x = mlp(norm), torch.randn(6, 5, dtype=torch.float64, requires_grad=True)
    jacobian = whole_jacobian(model, x)
    whole = jacobian_singular_values(model, x.detach(), per_example=False)
    assert torch.allclose(whole, torch.linalg.svdvals(jacobian), atol=1e-10)
    own = jacobian_singular_values(model, x.detach(), chunk_size=5)
    assert own.shape == (6, 4)
    for i in range(6):
        block = jacobian[4 * i : 4 * i + 4, 5 * i : 5 * i + 5]
        assert torch.allclose(own[i], torch.linalg.svdvals(block), atol=1e-10)


def test_activations_in_place_do_not_stand_for_their_layer():
    x, labels = torch.randn(30, 5), torch.randint(3, (30,))
    model = nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 3), nn.ReLU())
    expected = fisher_factors(model, x, labels), fisher_condition(model, x)
    model[1], model[3] = nn.ReLU(inplace=True), nn.ReLU(inplace=True)
    assert (fisher_factors(model, x, labels), fisher_condition(model, x)) == expected


def test_frozen_layers_have_factors():
    x, labels = torch.randn(30, 5, dtype=torch.float64), torch.randint(4, (30,))
    model = mlp("batchnorm")
    expected = fisher_factors(model, x, labels)
    model[:4].requires_grad_(False)
    assert fisher_factors(model, x, labels) == expected
    assert fisher_factors(model.requires_grad_(False), x, labels) == expected


def test_the_features_of_a_linear_layer_are_last():
    model = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Flatten(), nn.Linear(40, 3))
    tokens, labels = torch.randn(20, 5, 6), torch.randint(3, (20,))
    found = fisher_factors(model, tokens, labels)["0"].input
    rows = tokens.flatten(0, 1).double()
    assert found.largest == pytest.approx(torch.linalg.eigvalsh(rows.T @ rows / 100)[-1].item())


def test_labels_of_maps_are_asked_for():
    maps, labels = torch.randn(4, 2, 5), torch.randint(3, (4, 5))
    with pytest.raises(ValueError, match="pass labels"):
        fisher_factors(nn.Conv1d(2, 3, 1), maps)
    assert list(fisher_factors(nn.Conv1d(2, 3, 1), maps, labels)) == [""]


def test_the_first_of_several_outputs_counts():
    model, x = mlp("layernorm"), torch.randn(6, 5, dtype=torch.float64)
    found = jacobian_singular_values(lambda x: (model(x), x), x)
    assert torch.allclose(found, jacobian_singular_values(model, x))


def test_one_output_for_each_example_is_a_gradient():
    x = torch.randn(4, 3, dtype=torch.float64)
    found = jacobian_singular_values(lambda x: x.square().sum(1), x)
    assert torch.allclose(found, 2 * x.norm(dim=1, keepdim=True))


@pytest.mark.parametrize(
    ("function", "x", "words"),
    [
        (nn.Linear(3, 2), torch.randn(3), r"got \(3,\): pass one example as x\[None\]"),
        (lambda x: x.square().sum(), torch.randn(4, 3), r"each of the 4 examples.*got \(\)"),
    ],
    ids=["no batch", "a loss"],
)
def test_jacobians_of_what_is_not_a_batch_are_refused(function, x, words):
    with pytest.raises(ValueError, match=words):
        jacobian_singular_values(function, x)
