"""Running statistics, eval, and what leaves both unchanged."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from isonorm import EquiConv2d


def test_eval_is_training_where_the_running_mean_has_arrived(case):
    layer, x = case.make(momentum=1.0), case.draw()
    y = layer(x)
    torch.testing.assert_close(layer.eval()(x), y)


def test_training_at_batch_128_agrees_with_eval_in_the_limit():
    """v_c of a batch of m values is its mean up to σ/√m; so are s, b and the output."""
    layer = EquiConv2d(3, 8, 3, padding=1, momentum=None)
    with torch.no_grad():
        for _ in range(50):
            layer(torch.rand(128, 3, 6, 6))
        x = torch.rand(128, 3, 6, 6)
        y = layer(x)
        expected = layer.eval()(x)
    torch.testing.assert_close(layer.running_v, torch.full((3,), 0.5), rtol=0, atol=0.003)
    assert (y - expected).norm() / expected.norm() < 3 * 0.29 / (128 * 36) ** 0.5 / 0.5 * 3**0.5


def test_the_running_average(case):
    batches = [case.draw() for _ in range(3)]
    each, kept, all_of_them = (case.make(momentum=m) for m in (1.0, 0.3, None))
    v = []
    for x in batches:
        each(x), kept(x), all_of_them(x)
        v.append(each.running_v.clone())
    expected = torch.ones(4)
    for value in v:
        expected = 0.7 * expected + 0.3 * value
    torch.testing.assert_close(kept.running_v, expected)
    torch.testing.assert_close(all_of_them.running_v, torch.stack(v).mean(0))
    assert kept.num_batches_tracked == 3
    kept.reset_running_stats()
    assert kept.num_batches_tracked == 0 and torch.equal(kept.running_v, torch.ones(4))


def test_eval_depends_on_neither_batch_nor_image_size():
    layer = EquiConv2d(3, 4, 3, padding=1, padding_mode="circular")
    layer(torch.rand(6, 3, 8, 8))
    layer.eval()
    x = torch.rand(4, 3, 8, 8)
    torch.testing.assert_close(layer(x)[:1], layer(x[:1]))
    torch.testing.assert_close(layer(x.repeat(1, 1, 2, 3))[..., :8, :8], layer(x))


def test_without_statistics_eval_normalizes_by_the_batch(case):
    layer, x = case.make(track_running_stats=False), case.draw()
    torch.testing.assert_close(layer.eval()(x), layer.train()(x))
    assert layer.running_v is None
    with pytest.raises(RuntimeError, match="no fixed map in eval"):
        layer.fuse()


def test_an_empty_batch_changes_nothing(trained, case):
    before = copy.deepcopy(trained.state_dict())
    y = trained(case.draw()[:0])
    assert y.shape[0] == 0
    torch.testing.assert_close(trained.state_dict(), before, rtol=0, atol=0)


def test_checkpointing_updates_statistics_once(case):
    layer, x = case.make(), case.draw().requires_grad_()
    other = copy.deepcopy(layer)
    checkpoint(lambda x: layer(x).tanh(), x, use_reentrant=False).square().sum().backward()
    other(x)
    torch.testing.assert_close(layer.running_v, other.running_v)
    assert layer.num_batches_tracked == 1


def test_a_failed_call_changes_nothing():
    layer = EquiConv2d(3, 4, 5)
    with pytest.raises(RuntimeError, match="size"):
        layer(torch.rand(2, 3, 4, 4))
    assert layer.num_batches_tracked == 0 and torch.equal(layer.running_v, torch.ones(3))


def test_tracking_can_be_switched_off_and_on_as_in_batch_norm(case):
    """Off, nothing moves and nothing is reset; on again, all is as it was."""
    norm, plain = case.make(momentum=0.3), torch.nn.BatchNorm1d(4, momentum=0.3)
    x, y = case.draw(), torch.randn(5, 4)
    moved = []
    for layer, batch, running in ((norm, x, "running_v"), (plain, y, "running_mean")):
        steps = []
        for tracks, reset in ((True, False), (False, False), (False, True), (True, False)):
            before = getattr(layer, running).clone()
            layer.track_running_stats = tracks
            layer.reset_running_stats() if reset else layer(batch)
            steps.append((not torch.equal(before, getattr(layer, running)),
                          layer.num_batches_tracked.item()))  # fmt: skip
        moved.append(steps)
    assert moved[0] == moved[1] == [(True, 1), (False, 1), (False, 1), (True, 2)]


def test_a_count_that_was_taken_away_is_not_missed_unless_it_is_needed(case):
    """As in BatchNorm, which averages by its momentum."""
    layer, x = case.make(momentum=1.0), case.draw()
    layer.num_batches_tracked = None
    y = layer(x)
    torch.testing.assert_close(layer.eval()(x), y)
    layer.train().momentum = None
    with pytest.raises(RuntimeError, match="num_batches_tracked, was taken away"):
        layer(x)
