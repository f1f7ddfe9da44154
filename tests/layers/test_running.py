"""Running statistics, and the one affine map they make of a layer in eval."""

from __future__ import annotations

from functools import partial

import pytest
import torch

import isonorm
from isonorm import area, operation

WIDE = {"dtype": torch.float64}


def groups_of(x, size):
    """(d, m) samples of each group of channels of an (N, C, *) input."""
    channels = x.movedim(1, 0).flatten(1)
    return channels.split(size)


def padded(blocks, size):
    """Matrices as the leading corners of size × size identities, stacked."""
    out = torch.eye(size, dtype=blocks[0].dtype).repeat(len(blocks), 1, 1)
    for full, block in zip(out, blocks, strict=True):
        full[: len(block), : len(block)] = block
    return out


def newton(cov, eps, steps=5):
    """Eq. 3–5 of IterNorm."""
    cov = cov + eps * torch.eye(len(cov), dtype=cov.dtype)
    p = torch.eye(len(cov), dtype=cov.dtype)
    for _ in range(steps):
        p = 0.5 * (3 * p - p @ p @ p @ cov / cov.trace())
    return p / cov.trace().sqrt()


def snapshot(layer):
    return {name: b.clone() for name, b in layer.named_buffers()}


def assert_untouched(layer, before):
    for name, b in layer.named_buffers():
        assert torch.equal(b, before[name]), name


# What is averaged


def test_covariance_mode_averages_unbiased_covariances_from_the_identity(draw):
    layer = isonorm.IterNorm(12, group_size=5, momentum=0.3, eps=1e-2, **WIDE)
    mean, cov = torch.zeros(12, **WIDE), torch.eye(5, **WIDE).repeat(3, 1, 1)
    assert torch.equal(layer.running_cov, cov) and torch.equal(layer.running_mean, mean)
    for step in range(1, 4):
        x = draw(6, 12, 4, 3, **WIDE)
        layer(x)
        batch = padded([torch.cov(group) for group in groups_of(x, 5)], 5)
        mean = 0.7 * mean + 0.3 * x.mean((0, 2, 3))
        cov = 0.7 * cov + 0.3 * batch
        torch.testing.assert_close(layer.running_mean, mean)
        torch.testing.assert_close(layer.running_cov, cov)
        assert layer.num_batches_tracked == step


def test_whitening_mode_averages_whitening_matrices(draw):
    """IterNorm Eq. 8."""
    layer = isonorm.IterNorm(12, group_size=5, momentum=0.3, running="whitening", **WIDE)
    assert layer.running_cov is None
    w = torch.eye(5, **WIDE).repeat(3, 1, 1)
    for _ in range(3):
        x = draw(6, 12, 4, 3, **WIDE)
        layer(x)
        batch = [newton(torch.cov(g, correction=0), layer.eps) for g in groups_of(x, 5)]
        w = 0.7 * w + 0.3 * padded(batch, 5)
        torch.testing.assert_close(layer.running_whitening, w)
    x = draw(3, 12, 7, **WIDE)
    centered = x - layer.running_mean.view(1, 12, 1)
    blocks = [m[:d, :d] for m, d in zip(w, (5, 5, 2), strict=True)]
    expected = torch.block_diag(*blocks) @ centered
    torch.testing.assert_close(layer.eval()(x), expected)


def test_eval_whitens_by_the_running_covariance(draw):
    layer = isonorm.IterNorm(12, group_size=5, **WIDE)
    for _ in range(3):
        layer(draw(6, 12, 4, 3, **WIDE))
    covs = [m[:d, :d] for m, d in zip(layer.running_cov, (5, 5, 2), strict=True)]
    w = torch.block_diag(*(newton(cov, layer.eps) for cov in covs))
    x = draw(3, 12, 7, **WIDE)
    torch.testing.assert_close(layer.eval()(x), w @ (x - layer.running_mean.view(1, 12, 1)))


