from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, one_hot

from isonorm.lab.data import Mixup


@pytest.fixture
def model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).double()


@pytest.fixture
def batch() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(6, 4).double(), torch.randint(3, (6,))


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_activations_are_mixed_where_they_should_be_one_by_one(model, batch, depth):
    images, labels = batch
    mixup = Mixup([model[depth]], alpha=1.0, seed=2)
    with mixup(images) as mixing:
        output = model(images)
        loss = mixing.loss(cross_entropy, output, labels)

    weight, partners = mixing.weight.item(), mixing.partners.tolist()
    hidden = model[:depth](images)
    mixed = torch.stack(
        [weight * hidden[i] + (1 - weight) * hidden[partners[i]] for i in range(len(images))]
    )
    expected = model[depth:](mixed)
    torch.testing.assert_close(output, expected, rtol=1e-6, atol=1e-6)
    targets = one_hot(labels, 3).double()
    soft = weight * targets + (1 - weight) * targets[mixing.partners]
    torch.testing.assert_close(loss, cross_entropy(expected, soft), rtol=1e-5, atol=1e-6)


def test_before_the_network_it_is_plain_mixup(model, batch):
    images, _ = batch
    with Mixup([model], alpha=0.5)(images) as mixing:
        output = model(images)
    torch.testing.assert_close(output, model(mixing(images)))
    assert not torch.allclose(output, model(images))


def test_the_network_is_itself_again_after_the_block_however_it_ends(model, batch):
    images, _ = batch
    expected = model(images)
    with pytest.raises(RuntimeError, match="on purpose"), Mixup([model[1]], alpha=1.0)(images):
        raise RuntimeError("on purpose")
    assert torch.equal(model(images), expected)


def test_weights_follow_the_beta_distribution_and_places_are_drawn_alike():
    places = [nn.Identity() for _ in range(3)]
    mixup = Mixup(places, alpha=6.0)
    batch = torch.zeros(5)
    drawn = [mixup.draw(batch) for _ in range(2000)]
    weights = np.array([mixing.weight.item() for mixing in drawn])
    assert weights.mean() == pytest.approx(0.5, abs=0.02)
    assert weights.var() == pytest.approx(1 / (4 * (2 * 6 + 1)), rel=0.15)
    counts = [sum(mixing.place is place for mixing in drawn) for place in places]
    assert all(abs(count - 2000 / 3) < 110 for count in counts)  # five deviations
    assert all(sorted(mixing.partners.tolist()) == list(range(5)) for mixing in drawn[:20])


def test_draws_follow_from_the_seed_and_resume(model):
    def draws(mixup: Mixup, number: int, size: int = 7) -> list:
        drawn = [mixup.draw(torch.zeros(size)) for _ in range(number)]
        return [
            (mixing.weight.item(), model_index(mixing), mixing.partners.tolist())
            for mixing in drawn
        ]

    def model_index(mixing) -> int:
        return list(model).index(mixing.place)

    expected = draws(Mixup(list(model), alpha=2.0, seed=1), 10)
    stopped = Mixup(list(model), alpha=2.0, seed=1)
    assert draws(stopped, 4) == expected[:4]
    resumed = Mixup(list(model), alpha=2.0, seed=9)
    resumed.load_state_dict(stopped.state_dict())
    assert draws(resumed, 6) == expected[4:]
    assert draws(Mixup(list(model), alpha=2.0, seed=2), 10) != expected
    # A process with a share of another length stays in step.
    other = draws(Mixup(list(model), alpha=2.0, seed=1), 10, size=3)
    assert [draw[:2] for draw in other] == [draw[:2] for draw in expected]


def test_gradients_reach_both_partners(model, batch):
    images, _ = batch
    images.requires_grad_()
    with Mixup([model[2]], alpha=6.0)(images) as mixing:
        model(images)[0].square().sum().backward()
    touched = images.grad.abs().sum(dim=1) > 0
    assert set(touched.nonzero().flatten().tolist()) == {0, mixing.partners[0].item()}


def test_impossible_mixing_is_refused(model):
    with pytest.raises(ValueError, match="mixup needs a place"):
        Mixup([], alpha=1.0)
    with pytest.raises(ValueError, match="must be positive; got 0"):
        Mixup([model], alpha=0)
