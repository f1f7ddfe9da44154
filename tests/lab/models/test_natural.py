"""Natural Neural Networks against their definition."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from isonorm.lab.models import MLP, NaturalMLP
from isonorm.lab.models.natural import NaturalLinear
from isonorm.lab.plan import Plan
from isonorm.lab.train import seeded, train

EPS = 1e-2


def correlated(n: int = 200, d: int = 6) -> torch.Tensor:
    return 3 + torch.randn(n, d, dtype=torch.float64) @ torch.randn(d, d, dtype=torch.float64)


def covariance(x: torch.Tensor) -> torch.Tensor:
    return torch.cov(x.mT, correction=0)


def natural(d: int = 6, **options) -> NaturalLinear:
    return NaturalLinear(nn.Linear(d, 4, dtype=torch.float64), **options)


def whitened(layer: NaturalLinear, x: torch.Tensor) -> torch.Tensor:
    seen = []
    hook = layer.linear.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    layer(x)
    hook.remove()
    return seen[0]


def test_new_coordinates_leave_the_function_as_it_was():
    model = NaturalMLP(6, 3, hidden=(8, 7), eps=1e-3, interval=1).double()
    x, elsewhere = correlated(), correlated(50)
    expected = [model.eval()(inputs) for inputs in (x, elsewhere)]
    before = copy.deepcopy(model.state_dict())
    torch.testing.assert_close(model.train()(x), expected[0], rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(model.eval()(elsewhere), expected[1], rtol=1e-10, atol=1e-10)
    for name, tensor in model.state_dict().items():
        assert not torch.equal(tensor, before[name]), f"{name} is as it was"


def test_what_a_layer_multiplies_is_white_but_for_eps():
    layer, x = natural(eps=EPS), correlated()
    seen = whitened(layer.train(), x)
    sigma = covariance(x)
    expected = torch.linalg.solve(sigma + EPS * torch.eye(6).double(), sigma)  # Σ/(Σ + ε)
    torch.testing.assert_close(seen.mean(0), torch.zeros(6).double(), rtol=0, atol=1e-10)
    torch.testing.assert_close(covariance(seen), expected, rtol=1e-9, atol=1e-9)


def test_coordinates_are_renewed_every_interval_and_frozen_between():
    layer, changes = natural(interval=3).train(), []
    for _ in range(7):
        before = layer.whitening.clone()
        layer(correlated())
        changes.append(not torch.equal(layer.whitening, before))
    assert changes == [True, False, False, True, False, False, True]
    before = copy.deepcopy(layer.state_dict())
    layer.eval()(correlated())
    torch.testing.assert_close(layer.state_dict(), before, rtol=0, atol=0)


def test_a_step_is_one_of_natural_gradient():
    """In the coordinates of x, W moves by −η·∇W·(Σ + ε)⁻¹, of the centered inputs."""
    layer, x, cotangent = natural(eps=EPS).train(), correlated(), torch.randn(200, 4).double()
    layer(x)

    def function() -> torch.Tensor:
        return (layer.linear.weight @ layer.whitening).detach()

    before = function()
    (layer(x) * cotangent).sum().backward()
    with torch.no_grad():
        layer.linear.weight -= 0.1 * layer.linear.weight.grad
    gradient = cotangent.mT @ (x - x.mean(0))
    step = gradient @ torch.linalg.inv(covariance(x) + EPS * torch.eye(6).double())
    torch.testing.assert_close(function() - before, -0.1 * step, rtol=1e-8, atol=1e-8)


def test_nothing_but_v_and_d_has_a_gradient_and_x_has_its_own():
    layer, x = natural().train(), correlated().requires_grad_()
    y = layer(x)
    cotangent = torch.randn_like(y)
    weight = (layer.linear.weight @ layer.whitening).detach()
    (dx,) = torch.autograd.grad(y, x, cotangent)
    torch.testing.assert_close(dx, cotangent @ weight)  # not through c and U
    assert [name for name, _ in layer.named_parameters()] == ["linear.weight", "linear.bias"]


def test_it_begins_with_the_weights_of_the_plain_network():
    plain = seeded(3, lambda: MLP(9, 4, hidden=(8, 7), norm="plain"))
    natural = seeded(3, lambda: NaturalMLP(9, 4, hidden=(8, 7)))
    x = torch.randn(5, 9)
    torch.testing.assert_close(natural.eval()(x), plain.eval()(x))


def test_it_trains_faster_than_the_plain_network(data):
    plan = Plan(epochs=30, batch_size=None, lr=0.1, mean="pixel")
    losses = {}
    for name, network in {"plain": MLP, "natural": NaturalMLP}.items():
        options = {"eps": 0.01, "interval": 5} if name == "natural" else {"norm": "plain"}
        model = seeded(0, lambda n=network, o=options: n(64, 10, hidden=(32, 32), **o))
        losses[name] = train(model, data, plan, seed=0).train_loss
    assert losses["natural"] < 0.5 * losses["plain"]


def test_resumed_it_ends_with_the_same_weights_and_coordinates(data, tmp_path):
    plan = Plan(epochs=4, batch_size=400, lr=0.05, mean="pixel")  # three steps an epoch
    whole, stopped, resumed = (
        seeded(1, lambda: NaturalMLP(64, 10, hidden=(16,), interval=5)) for _ in range(3)
    )
    path = tmp_path / "checkpoint.safetensors"
    train(whole, data, plan, seed=1)
    train(stopped, data, plan.shortened(2), seed=1, checkpoint=path)
    train(resumed, data, plan, seed=1, checkpoint=path)
    torch.testing.assert_close(resumed.state_dict(), whole.state_dict(), rtol=0, atol=0)
    assert resumed.fc.steps == 12


def test_divergence_is_not_an_error():
    layer, x = natural().train(), correlated()
    before = layer.whitening.clone()
    x[0, 0] = torch.nan
    assert layer(x).isnan().any() and torch.equal(layer.whitening, before)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"eps": 0.0}, "eps must be positive, for every Σ to be invertible; got 0.0."),
        ({"interval": 0}, "interval must be at least 1 step; got 0."),
    ],
)
def test_wrong_options_are_answered_in_one_sentence(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        natural(**options)