def test_the_remainder_keeps_its_padding(draw):
    """Rows and columns beyond a shorter last group are the identity, always."""
    layer = isonorm.DBN(12, group_size=5, **WIDE)
    for _ in range(3):
        layer(draw(6, 12, 4, 3, **WIDE))
    layer.eval()
    outside = torch.ones(5, 5, dtype=torch.bool)
    outside[:2, :2] = False
    for matrix in (layer.running_cov, layer.eval_transform, layer.inference_map()[0]):
        assert torch.equal(matrix[2][outside], torch.eye(5, **WIDE)[outside])


def test_root_mean_squares_are_not_made_unbiased(draw):
    layer = isonorm.Normalize(12, operation="scale", momentum=1.0, **WIDE)
    x = draw(6, 12, 5, **WIDE)
    layer(x)
    torch.testing.assert_close(layer.running_cov.view(12), x.square().mean((0, 2)))
    assert torch.equal(layer.running_mean, torch.zeros(12, **WIDE))


def test_an_eval_pass_changes_nothing(batch_case, draw):
    layer = batch_case.make()
    layer(draw(6, 12, 5))
    layer.eval()
    before = snapshot(layer)
    layer(draw(6, 12, 5).requires_grad_()).backward(torch.randn(6, 12, 5))
    assert_untouched(layer, before)


# Momentum


@pytest.mark.parametrize("running", ["covariance", "whitening"])
def test_no_momentum_is_the_cumulative_average(draw, running):
    layer = isonorm.IterNorm(12, group_size=5, momentum=None, running=running, **WIDE)
    means, matrices = [], []
    for _ in range(4):
        x = draw(6, 12, 4, **WIDE)
        layer(x)
        alone = isonorm.IterNorm(12, group_size=5, momentum=1.0, running=running, **WIDE)
        alone(x)
        means.append(alone.running_mean)
        matrices.append(alone.running_cov if running == "covariance" else alone.running_whitening)
        matrix = layer.running_cov if running == "covariance" else layer.running_whitening
        torch.testing.assert_close(layer.running_mean, torch.stack(means).mean(0))
        torch.testing.assert_close(matrix, torch.stack(matrices).mean(0))


def test_momentum_may_be_changed(draw):
    layer, x = isonorm.IterNorm(12, **WIDE), draw(6, 12, 4, **WIDE)
    layer.momentum = 1.0
    layer(x)
    torch.testing.assert_close(layer.running_mean, x.mean((0, 2)))


def test_reset_gives_the_statistics_of_a_new_layer(batch_case, draw):
    layer, fresh, x = batch_case.make(), batch_case.build(12), draw(6, 12, 5)
    layer(x)
    layer.reset_running_stats()
    fresh.load_state_dict(layer.state_dict())
    for (name, a), b in zip(layer.named_buffers(), batch_case.build(12).buffers(), strict=True):
        assert torch.equal(a, b), name
    assert torch.equal(layer.eval()(x), fresh.eval()(x))


def test_eval_sees_a_reset(batch_case, draw):
    layer, x = batch_case.make(), draw(6, 12, 5)
    layer(x)
    before = layer.eval()(x)
    layer.reset_running_stats()
    assert not torch.allclose(layer(x), before, atol=1e-3)


# Values that are not finite


@pytest.mark.parametrize("bad", [float("nan"), float("inf")], ids=["nan", "inf"])
def test_check_finite_keeps_statistics(batch_case, draw, bad):
    layer = batch_case.make(check_finite=True)
    layer(draw(6, 12, 5))
    before, x = snapshot(layer), draw(6, 12, 5)
    x[2, 3, 1] = bad
    y = layer(x)
    assert not y.isfinite().all()
    assert_untouched(layer, before)
    layer(draw(6, 12, 5))
    assert layer.num_batches_tracked == before["num_batches_tracked"] + 1


def test_without_check_finite_statistics_are_poisoned_as_torchs_are(draw):
    ours, theirs = isonorm.BatchNorm(12), torch.nn.BatchNorm1d(12)
    x = draw(6, 12, 5)
    x[2, 3, 1] = float("nan")
    ours(x)
    theirs(x)
    torch.testing.assert_close(ours.running_mean, theirs.running_mean, equal_nan=True)
    torch.testing.assert_close(ours.running_cov.view(12), theirs.running_var, equal_nan=True)
    assert ours.running_mean.isnan().nonzero().tolist() == [[3]]


