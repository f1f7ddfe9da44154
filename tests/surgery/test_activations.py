"""Activations that become part of the norm before them, and norms that bring their own."""

from __future__ import annotations

import copy
from functools import partial

import pytest
import torch
from torch import nn

import isonorm
from isonorm.surgery.transplant import NormDropAct
from tests.surgery.blocks import BatchNormAct2d, Residual

IterNorm4 = partial(isonorm.IterNorm, group_size=4)


@pytest.mark.parametrize("act", [nn.ReLU(), nn.SiLU(), nn.GELU()], ids=["relu", "silu", "gelu"])
@pytest.mark.parametrize("fuse", [False, True], ids=["apart", "fused"])
def test_norms_with_an_activation_inside(lived_in, images, act, fuse):
    model = lived_in(nn.Sequential(nn.Conv2d(3, 8, 3), BatchNormAct2d(8, act)))
    expected, saved = model(images), copy.deepcopy(model.state_dict())
    isonorm.convert(model, IterNorm4, fuse_act=fuse)
    torch.testing.assert_close(model(images), expected)
    if fuse and not isinstance(act, nn.GELU):
        assert type(model[1]) is isonorm.IterNorm and model[1].act in ("relu", "silu")
        return
    assert isinstance(model[1], NormDropAct) and model[1].act is act
    assert [name for name, _ in model[1].named_children()] == ["norm", "drop", "act"]
    isonorm.load_checkpoint(model, saved)  # its keys are those of the whole layer
    torch.testing.assert_close(model(images), expected)
    assert copy.deepcopy(model)[1].norm is not model[1].norm


def test_a_drop_inside_is_not_fused_away(images):
    model = nn.Sequential(BatchNormAct2d(3, nn.ReLU(), nn.Dropout(0.5)))
    isonorm.convert(model, "iternorm", fuse_act=True)
    assert isinstance(model[0], NormDropAct) and model[0].norm.act is None
    assert (model.train()(images) == 0).float().mean() > 0.6


def test_an_activation_that_alone_follows_is_fused(network, images):
    model = network()
    expected = model(images)
    report = isonorm.convert(model, IterNorm4, fuse_act=True)
    assert [model[1].act, model[4].act] == ["relu", "relu"]
    assert type(model[2]) is type(model[5]) is nn.Identity
    assert "IterNorm(20, relu)" in str(report)
    torch.testing.assert_close(model(images), expected)
    isonorm.revert(model)
    assert not any(isinstance(m, isonorm.Normalize) for m in model.modules())
    torch.testing.assert_close(model(images), expected)


def test_what_is_not_fused_says_why(images):
    model = Residual().eval()
    expected = model(images)
    report = isonorm.convert(model, IterNorm4, fuse_act=True)
    notes = [change.note for change in report.changed]
    assert "'relu' is used elsewhere" in notes[0]
    assert "followed by <add>" in notes[1] and "followed by <add>" in notes[2]
    assert type(model.relu) is nn.ReLU
    torch.testing.assert_close(model(images), expected)


class Reused(nn.Module):
    """A norm and its ReLU, used twice, always together."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.act, self.conv = nn.BatchNorm2d(3), nn.SiLU(), nn.Conv2d(3, 3, 1)

    def forward(self, x):
        return self.act(self.norm(self.conv(self.act(self.norm(x)))))


class TwoConsumers(Reused):
    def forward(self, x):
        y = self.norm(x)
        return self.act(y) + y


class Branching(Reused):
    def forward(self, x):
        return self.act(self.norm(x)) if x.sum() > 0 else self.norm(x)


@pytest.mark.parametrize(
    ("kind", "fused", "words"),
    [
        (Reused, True, ""),
        (TwoConsumers, False, "act and <add>"),
        (Branching, False, "cannot be followed"),
    ],
)
def test_fusing_where_modules_are_reused(images, kind, fused, words):
    model = kind().eval()
    expected = model(images)
    (change,) = isonorm.convert(model, "iternorm", fuse_act=True).changed
    assert (model.norm.act == "silu") == fused and words in change.note
    torch.testing.assert_close(model(images), expected)


class Auxiliary(Reused):
    """Another output in training, of what the activation reads."""

    def forward(self, x):
        y = self.norm(x)
        return (self.act(y), self.conv(y)) if self.training else self.act(y)


class InTraining(Reused):
    """Called in training alone."""

    def forward(self, x):
        return self.act(self.norm(x)) if self.training else x


@pytest.mark.parametrize("training", [False, True])
def test_fusing_minds_training_and_eval(images, training):
    model = Auxiliary().train(training)
    (change,) = isonorm.convert(model, "iternorm", fuse_act=True).changed
    assert model.norm.act is None and "followed by" in change.note

    model = InTraining().train(training)
    isonorm.convert(model, "iternorm", fuse_act=True)
    assert model.norm.act == "silu" and model.training == training


def test_an_activation_that_is_also_kept_in_a_list_is_not_fused(images):
    model = nn.Sequential(nn.BatchNorm2d(3), nn.ReLU())
    model.activations = [model[1]]
    (change,) = isonorm.convert(model, "iternorm", fuse_act=True).changed
    assert model[0].act is None and "kept in a list" in change.note


@pytest.mark.parametrize("hooked", [0, 1])
def test_hooks_stand_in_the_way_of_fusing(hooked, images):
    model = nn.Sequential(nn.BatchNorm2d(3), nn.ReLU())
    model[hooked].register_forward_hook(lambda module, args, y: None)
    (change,) = isonorm.convert(model, "iternorm", fuse_act=True).changed
    assert model[0].act is None and "hooks" in change.note
