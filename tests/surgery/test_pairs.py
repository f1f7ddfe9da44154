"""Conversion to EquiNorm: a convolution and its BatchNorm become one layer."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import isonorm
from tests.surgery.blocks import BatchNormAct2d, Residual


def test_a_residual_block():
    model, x = Residual(), torch.rand(4, 3, 8, 8)
    kernel, gamma = model.conv1.weight.detach().clone(), model.bn1.weight.detach().clone()
    report = isonorm.convert(model, "equinorm")
    assert len(report.changed) == 3 and not report.left
    assert type(model.conv1) is type(model.shortcut[0]) is isonorm.EquiConv2d
    assert type(model.bn1) is type(model.shortcut[1]) is nn.Identity
    assert torch.equal(model.conv1.weight, kernel) and torch.equal(model.conv1.gamma, gamma)
    y = model(x)
    y.backward(torch.randn_like(y))
    assert isonorm.recalibrate(model, [x, x]) == 2
    assert model.eval()(x).isfinite().all()


def test_linear_and_norms_with_an_activation():
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), BatchNormAct2d(8, nn.GELU()), nn.Flatten(),
        nn.Linear(32, 6), nn.BatchNorm1d(6),
    )  # fmt: skip
    act = model[1].act
    isonorm.convert(model, "EquiNorm", where="1")
    assert type(model[0]) is isonorm.EquiConv2d and model[1].act is act
    assert type(model[4]) is nn.BatchNorm1d
    isonorm.convert(model, "equinorm")
    assert type(model[3]) is isonorm.EquiLinear
    assert model(torch.rand(5, 3, 4, 4)).shape == (5, 6)


class Odd(nn.Module):
    """Pairs that are none."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.read_twice = nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3)
        self.relu, self.after_relu = nn.ReLU(), nn.BatchNorm2d(3)
        self.one_weight, self.balances_to_zero = nn.Conv2d(3, 3, 1, groups=3), nn.BatchNorm2d(3)
        self.transposed, self.after_transposed = nn.ConvTranspose2d(3, 3, 1), nn.BatchNorm2d(3)
        self.hooked_conv, self.hooked = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)
        self.hooked.register_forward_hook(lambda module, args, y: None)
        self.group = nn.GroupNorm(1, 3)

    def forward(self, x):
        y = self.conv(x)
        x = self.after_relu(self.relu(self.read_twice(y) + y))
        x = self.after_transposed(self.transposed(self.balances_to_zero(self.one_weight(x))))
        return self.group(self.hooked(self.hooked_conv(x)))


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("read_twice", "feeds others"),
        ("after_relu", "fed by relu"),
        ("balances_to_zero", "balances to zero"),
        ("after_transposed", "no convolution"),
        ("hooked", "hooks"),
        ("group", "BatchNorm alone"),
    ],
)
def test_what_is_no_pair_is_left(name, reason):
    model = Odd()
    before = copy.deepcopy(model.state_dict())
    report = isonorm.convert(model, "equinorm")
    assert not report.changed and before.keys() == model.state_dict().keys()
    reasons = {row.name: row.reason for row in report.left}
    assert reason in reasons[name]


def test_tied_kernels_are_left():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4), nn.BatchNorm1d(4))
    model[2].weight = model[0].weight
    report = isonorm.convert(model, "equinorm")
    assert ["shared" in row.reason for row in report.left] == [True, True]


class Auxiliary(nn.Module):
    """Another output in training, of what the norm reads."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)

    def forward(self, x):
        y = self.conv(x)
        return (self.norm(y), y) if self.training else self.norm(y)


@pytest.mark.parametrize("training", [False, True])
def test_a_pair_is_one_in_training_and_in_eval(training):
    report = isonorm.convert(Auxiliary().train(training), "equinorm")
    assert not report.changed and "'conv' feeds others" in report.left[0].reason
