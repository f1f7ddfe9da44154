from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from isonorm.lab.models import MLP
from isonorm.lab.train import _batches, error_on_test_set, seeded, train


def small_mlp(norm: str = "batchnorm") -> nn.Module:
    return MLP(64, 10, hidden=(16, 16), norm=norm)


def test_an_epoch_of_one_batch_is_one_gradient_step(data):
    model = small_mlp("plain")
    expected = copy.deepcopy(model)
    loss = cross_entropy(expected(data.train_images), data.train_labels)
    gradients = torch.autograd.grad(loss, list(expected.parameters()))
    with torch.no_grad():
        for parameter, gradient in zip(expected.parameters(), gradients, strict=True):
            parameter -= 0.3 * gradient

    result = train(model, data, epochs=1, batch_size=len(data.train_labels), lr=0.3, seed=0)

    for trained, parameter in zip(model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(trained, parameter, rtol=1e-4, atol=1e-6)
    assert result.epochs[0].train_loss == pytest.approx(loss.item(), rel=1e-5)
    wrong = expected(data.test_images).argmax(1) != data.test_labels
    assert result.epochs[0].test_error == pytest.approx(wrong.sum().item() / 450)


def test_epochs_are_reported_as_they_end_and_learning_shows(data):
    seen = []
    result = train(small_mlp(), data, epochs=4, batch_size=64, lr=0.2, seed=0, on_epoch=seen.append)
    assert tuple(seen) == result.epochs
    assert [epoch.number for epoch in seen] == [1, 2, 3, 4]
    assert result.steps_per_epoch == 1347 // 64
    assert seen[-1].train_loss < 0.3 < 1 < seen[0].train_loss and seen[-1].test_error < 0.1


def test_seeds_decide_everything(data):
    def curve(weights: int, order: int) -> list[tuple[float, float]]:
        model = seeded(weights, small_mlp)
        result = train(model, data, epochs=2, batch_size=256, lr=0.2, seed=order)
        return [(epoch.train_loss, epoch.test_error) for epoch in result.epochs]

    first = curve(weights=3, order=3)
    torch.manual_seed(99)
    state = torch.get_rng_state()
    assert curve(weights=3, order=3) == first
    assert torch.equal(torch.get_rng_state(), state), "a run must leave torch's generator alone"
    assert curve(weights=4, order=3) != first
    assert curve(weights=3, order=4) != first


def test_equal_seeds_mean_equal_initial_weights_with_every_norm():
    def weights(norm: str) -> list[torch.Tensor]:
        model = seeded(5, lambda: small_mlp(norm))
        return [layer.weight for layer in model.modules() if isinstance(layer, nn.Linear)]

    for norm in ("batchnorm", "dbn", "iternorm"):
        torch.testing.assert_close(weights(norm), weights("plain"), rtol=0, atol=0)


def test_batches_visit_different_images_without_repeating_any(data):
    order = torch.Generator().manual_seed(0)
    epochs = [torch.cat([images for images, _ in _batches(data, 100, order)]) for _ in range(2)]
    available = data.train_images.flatten(1).unique(dim=0)
    for visited in epochs:
        assert visited.flatten(1).unique(dim=0).shape == (1300, 64)
    assert available.shape == (1347, 64)  # so that counting different images counts images
    assert not torch.equal(*epochs)


def test_test_error_is_measured_in_eval_mode(data):
    model = small_mlp()
    model(data.train_images)
    before = copy.deepcopy(model.state_dict())
    error = error_on_test_set(model, data)
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
    predicted = model.eval()(data.test_images).argmax(1)
    assert error == pytest.approx((predicted != data.test_labels).sum().item() / 450)


def test_divergence_is_a_result(data):
    result = train(small_mlp(), data, epochs=5, batch_size=256, lr=1e30, seed=0)
    assert result.diverged and len(result.epochs) < 5
    assert result.train_loss is None and result.test_error is None


def test_a_result_answers_from_its_curve(make_result):
    result = make_result([1.0, 0.5, 0.2, 0.1], [0.30, 0.05, 0.06, 0.04], steps_per_epoch=10)
    assert (result.train_loss, result.test_error) == (0.1, 0.04)
    assert result.epochs_to(0.95) == 2 and result.epochs_to(0.96) == 4
    assert result.epochs_to(0.97) is None
    assert result.seconds_per_step == pytest.approx(0.025)  # epochs took 0.1, 0.2, 0.3 and 0.4 s


@pytest.mark.parametrize("batch_size", [0, 1348])
def test_impossible_batches_are_answered_in_one_sentence(data, batch_size):
    with pytest.raises(
        ValueError, match=f"between 1 and the 1347 training images; got {batch_size}"
    ):
        train(small_mlp(), data, epochs=1, batch_size=batch_size, lr=0.1, seed=0)
