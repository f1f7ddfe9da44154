from __future__ import annotations

import copy
import math
from collections import OrderedDict
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer

from isonorm.analysis import fisher_condition
from isonorm.lab import checkpoints
from isonorm.lab.data import FlipAndCrop
from isonorm.lab.devices import make_fabric
from isonorm.lab.models import MLP, SmallCNN
from isonorm.lab.objective import Objective
from isonorm.lab.plan import Plan
from isonorm.lab.schedules import Halving, Steps, SuperConvergence
from isonorm.lab.streams import open_streams
from isonorm.lab.train import Epoch, Result, evaluate, seeded, train


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

    result = train(model, data, Plan(epochs=1, batch_size=len(data.train_labels), lr=0.3), seed=0)

    for trained, parameter in zip(model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(trained, parameter, rtol=1e-4, atol=1e-6)
    assert result.epochs[0].train_loss == pytest.approx(loss.item(), rel=1e-5)
    wrong = expected(data.test_images).argmax(1) != data.test_labels
    assert result.epochs[0].test_error == pytest.approx(wrong.sum().item() / 450)


def test_epochs_are_reported_as_they_end_and_learning_shows(data):
    seen = []
    result = train(
        small_mlp(), data, Plan(epochs=4, batch_size=64, lr=0.2), seed=0, on_epoch=seen.append
    )
    assert tuple(seen) == result.epochs
    assert [epoch.number for epoch in seen] == [1, 2, 3, 4]
    assert result.steps_per_epoch == 1347 // 64
    assert seen[-1].train_loss < 0.3 < 1 < seen[0].train_loss and seen[-1].test_error < 0.1


def test_conditioning_is_measured_as_the_network_is_in_training(data):
    plan = Plan(epochs=2, batch_size=None, lr=0.1, condition_every=2)
    model = seeded(0, lambda: small_mlp("dbn"))
    result = train(model, data, plan, seed=0)
    found = [epoch.condition_number for epoch in result.epochs]
    assert math.isnan(found[0])
    batches, _ = open_streams(data, plan, 0, make_fabric("cpu"))
    images = next(iter(batches))[0]
    in_training = fisher_condition(model.train(), images)
    assert found[1] == pytest.approx(in_training, rel=1e-2)
    assert found[1] != pytest.approx(fisher_condition(model.eval(), images), rel=0.1)


def test_seeds_decide_everything(data):
    def curve(weights: int, order: int) -> list[tuple[float, float]]:
        model = seeded(weights, small_mlp)
        result = train(model, data, Plan(epochs=2, batch_size=256, lr=0.2), seed=order)
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


def test_test_error_is_measured_in_eval_mode(data):
    model = small_mlp()
    model(data.train_images)
    before = copy.deepcopy(model.state_dict())
    fabric = make_fabric("cpu")
    _, test = open_streams(data, Plan(epochs=1, batch_size=64, lr=0.1), seed=0, fabric=fabric)
    measured = evaluate(Objective(model), test, fabric)
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
    logits = model.eval()(data.test_images)
    top5 = logits.topk(5).indices.eq(data.test_labels[:, None]).any(1)
    assert measured["test_error"] == pytest.approx(
        (logits.argmax(1) != data.test_labels).sum().item() / 450
    )
    assert measured["test_top5_error"] == pytest.approx(1 - top5.float().mean().item(), abs=1e-6)
    expected = cross_entropy(logits, data.test_labels).item()
    assert measured["test_loss"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("norm", ["batchnorm", "dbn", "dbn:method=pca", "iternorm"])
def test_divergence_is_a_result(data, norm):
    result = train(small_mlp(norm), data, Plan(epochs=5, batch_size=256, lr=1e30), seed=0)
    assert result.diverged and len(result.epochs) < 5
    assert result.train_loss is None and result.test_error is None


class Killed(BaseException):
    """What ends a training at once."""


AUGMENTED = {"augment": FlipAndCrop(padding=1), "mean": "pixel"}
PLANS = {
    "momentum and steps": Plan(
        epochs=4, batch_size=200, lr=0.2, momentum=0.9, weight_decay=1e-3,
        schedule=Steps((2, 3), 0.1), **AUGMENTED,
    ),
    "Adam, halving": Plan(
        epochs=4, batch_size=200, lr=0.01, optimizer="adam", schedule=Halving(4)
    ),
    "LARS": Plan(epochs=4, batch_size=200, lr=1.0, optimizer="lars", momentum=0.9),
    "manifold mixup, super-convergence": Plan(
        epochs=4, batch_size=200, lr=0.1, mixup_alpha=6.0, mixup_places=("", "conv2"),
        schedule=SuperConvergence(up=2, down=3, end=4),
    ),
}  # fmt: skip


@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_a_resumed_training_ends_bit_for_bit_like_an_uninterrupted_one(data, plan, order, tmp_path):
    data = replace(  # three steps an epoch, and images left over
        data,
        train_images=data.train_images[:700],
        train_labels=data.train_labels[:700],
        test_images=data.test_images[:100],
        test_labels=data.test_labels[:100],
    )

    def network() -> nn.Module:
        chain = SmallCNN(in_channels=1, width=0.125, norm="iternorm:running=whitening")
        parts = OrderedDict([*chain.named_children(), ("drop", nn.Dropout(0.1))])
        return nn.Sequential(parts).to(memory_format=order)

    def killed_after_two(epoch: Epoch) -> None:
        if epoch.number == 2:
            raise Killed

    whole, stopped, resumed = (seeded(1, network) for _ in range(3))
    expected = train(whole, data, plan, seed=1)
    path = tmp_path / "checkpoint.safetensors"
    with pytest.raises(Killed):
        train(stopped, data, plan, seed=1, checkpoint=path, on_epoch=killed_after_two)
    seen = []
    result = train(resumed, data, plan, seed=1, checkpoint=path, on_epoch=seen.append)

    assert [epoch.number for epoch in seen] == [3, 4] and result.steps_per_epoch == 3
    torch.testing.assert_close(resumed.state_dict(), whole.state_dict(), rtol=0, atol=0)
    assert untimed(result) == untimed(expected)


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "lamb"])
def test_a_checkpoint_of_a_channels_last_model_is_loaded_into_its_own_order(optimizer, tmp_path):
    def make() -> tuple[nn.Module, Optimizer]:
        model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Conv2d(8, 4, 3))
        model.to(memory_format=torch.channels_last)
        momentum = 0.9 if optimizer == "sgd" else 0.0
        plan = Plan(epochs=1, batch_size=1, lr=0.1, optimizer=optimizer, momentum=momentum)
        return model, plan.make_optimizer(model)

    def state(optimizer: Optimizer) -> list[torch.Tensor]:
        states = (optimizer.state[p] for group in optimizer.param_groups for p in group["params"])
        return [torch.as_tensor(state[key]) for state in states for key in sorted(state)]

    def laid_out(model: nn.Module, optimizer: Optimizer) -> list[tuple[int, ...]]:
        tensors = [*model.state_dict().values(), *state(optimizer)]
        return [tensor.stride() for tensor in tensors]

    model, steps = make()
    for _ in range(2):
        model(torch.randn(5, 3, 8, 8)).square().mean().backward()
        steps.step()
    assert model[0].weight.stride() == (27, 1, 9, 3)
    checkpoints.save(tmp_path / "checkpoint", model, steps, {})
    checkpoints.save_weights(tmp_path / "weights", model, {})

    other, others_steps = make()
    checkpoints.Checkpoint(tmp_path / "checkpoint").load_into(other, others_steps)
    torch.testing.assert_close(other.state_dict(), model.state_dict(), rtol=0, atol=0)
    torch.testing.assert_close(state(others_steps), state(steps), rtol=0, atol=0)
    assert laid_out(other, others_steps) == laid_out(model, steps)
    torch.testing.assert_close(
        load_file(tmp_path / "weights"), dict(model.state_dict()), rtol=0, atol=0
    )


