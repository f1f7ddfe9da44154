"""The survey's table of scales, row by row."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import isonorm
from isonorm import weights
from isonorm.analysis import effective_learning_rate, scale_invariance

ALPHA = 3.0


def network(norm: str, depth: int = 3) -> nn.Sequential:
    make = {
        "none": lambda d: nn.Identity(),
        "batchnorm": lambda d: isonorm.BatchNorm(d, eps=0),
        "dbn": lambda d: isonorm.DBN(d, group_size=4, eps=0),
        "iternorm": lambda d: isonorm.IterNorm(d, eps=0),
        "layernorm": lambda d: isonorm.LayerNorm(d, eps=0),
    }[norm]
    layers: list[nn.Module] = []
    for _ in range(depth):
        layers += [nn.Linear(6, 6, bias=False), make(6), nn.ReLU()]
    return nn.Sequential(*layers).double()


def test_without_normalization_scales_multiply():
    x = torch.randn(20, 6, dtype=torch.float64)
    found = scale_invariance(network("none"), x, ALPHA)
    for k, row in enumerate(found.values()):
        assert row.input == pytest.approx(ALPHA**k)
        assert row.output_gradient == pytest.approx(ALPHA ** (2 - k))
        assert row.weight_gradient == pytest.approx(ALPHA**2)
        assert row.residual < 1e-12


@pytest.mark.parametrize("norm", ["batchnorm", "dbn", "iternorm", "layernorm"])
@pytest.mark.parametrize("together", [True, False])
def test_with_normalization_only_the_own_scale_is_seen(norm, together):
    x = torch.randn(20, 6, dtype=torch.float64)
    found = scale_invariance(network(norm), x, ALPHA, together=together)
    assert list(found) == ["0", "3", "6"]
    for row in found.values():
        assert row.input == pytest.approx(1)
        assert row.output_gradient == pytest.approx(1 / ALPHA)
        assert row.weight_gradient == pytest.approx(1 / ALPHA)
        assert row.residual < 1e-6


def test_one_at_a_time_is_the_own_scale_alone():
    x = torch.randn(20, 6, dtype=torch.float64)
    for row in scale_invariance(network("none"), x, ALPHA, together=False).values():
        assert row[:3] == pytest.approx((1, 1, 1))


def test_what_is_no_factor_shows_as_residual():
    model = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3))
    x, labels = torch.randn(20, 6), torch.randint(3, (20,))
    found = scale_invariance(model, x, ALPHA, loss=lambda y: F.cross_entropy(y, labels))
    assert found["2"].residual > 0.05


def test_the_model_is_left_alone():
    model, x = network("batchnorm").requires_grad_(False), torch.randn(20, 6).double()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    scale_invariance(model, x, layers="0")
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert not any(p.requires_grad for p in model.parameters())


def test_bad_arguments_get_a_sentence():
    with pytest.raises(ValueError, match="alpha must be positive"):
        scale_invariance(network("none"), torch.randn(4, 6).double(), 0)
    with pytest.raises(ValueError, match="'2' has no weight"):
        scale_invariance(network("none"), torch.randn(4, 6).double(), layers="2")


def test_effective_rates_come_from_a_number_or_an_optimizer():
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    groups = [{"params": model[0].parameters(), "lr": 0.1}, {"params": model[2].parameters()}]
    optimizer = torch.optim.SGD(groups, lr=0.5)
    found = effective_learning_rate(model, optimizer)
    assert found["0"] == pytest.approx(0.1 / model[0].weight.square().sum().item())
    assert found["2"] == pytest.approx(0.5 / model[2].weight.square().sum().item())
    assert effective_learning_rate(model, 0.5)["2"] == found["2"]


def test_the_effective_rate_is_how_fast_a_direction_turns():
    """A weight twice as long, of the same direction, turns a quarter as far in one step."""
    turned = []
    for scale in (1.0, 2.0):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 4, bias=False), isonorm.BatchNorm(4, eps=0)).double()
        model[0].weight.data *= scale
        x, cotangent = torch.randn(30, 6).double(), torch.randn(30, 4).double()
        (gradient,) = torch.autograd.grad((model(x) * cotangent).sum(), model[0].weight)
        before, after = model[0].weight, model[0].weight - 1e-4 * gradient
        turned.append((after / after.norm() - before / before.norm()).norm().item())
    assert turned[0] / turned[1] == pytest.approx(4, rel=1e-3)


def test_activations_in_place_do_not_stand_for_their_layer():
    x = torch.randn(20, 6, dtype=torch.float64)
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    expected = scale_invariance(model, x, ALPHA)
    model[1] = InPlace()
    assert scale_invariance(model, x, ALPHA) == expected


class InPlace(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.tanh_()


def test_a_layer_without_influence_has_no_row():
    class Aside(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.unused = nn.Linear(4, 2), nn.Linear(4, 2)

        def forward(self, x):
            return self.used(x), self.unused(x)

    assert list(scale_invariance(Aside(), torch.randn(5, 4))) == ["used"]


@pytest.mark.parametrize("norm", [weights.weight_norm, weights.centered_weight_norm])
def test_normalized_weights_are_scaled_before_they_are_normalized(norm):
    model = nn.Sequential(norm(nn.Linear(6, 5, bias=False))).double()
    row = scale_invariance(model, torch.randn(20, 6).double(), ALPHA)["0"]
    assert row[:3] == pytest.approx((1, 1, 1 / ALPHA))
    learned = list(model[0].parametrizations.weight.parameters(recurse=False))[-1]
    rate = effective_learning_rate(model, torch.optim.SGD(model.parameters(), lr=0.1))["0"]
    assert rate == pytest.approx(0.1 / learned.square().sum().item())


def test_a_weight_of_zero_turns_at_once():
    model = nn.Linear(2, 2)
    nn.init.zeros_(model.weight)
    assert effective_learning_rate(model, 0.1) == {"": float("inf")}
