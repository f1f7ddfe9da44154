"""Copies, checkpoints and averages of every layer, and training that recomputes activations."""

from __future__ import annotations

import copy
import io
import pickle
from contextlib import nullcontext
from functools import partial

import numpy
import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.func import functional_call
from torch.optim.swa_utils import AveragedModel
from torch.utils.checkpoint import checkpoint

import isonorm


@pytest.fixture
def trained(case, draw):
    """A layer in training mode, with statistics and parameters of its own."""
    layer = case.make()
    for _ in range(2):
        layer(draw(6, 12, 4, 3))
    return layer


def assert_same_state(a, b):
    for (name, x), (other, y) in zip(a.state_dict().items(), b.state_dict().items(), strict=True):
        assert name == other and torch.equal(x, y), name


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize(
    "duplicate",
    [
        pytest.param(copy.deepcopy, id="deepcopy"),
        pytest.param(lambda layer: pickle.loads(pickle.dumps(layer)), id="pickle"),
    ],
)
def test_copies_are_equal_and_independent(trained, draw, duplicate, training):
    layer = trained.train(training)
    other, x = duplicate(layer), draw(6, 12, 4, 3)
    state = {name: t.clone() for name, t in layer.state_dict().items()}
    assert repr(other) == repr(layer) and other.training == training
    other(x)
    for name, t in layer.state_dict().items():
        assert torch.equal(t, state[name]), name
    expected = layer(x)
    assert_same_state(layer, other)
    assert torch.equal(layer.eval()(x), other.eval()(x))
    assert expected.shape == x.shape


def test_state_dict_holds_what_torch_users_expect(case):
    names = set(case.build(12).state_dict())
    allowed = {"weight", "bias", "color", "running_mean", "running_cov", "running_whitening"}
    assert names <= allowed | {"num_batches_tracked"}
    assert case.keeps_statistics == ("num_batches_tracked" in names)


@pytest.mark.parametrize("assign", [False, True], ids=["copy", "assign"])
@pytest.mark.parametrize("cold", [True, False], ids=["eval-before", "eval-after"])
def test_loading_into_a_fresh_layer(case, trained, draw, assign, cold):
    model, x = nn.Sequential(trained), draw(5, 12, 3)
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    fresh = nn.Sequential(case.build(12))
    if cold:
        fresh.eval()
    fresh.load_state_dict(torch.load(file, weights_only=True), strict=True, assign=assign)
    if not cold:
        fresh.eval()
    assert_same_state(model, fresh)
    assert torch.equal(fresh(x), model.eval()(x))


def test_a_layer_put_in_eval_by_hand_is_not_stale(case, trained, draw):
    x = draw(5, 12, 3)
    expected = copy.deepcopy(trained).eval()(x)
    trained.training = False
    assert torch.equal(trained(x), expected)


def test_statistics_taken_in_inference_mode(case, trained, draw):
    """As when a model's statistics are computed anew before deployment."""
    other, x, y = copy.deepcopy(trained), draw(6, 12, 4), draw(5, 12, 3)
    with torch.inference_mode():
        other(x)
        found = other.eval()(y)
    trained(x)
    expected = trained.eval()(y)
    assert torch.equal(found, expected)
    other(y.requires_grad_()).backward(torch.randn_like(y))
    assert_same_state(other, trained)


@pytest.mark.parametrize("way", ["to_empty", "assign"])
def test_made_on_meta_and_loaded(case, trained, draw, way):
    x = draw(5, 12, 3)
    with torch.device("meta"):
        layer = case.build(12)
    assert all(t.is_meta for t in (*layer.parameters(), *layer.buffers()))
    if way == "to_empty":
        layer.to_empty(device="cpu")
    layer.load_state_dict(trained.state_dict(), strict=True, assign=way == "assign")
    assert not any(t.is_meta for t in (*layer.parameters(), *layer.buffers()))
    assert torch.equal(layer.eval()(x), trained.eval()(x))


def test_made_on_meta_and_reset(case, draw):
    layer, fresh, x = case.build(12, device="meta"), case.build(12), draw(5, 12, 3)
    layer.to_empty(device="cpu").reset_parameters()
    assert_same_state(layer, fresh)
    assert torch.equal(layer.eval()(x), fresh.eval()(x))