def untimed(result: Result) -> list[str]:
    """The curve to the last bit, clocks aside; as text, in which NaN equals NaN."""
    return [repr(replace(epoch, seconds=0, test_seconds=0)) for epoch in result.epochs]


def test_precision_is_fabrics(data):
    plan = Plan(epochs=2, batch_size=64, lr=0.2)
    results = {}
    for precision in ("float32", "bf16", "float64"):
        model = seeded(0, small_mlp)
        fabric = make_fabric("cpu", precision=precision)
        results[precision] = train(model, data, plan, seed=0, fabric=fabric).train_loss
        expected = torch.float64 if precision == "float64" else torch.float32
        assert model.fc.weight.dtype == expected
    assert len(set(results.values())) == 3
    assert max(results.values()) - min(results.values()) < 0.02


def test_a_checkpoint_that_was_cut_short_is_answered_in_one_sentence(data, tmp_path):
    path = tmp_path / "checkpoint.safetensors"
    plan = Plan(epochs=1, batch_size=256, lr=0.1)
    train(small_mlp(), data, plan, seed=0, checkpoint=path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"cannot be resumed from .*was cut short.*remove it"):
        train(small_mlp(), data, plan, seed=0, checkpoint=path)


def test_a_result_answers_from_its_curve(make_result):
    result = make_result([1.0, 0.5, 0.2, 0.1], [0.30, 0.05, 0.06, 0.04], steps_per_epoch=10)
    assert (result.train_loss, result.test_error) == (0.1, 0.04)
    assert result.epochs_to(0.95) == 2 and result.epochs_to(0.96) == 4
    assert result.epochs_to(0.97) is None
    assert result.seconds_per_step == pytest.approx(0.025)  # epochs took 0.1, 0.2, 0.3 and 0.4 s


@pytest.mark.parametrize("batch_size", [0, 1348])
def test_impossible_batches_are_answered_in_one_sentence(data, batch_size):
    with pytest.raises(ValueError, match=f"between 1 and the 1347 images; got {batch_size}"):
        train(small_mlp(), data, Plan(epochs=1, batch_size=batch_size, lr=0.1), seed=0)
