"""Public formats, written down here from their projects' definitions."""

from __future__ import annotations

import copy
from functools import partial

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

import isonorm
from tests.surgery.checkpoints.states import C, D, Holder, affine, in_model, model_with, symmetric


def whitened(x, w, mean, state):
    """W(x − μ)·γ + β, group by group, W (g, d, d) and μ (g, d, 1)."""
    grouped = x.transpose(0, 1).reshape(len(w), w.shape[-1], -1)
    y = (w @ (grouped - mean)).view(C, len(x), *x.shape[2:]).transpose(0, 1)
    return y * state["weight"].view(1, C, 1, 1) + state["bias"].view(1, C, 1, 1)


@pytest.mark.parametrize("kind", [isonorm.IterNorm, isonorm.DBN], ids=["iternorm", "dbn"])
def test_states_of_iternorm_pytorch_are_the_same_in_eval(x, kind):
    state = {"running_mean": torch.randn(3, D, 1), "running_wm": symmetric(3, D, D)} | affine()
    model = model_with(kind(C, group_size=D, running="whitening"))
    report = isonorm.load_checkpoint(model, in_model(state))
    assert report.norms[0].format == "IterNorm-pytorch" and "same in eval" in str(report)
    expected = whitened(x, state["running_wm"], state["running_mean"], state)
    torch.testing.assert_close(model(x), expected, rtol=1e-5, atol=1e-5)


def test_states_of_its_dbn_share_one_projection_by_all_groups(x):
    """One projection, (d, d), for all groups."""
    state = {"running_mean": torch.randn(D, 1), "running_projection": symmetric(1, D, D)[0]}
    state |= affine()
    model = model_with(isonorm.DBN(C, group_size=D, running="whitening"))
    report = isonorm.load_checkpoint(model, in_model(state))
    assert "DBN" in report.norms[0].format and "all 3 groups" in report.norms[0].note
    w, mean = state["running_projection"].expand(3, D, D), state["running_mean"].expand(3, D, 1)
    torch.testing.assert_close(model(x), whitened(x, w, mean, state), rtol=1e-5, atol=1e-5)


def test_states_of_switchable_whitening_are_its_batch_part(x):
    state = {"running_mean": torch.randn(3, D, 1), "running_cov": symmetric(3, D, D)}
    state |= {"weight": torch.randn(C), "bias": torch.randn(C)}
    state |= {"sw_mean_weight": torch.zeros(2), "sw_var_weight": torch.tensor([60.0, 0.0])}
    model = model_with(isonorm.IterNorm(C, group_size=D, num_iters=5))
    report = isonorm.load_checkpoint(model, in_model(state))
    note = report.norms[0].note
    assert "50% of the mean" in note and "100% of the covariance" in note
    sigma = state["running_cov"] + 1e-5 * torch.eye(D)
    tr = sigma.diagonal(dim1=1, dim2=2).sum(1).view(-1, 1, 1)
    p = torch.eye(D).expand(3, D, D)
    for _ in range(5):
        p = 1.5 * p - 0.5 * p @ p @ p @ sigma / tr
    expected = whitened(x, p / tr.sqrt(), state["running_mean"], state)
    torch.testing.assert_close(model(x), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "norm",
    [
        partial(isonorm.IterNorm, group_size=5),
        partial(isonorm.IterNorm, group_size=5, running="whitening"),
        partial(isonorm.DBN, group_size=5),
        isonorm.BatchNorm,
    ],
    ids=["iternorm", "iternorm-w", "dbn", "batchnorm"],
)
def test_states_of_torchs_batchnorm_are_the_same_in_eval(x, norm):
    bn = nn.BatchNorm2d(C)
    nn.init.normal_(bn.weight)
    for _ in range(3):
        bn(x * 3 + 1)
    bn.eval()
    model = model_with(norm(C))
    report = isonorm.load_checkpoint(model, nn.Sequential(nn.Identity(), bn).state_dict())
    assert report.norms[0].format == "torch's BatchNorm"
    torch.testing.assert_close(model(x), bn(x), rtol=1e-5, atol=1e-5)
    assert model[1].num_batches_tracked == 3


def test_isonorms_own_states_load(x):
    model = model_with(isonorm.IterNorm(C, group_size=5))
    model.train()(x)
    other = model_with(isonorm.IterNorm(C, group_size=5))
    report = isonorm.load_checkpoint(other, model.state_dict())
    assert report.norms[0].format == "isonorm"
    torch.testing.assert_close(other(x), model.eval()(x))


def test_a_norm_may_be_the_whole_model(x):
    model, bn = isonorm.IterNorm(C).eval(), nn.BatchNorm2d(C).eval()
    assert "(model)" in str(isonorm.load_checkpoint(model, bn.state_dict()))
    torch.testing.assert_close(model(x), bn(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("wrapped", ["state_dict", "module", "_orig_mod"])
def test_what_training_scripts_put_around_a_state_is_taken_off(x, wrapped):
    model = nn.Sequential(nn.Conv2d(C, 4, 1), isonorm.IterNorm(4))
    state = copy.deepcopy(model.state_dict())
    if wrapped == "state_dict":
        source = {"epoch": 3, "state_dict": state}
    else:
        source = {f"{wrapped}.{name}": value for name, value in state.items()}
    nn.init.zeros_(model[0].weight)
    isonorm.load_checkpoint(model, source)
    assert torch.equal(model[0].weight, state["0.weight"])


def test_an_averaged_model_loads_into_the_plain_one(x):
    model = Holder().module
    isonorm.load_checkpoint(model, AveragedModel(other := Holder().module).state_dict())
    assert torch.equal(model[0].weight, other[0].weight)


def test_norms_of_torch_without_statistics_load():
    saved = nn.Sequential(nn.InstanceNorm2d(C, affine=True))
    nn.init.uniform_(saved[0].weight)
    model = nn.Sequential(isonorm.InstanceNorm(C))
    isonorm.load_checkpoint(model, saved.state_dict())
    assert torch.equal(model[0].weight, saved[0].weight)