def test_assigning_float64_state_to_a_float32_layer(case, trained, draw):
    layer, wide = case.build(12), trained.double().eval()
    layer.load_state_dict(wide.state_dict(), assign=True)
    x = draw(5, 12, 3, dtype=torch.float64)
    assert torch.equal(layer.eval()(x), wide(x))


# Models that are averages of others


def test_values_copied_into_an_eval_model_are_used(case, trained, draw):
    """An exponential moving average, as most are written: ``copy_`` into ``state_dict`` tensors."""
    average, x = case.build(12).eval(), draw(5, 12, 3)
    average(x)
    with torch.no_grad():
        for mean, value in zip(
            average.state_dict().values(), trained.state_dict().values(), strict=True
        ):
            mean.copy_(value)
    assert torch.equal(average(x), trained.eval()(x))


def test_values_written_behind_autograds_back_are_used_from_the_next_eval(case, trained, draw):
    """Through ``.data`` no version tells of a change."""
    average, x = case.build(12).eval(), draw(5, 12, 3)
    average(x)
    for mean, value in zip(
        average.state_dict().values(), trained.state_dict().values(), strict=True
    ):
        mean.data.copy_(value)
    assert torch.equal(average.eval()(x), trained.eval()(x))


def test_statistics_handed_to_a_call_are_used_by_it_alone(draw):
    """Tensors that come and go take each other's place in memory, not in the layer."""
    layer, x = isonorm.BatchNorm(12, affine=False, eps=0).eval(), draw(5, 12, 3)
    scales = range(1, 200)
    found = [
        functional_call(layer, {"running_cov": torch.full((12, 1, 1), float(s))}, (x,))
        for s in scales
    ]
    for s, y in zip(scales, found, strict=True):
        torch.testing.assert_close(y, x / s**0.5)
    torch.testing.assert_close(layer(x), x)


def test_averaged_model_with_buffers(case, trained, draw):
    model, x = nn.Sequential(trained), draw(6, 12, 3)
    average = AveragedModel(model, use_buffers=True).eval()
    average.update_parameters(model)
    average(x)
    model(x)
    average.update_parameters(model)
    alone = nn.Sequential(case.build(12))
    alone.load_state_dict(average.module.state_dict())
    torch.testing.assert_close(average(x), alone.eval()(x))


# Activation checkpointing


@pytest.mark.parametrize("reentrant", [True, False], ids=["reentrant", "non-reentrant"])
def test_checkpointing_updates_statistics_once(case, draw, reentrant):
    model = nn.Sequential(nn.Conv1d(12, 12, 1), case.make(), nn.ReLU())
    plain = copy.deepcopy(model)
    x, cotangent = draw(4, 12, 5), torch.randn(4, 12, 5)
    results = []
    for network, call in (
        (plain, plain),
        (model, partial(checkpoint, model, use_reentrant=reentrant)),
    ):
        leaf = x.clone().requires_grad_()
        y = call(leaf)
        y.backward(cotangent)
        results.append([y, leaf.grad, *(p.grad for p in network.parameters())])
    for a, b in zip(*results, strict=True):
        assert torch.equal(a, b)
    assert_same_state(model, plain)


@pytest.mark.parametrize(
    "duplicate",
    [
        pytest.param(copy.deepcopy, id="deepcopy"),
        pytest.param(lambda layer: pickle.loads(pickle.dumps(layer)), id="pickle"),
    ],
)
def test_a_copy_notices_what_was_written_before_it_was_made(draw, duplicate):
    layer = isonorm.IterNorm(12, group_size=5)
    x = draw(6, 12)
    layer(x)
    layer.eval()
    layer.running_cov.mul_(9)
    torch.testing.assert_close(duplicate(layer)(x), layer(x))


def test_a_transform_notices_what_was_written(draw):
    layer = isonorm.IterNorm(12, group_size=5).eval()
    layer.running_cov.mul_(9)
    x = draw(3, 4, 12)
    torch.testing.assert_close(torch.func.vmap(layer)(x), torch.stack([layer(part) for part in x]))


def test_meta_tensors_pass_through(case):
    for training in (True, False):
        layer = case.make(device="meta").train(training)
        assert layer(torch.empty(4, 12, 5, 3, device="meta")).shape == (4, 12, 5, 3)