def test_one_bad_channel_poisons_its_group_alone(draw):
    layer = isonorm.IterNorm(12, group_size=5)
    x = draw(6, 12, 5)
    x[2, 3, 1] = float("nan")
    y = layer(x)
    assert y[:, :5].isnan().all() and y[:, 5:].isfinite().all()
    assert layer.running_cov[1:].isfinite().all()


# The map


def apply_map(layer, x):
    """A·x + c, group by group, from ``inference_map`` alone."""
    a, c = layer.inference_map()
    size = a.shape[-1]
    missing = len(a) * size - x.shape[1]
    flat = torch.nn.functional.pad(x.flatten(2), (0, 0, 0, missing)).unflatten(1, (len(a), size))
    return ((a @ flat).flatten(1, 2)[:, : x.shape[1]] + c[:, None]).view(x.shape)


def test_inference_map_is_eval(batch_case, draw):
    layer = batch_case.make(**WIDE)
    for _ in range(3):
        layer(draw(6, 12, 4, 3, **WIDE))
    layer.eval()
    x = draw(3, 12, 4, 3, **WIDE)
    torch.testing.assert_close(apply_map(layer, x), layer(x), rtol=1e-12, atol=1e-12)
    assert layer.inference_map()[1].shape == (12,)


def test_inference_map_is_current(batch_case, draw):
    """Asked for in training, it is the map that eval would use now."""
    layer, x = batch_case.make(**WIDE), draw(6, 12, 5, **WIDE)
    layer.eval()(x)
    layer.train()(x)
    found = apply_map(layer, x)
    torch.testing.assert_close(found, layer.eval()(x), rtol=1e-12, atol=1e-12)


def test_inference_map_carries_gradients_to_parameters(batch_case, draw):
    layer = batch_case.make(**WIDE)
    layer(draw(6, 12, 5, **WIDE))
    layer.eval()
    parameters = list(layer.parameters())
    x, cotangent = draw(3, 12, 5, **WIDE), torch.randn(3, 12, 5, **WIDE)
    found, expected = (
        torch.autograd.grad(y, parameters, cotangent) if parameters else ()
        for y in (apply_map(layer, x), layer(x))
    )
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize(
    "layer",
    [
        pytest.param(isonorm.GroupNorm(12, num_groups=3), id="group"),
        pytest.param(isonorm.IterNorm(12, track_running_stats=False), id="untracked"),
    ],
)
def test_no_map_where_every_input_has_its_own(layer):
    with pytest.raises(RuntimeError, match="no fixed map"):
        layer.inference_map()


# Precision


@pytest.mark.parametrize(
    "build",
    [
        pytest.param(partial(isonorm.IterNorm, group_size=5), id="iternorm"),
        pytest.param(partial(isonorm.DBN, group_size=5), id="dbn"),
        pytest.param(isonorm.BatchNorm, id="batchnorm"),
        pytest.param(
            partial(
                isonorm.Normalize,
                area=area.batch(5),
                operation=operation.whiten("zca"),
                recovery="coloring",
            ),
            id="coloring",
        ),
    ],
)
def test_a_mean_of_ten_thousand_costs_no_accuracy(build, draw):
    """Statistics and eval in float32, against float64 on the same rounded numbers."""
    layer, exact = build(12, momentum=1.0), build(12, momentum=1.0, **WIDE)
    x = (draw(32, 12, 8, 8, **WIDE) + 1e4).float()
    for training in (True, False):
        y = layer.train(training)(x)
        expected = exact.train(training)(x.double())
        # One rounding of μ at 1e4 is 5e-4, and shifts a channel as a whole; not its variation.
        shift = (y.double() - expected).mean((0, 2, 3), keepdim=True)
        assert shift.abs().max() < 5e-3
        torch.testing.assert_close(y.double() - shift, expected, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(layer.running_cov.double(), exact.running_cov, rtol=1e-4, atol=1e-4)
