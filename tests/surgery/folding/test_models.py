"""Whole models: wrapped, copied, of other formats and devices, and those that are refused."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

import isonorm
from isonorm.layers.fixed import FixedMap
from tests.surgery.folding.nets import conv, fate_of, norm


def test_of_an_averaged_model_the_model_is_folded(x):
    model = nn.Sequential(conv(), norm()).eval()
    folded = isonorm.fold(AveragedModel(model))
    assert folded.fold_report.which("merged") == ["1"]
    torch.testing.assert_close(folded(x), model(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("make", [norm, lambda: nn.BatchNorm2d(4)], ids=["iternorm", "torch"])
def test_a_norm_alone_becomes_its_map(make, same, x):
    folded = same(make(), x)
    assert isinstance(folded, FixedMap)
    assert str(folded.fold_report).endswith("it is the whole model")


def test_a_channels_last_half_precision_model_keeps_its_format():
    model = nn.Sequential(conv(), norm(), nn.ReLU(), norm()).to(torch.bfloat16).eval()
    folded = isonorm.fold(model)
    assert {p.dtype for p in folded.parameters()} == {torch.bfloat16}
    x = torch.randn(2, 4, 5, 5, dtype=torch.bfloat16).to(memory_format=torch.channels_last)
    y = folded(x)
    assert y.dtype == torch.bfloat16 and y.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(y, model(x), rtol=0.05, atol=0.05)


def test_the_copy_is_copied_pickled_and_folded_again(x):
    model = nn.Sequential(conv(), norm(act="relu"), norm(), nn.ReLU()).eval()
    folded = isonorm.fold(model)
    for again in (copy.deepcopy(folded), isonorm.fold(folded), pickle.loads(pickle.dumps(folded))):
        assert torch.equal(again(x), folded(x))
    assert isonorm.fold(folded).fold_report == ()


def test_folding_on_the_meta_device():
    with torch.device("meta"):
        folded = isonorm.fold(nn.Sequential(conv(), norm()))
    assert folded[0].weight.is_meta and folded.fold_report.which("merged") == ["1"]


@pytest.mark.slow
def test_of_a_compiled_model_the_original_is_folded():
    model = nn.Sequential(conv(), norm())
    assert type(isonorm.fold(torch.compile(model))) is nn.Sequential


def test_of_a_model_wrapped_for_many_devices_the_model_is_folded():
    model = nn.Sequential(conv(), norm())
    folded = isonorm.fold(nn.DataParallel(model))
    assert type(folded) is nn.Sequential and folded.fold_report.which("merged") == ["1"]
    distributed = object.__new__(nn.parallel.DistributedDataParallel)
    nn.Module.__init__(distributed)
    distributed.module = model
    assert isonorm.fold(distributed).fold_report.which("merged") == ["1"]


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_model_that_holds_tensors_of_a_graph_is_copied(x):
    """Weights that a hook computes, and an activation that somebody looks at."""
    model = nn.Sequential(nn.utils.weight_norm(conv()), norm(), conv(), norm())
    model.seen = model(x)
    folded = isonorm.fold(model.eval())
    torch.testing.assert_close(folded(x), model(x))
    assert "'0' has hooks" in fate_of(folded, "1").note
    assert folded.fold_report.which("merged") == ["3"]
    assert model.seen.requires_grad and not folded.seen.requires_grad


class Group:
    """Like a process group, it cannot be copied."""

    def __deepcopy__(self, memo):
        raise TypeError("cannot pickle 'ProcessGroup' object")


def test_process_groups_are_not_copied():
    model = nn.Sequential(conv(), nn.SyncBatchNorm(4), nn.ReLU())
    model[1].process_group = Group()
    assert isonorm.fold(model).fold_report.which("merged") == ["1"]


def test_only_modules_are_folded():
    with pytest.raises(TypeError, match=r"expected a torch\.nn\.Module; got function"):
        isonorm.fold(lambda x: x)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_a_scripted_model_is_refused():
    model = nn.Sequential(conv(), nn.BatchNorm2d(4))
    with pytest.raises(TypeError, match=r"made from, then trace that with torch\.jit\.trace"):
        isonorm.fold(torch.jit.script(model))