def test_another_eps_is_used_at_once(draw):
    layer, x = isonorm.IterNorm(12).eval(), draw(8, 12)
    before = layer(x)
    layer.eps = 1.0
    expected = isonorm.IterNorm(12, eps=1.0).eval()(x)
    assert not torch.allclose(layer(x), before)
    torch.testing.assert_close(layer(x), expected)


def test_statistics_of_a_functional_call_stay_in_it(draw):
    layer, x = isonorm.IterNorm(12, group_size=5).eval(), draw(8, 12)
    expected = layer(x)
    states = {name: torch.stack([t, 4 * t]) for name, t in layer.state_dict().items()}
    torch.func.vmap(lambda state: functional_call(layer, state, (x,)))(states)
    assert torch.equal(copy.deepcopy(layer)(x), expected)


def test_another_operation_is_used_at_once(draw):
    layer, x = isonorm.IterNorm(12, num_iters=1), draw(8, 12)
    layer(3 * x)
    before = layer.eval()(x)
    layer.operation = isonorm.operation.whiten("zca")
    found = layer(x)
    assert not torch.allclose(found, before)
    torch.testing.assert_close(found, copy.deepcopy(layer).eval()(x))


@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16], ids=["fp16", "bf16"])
@pytest.mark.parametrize("make", [isonorm.IterNorm, lambda c: isonorm.EquiLinear(c, c)])
def test_statistics_of_a_16_bit_checkpoint_are_widened(make, half):
    layer = make(12)
    narrow = {
        key: value.to(half) if value.is_floating_point() else value
        for key, value in layer.state_dict().items()
    }
    layer.load_state_dict(narrow, assign=True)
    assert layer.weight.dtype == half
    floating = [buffer for buffer in layer.buffers() if buffer.is_floating_point()]
    assert floating and all(buffer.dtype == torch.float32 for buffer in floating)


@pytest.mark.parametrize("strict", [True, False])
def test_the_state_of_another_norm_is_not_loaded_in_silence(strict):
    """Without strict, γ of one norm would meet the W of another; load_checkpoint converts both."""
    theirs = nn.Sequential(nn.Linear(3, 12), nn.BatchNorm1d(12))
    theirs(torch.randn(32, 3))
    state, x = theirs.eval().state_dict(), torch.randn(5, 3)
    ours = nn.Sequential(nn.Linear(3, 12), isonorm.IterNorm(12)).eval()
    refused = pytest.raises(RuntimeError, match="running_var") if strict else nullcontext()
    with pytest.warns(UserWarning, match=r"isonorm\.load_checkpoint\(model, state_dict\)"), refused:
        ours.load_state_dict(state, strict=strict)
    isonorm.load_checkpoint(ours, state)  # without a warning, which would be an error here
    torch.testing.assert_close(ours(x), theirs(x))


def test_parts_of_a_state_load_as_ever():
    layer = isonorm.IterNorm(12)
    layer.load_state_dict({"weight": torch.full((12,), 2.0)}, strict=False)
    assert torch.equal(layer.weight, torch.full((12,), 2.0))


def test_statistics_follow_torchs_default_dtype():
    torch.set_default_dtype(torch.float64)
    try:
        layer = isonorm.IterNorm(12)
    finally:
        torch.set_default_dtype(torch.float32)
    assert layer.running_mean.dtype == layer.running_cov.dtype == torch.float64


def test_tracers_of_fx_see_one_call(draw):
    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = isonorm.IterNorm(12, act="relu")

        def forward(self, x, z):
            return self.norm(x, residual=z) + self.norm(x)

    block, x, z = Block().eval(), draw(8, 12), draw(8, 12)
    traced = torch.fx.symbolic_trace(block)
    assert [node.target for node in traced.graph.nodes if node.op == "call_module"] == ["norm"] * 2
    torch.testing.assert_close(traced(x, z), block(x, z))


