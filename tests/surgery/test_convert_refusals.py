"""What ``convert`` leaves or refuses, and that it changes all or nothing."""

from __future__ import annotations

import copy
from functools import partial

import pytest
import torch
from torch import nn

import isonorm
from tests.surgery.blocks import Residual


class Peculiar(nn.BatchNorm2d):
    def forward(self, x):
        return super().forward(x).exp()


def parametrized(norm: nn.Module) -> nn.Module:
    return nn.utils.parametrize.register_parametrization(norm, "weight", nn.Softplus(), unsafe=True)


def half(name: str) -> nn.Module:
    norm = nn.BatchNorm2d(4)
    setattr(norm, name, None)
    return norm


@pytest.mark.parametrize(
    ("norm", "reason"),
    [
        (nn.LayerNorm(4), "channels are last"),
        (nn.LazyBatchNorm2d(), "lazy"),
        (nn.LocalResponseNorm(2), "not a norm that can be read"),
        (Peculiar(4), "forward of its own"),
        (parametrized(nn.GroupNorm(1, 4)), "parametrized"),
        (half("running_mean"), "only one of running_mean and running_var"),
        (half("running_var"), "only one of running_mean and running_var"),
    ],
    ids=["layer", "lazy", "response", "peculiar", "parametrized", "no-mean", "no-variance"],
)
def test_what_is_refused_is_reported(norm, reason):
    model = nn.Sequential(norm, nn.BatchNorm2d(4))
    report = isonorm.convert(model, "iternorm")
    (left,) = report.left
    assert left.name == "0" and reason in left.reason and reason in str(report)
    assert model[0] is norm and type(model[1]) is isonorm.IterNorm


def test_tied_parameters_are_not_torn_apart():
    a, b = nn.BatchNorm1d(4), nn.BatchNorm1d(4)
    b.weight = a.weight
    model = nn.Sequential(a, b)
    report = isonorm.convert(model, "iternorm")
    assert not report.changed and all("shared" in row.reason for row in report.left)


@pytest.mark.parametrize("to", ["iternorm", "equinorm"])
def test_a_norm_that_is_also_kept_in_a_list_is_left(to, images):
    """The list would go on with the old one."""
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))
    model.layers = [model[1]]
    norm = model[1]
    report = isonorm.convert(model, to)
    assert "kept in a list" in report.left[0].reason and model[1] is norm


def test_statistics_that_are_not_finite_do_not_reach_gamma():
    model = nn.Sequential(nn.BatchNorm1d(4))
    model[0].running_var[1] = float("nan")
    report = isonorm.convert(model, "iternorm")
    assert "not finite" in report.left[0].reason and torch.equal(model[0].weight, torch.ones(4))


def test_what_cannot_be_synchronized_is_left():
    model = nn.Sequential(nn.SyncBatchNorm(4))
    p1 = partial(isonorm.Normalize, operation=isonorm.operation.standardize(p=1))
    assert "synchronized" in isonorm.convert(model, p1).left[0].reason


def test_the_model_itself_cannot_be_replaced():
    with pytest.raises(ValueError, match=r"itself a norm, BatchNorm2d\(3\).*Sequential"):
        isonorm.convert(nn.BatchNorm2d(3), "iternorm")


EIGHT = isonorm.IterNorm(8)


@pytest.mark.parametrize(
    ("to", "error", "words"),
    [
        ("iternrm", ValueError, "did you mean 'iternorm'"),
        (isonorm.IterNorm(4), TypeError, "a layer of its own"),
        (3, TypeError, "a name, a class or a factory"),
        (lambda c: None, TypeError, "must return a torch.nn.Module"),
        (lambda c: isonorm.GroupNorm(c, num_groups=3), ValueError, "cannot replace 'bn1'.*divide"),
        (lambda c: isonorm.IterNorm(c + 1), ValueError, "cannot replace 'bn1'.*made for 9.*has 8"),
        (lambda c: nn.GroupNorm(1, c + 1), ValueError, "cannot replace 'bn1'.*made for 9.*has 8"),
        (nn.LayerNorm, TypeError, "cannot replace 'bn1'.*are last.*isonorm.LayerNorm"),
        (lambda c: EIGHT, ValueError, "the same layer twice"),
    ],
)
def test_what_is_no_target_is_refused_before_anything_changes(to, error, words):
    model = Residual()
    with pytest.raises(error, match=words):
        isonorm.convert(model, to)
    assert type(model.bn1) is nn.BatchNorm2d


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_wrapped_and_scripted_models_are_refused(monkeypatch):
    with pytest.raises(TypeError, match=r"made from, then trace that with torch\.jit\.trace"):
        isonorm.convert(torch.jit.script(nn.Sequential(nn.BatchNorm2d(3))), "iternorm")
    monkeypatch.setattr(nn.parallel, "DistributedDataParallel", Residual)
    with pytest.raises(TypeError, match="change the model first, then wrap it"):
        isonorm.convert(nn.Sequential(Residual()), "iternorm")


def test_an_error_leaves_the_model_as_it_was(images):
    model = Residual().eval()
    nn.init.normal_(model.bn1.weight)
    expected = model(images)
    before = copy.deepcopy(model.state_dict())
    calls = []

    def fails_at_last(channels):
        calls.append(channels)
        if len(calls) == 3:
            raise RuntimeError("no more")
        return isonorm.IterNorm(channels)

    with pytest.raises(RuntimeError, match="no more"):
        isonorm.convert(model, fails_at_last)
    assert all(torch.equal(a, b) for a, b in zip(before.values(), model.state_dict().values(),
                                                 strict=True))  # fmt: skip
    assert torch.equal(model(images), expected)


def test_an_error_while_changing_is_undone(images):
    """The last parent does not take the new module; parameters were written to before."""
    model = Residual().eval()
    for norm in (model.bn1, model.bn2):
        nn.init.normal_(norm.weight)
        norm.running_var.uniform_(0.5, 3)
    expected = model(images)

    class Stubborn(dict):
        def __setitem__(self, key, value):
            if isinstance(value, isonorm.IterNorm):
                raise RuntimeError("stubborn")
            super().__setitem__(key, value)

    model.shortcut._modules = Stubborn(model.shortcut._modules)
    with pytest.raises(RuntimeError, match="stubborn"):
        isonorm.convert(model, "iternorm")
    assert type(model.bn1) is nn.BatchNorm2d and torch.equal(model(images), expected)