def test_tangents_do_not_reach_the_statistics(draw):
    layer = isonorm.IterNorm(12)
    with forward_ad.dual_level():
        layer(forward_ad.make_dual(draw(8, 12), draw(8, 12)))
        for buffer in (layer.running_mean, layer.running_cov):
            assert forward_ad.unpack_dual(buffer).tangent is None


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_statistics_may_be_left_alone_for_a_while(batch_case, draw, compiled):
    """As torch's: other batches pass, in training mode, and are forgotten."""
    layer = batch_case.make()
    layer(draw(6, 12, 4))
    before = {name: b.clone() for name, b in layer.named_buffers()}
    call = torch.compile(layer, backend="eager") if compiled else layer
    layer.track_running_stats = False
    assert call(draw(6, 12, 4) + 3).isfinite().all()
    for name, b in layer.named_buffers():
        assert torch.equal(b, before[name]), name
    layer.track_running_stats = True
    call(draw(6, 12, 4) + 3)
    assert layer.num_batches_tracked == 2
    torch.compiler.reset()


def test_statistics_that_are_left_alone_are_not_reset(batch_case, draw):
    """As torch's ``nn.BatchNorm2d``, by ``reset_parameters``, too."""
    for layer in (torch.nn.BatchNorm1d(12), batch_case.make()):
        layer(draw(6, 12, 4) + 3)
        layer.track_running_stats = False
        before = {name: b.clone() for name, b in layer.named_buffers()}
        layer.reset_running_stats()
        layer.reset_parameters()
        for name, b in layer.named_buffers():
            assert torch.equal(b, before[name]), name
        layer.track_running_stats = True
        layer.reset_running_stats()
        assert not layer.running_mean.any() and layer.num_batches_tracked == 0


def test_statistics_may_be_taken_away(batch_case, draw):
    """For adaptation at test time: every batch is then normalized by its own."""
    layer, x = batch_case.make(), draw(6, 12, 4)
    layer(x)
    layer.track_running_stats = False
    layer.running_mean = layer.running_cov = layer.running_whitening = None
    expected = layer(x)
    for other in (layer.eval(), copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(other(x), expected)
    layer.load_state_dict(layer.state_dict())
    assert torch.equal(layer(x), expected)


def test_the_count_of_batches_may_be_taken_away(draw):
    """As torch's: what needs no count is averaged on."""
    layer = isonorm.IterNorm(12, group_size=5)
    layer.num_batches_tracked = None
    layer(draw(6, 12, 4) + 3)
    assert layer.running_mean.abs().min() > 0.1
    layer.momentum = None
    before = layer.running_mean.clone()
    with pytest.raises(RuntimeError, match="num_batches_tracked, was taken away"):
        layer(draw(6, 12, 4))
    assert torch.equal(layer.running_mean, before)


@pytest.mark.parametrize("running", ["covariance", "whitening"])
def test_one_statistic_without_the_other_is_refused(running, draw):
    """As torch's, whose layer can still be put in eval; nothing changes."""
    layer, x = isonorm.IterNorm(12, group_size=5, running=running), draw(6, 12, 4)
    layer(x)
    name = "running_cov" if running == "covariance" else "running_whitening"
    setattr(layer, name, None)
    before = copy.deepcopy(layer.state_dict())
    for act in (lambda: layer.train()(x), lambda: layer.eval()(x), layer.reset_running_stats):
        with pytest.raises(RuntimeError, match=f"its {name} is None: set both to None"):
            act()
    copied = copy.deepcopy(layer.eval())
    with pytest.raises(RuntimeError, match=f"its {name} is None"):
        copied(x)
    layer.load_state_dict(before)  # without a warning: all that it has is there
    for key, value in layer.state_dict().items():
        assert torch.equal(value, before[key]), key


def test_what_was_taken_away_is_left_out_of_a_reset(draw):
    """As torch's without a bias; the count of batches is no different."""
    layer = isonorm.IterNorm(12, group_size=5)
    layer.bias = layer.num_batches_tracked = None
    layer(draw(6, 12, 4) + 3)
    with torch.no_grad():
        layer.weight.fill_(3)
    layer.reset_parameters()
    fresh = isonorm.IterNorm(12, group_size=5).state_dict()
    for name, value in layer.state_dict().items():
        assert torch.equal(value, fresh[name]), name
    assert layer.bias is None and layer.num_batches_tracked is None


def test_eps_may_be_a_number_of_numpys():
    layer = isonorm.IterNorm(8).eval()
    layer.eps = numpy.float32(1e-3)
    assert layer(torch.randn(4, 8)).isfinite().all()
