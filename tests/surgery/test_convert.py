"""What ``convert`` changes and carries over, and what its report says."""

from __future__ import annotations

import copy
import pickle
from functools import partial

import pytest
import torch
from torch import nn

import isonorm

IterNorm4 = partial(isonorm.IterNorm, group_size=4)


@pytest.mark.parametrize(
    ("dims", "shape"), [(1, (7, 8)), (1, (7, 8, 5)), (2, (7, 8, 3, 4)), (3, (7, 8, 2, 3, 2))]
)
def test_batchnorm_of_any_dimension_goes_and_comes_back(dims, shape):
    kind = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)[dims - 1]
    model = nn.Sequential(kind(8))
    x = torch.randn(shape)
    model(x)
    expected = model.eval()(x)
    isonorm.convert(model, IterNorm4)
    assert type(model[0]) is isonorm.IterNorm
    torch.testing.assert_close(model(x), expected)
    isonorm.revert(model)
    assert type(model[0]) is kind
    torch.testing.assert_close(model(x), expected)


@pytest.mark.parametrize("to", isonorm.list_norms())
def test_every_name_of_the_registry_is_a_target(network, images, to):
    if "group" in to:
        to = partial(isonorm.create_norm, to, num_groups=5)
    model = network()
    assert len(isonorm.convert(model, to).changed) == 2
    model.train()
    y = model(images)
    y.backward(torch.randn_like(y))
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    assert model.eval()(images).isfinite().all()


@pytest.mark.parametrize(
    "source",
    [
        pytest.param(lambda c: nn.GroupNorm(2, c), id="group"),
        pytest.param(lambda c: nn.InstanceNorm2d(c, affine=True), id="instance"),
        pytest.param(nn.InstanceNorm2d, id="instance-bare"),
        pytest.param(isonorm.LayerNorm, id="own-layer"),
        pytest.param(IterNorm4, id="own-iternorm"),
    ],
)
def test_other_norms_are_converted_too(network, images, source):
    model = network(source)
    isonorm.convert(model, isonorm.DBN)
    assert type(model[1]) is isonorm.DBN
    y = model.train()(images)
    y.backward(torch.randn_like(y))
    assert y.isfinite().all()


def test_options_modes_and_parameters_carry_over(network):
    model = network(partial(nn.BatchNorm2d, eps=1e-3, momentum=0.3))
    model[1].train()
    model[4].weight.requires_grad_(False)
    kept = list(model.parameters())
    isonorm.convert(model, IterNorm4)
    first, second = model[1], model[4]
    assert (first.eps, first.momentum, first.training) == (1e-3, 0.3, True)
    assert not second.training and not second.weight.requires_grad and second.bias.requires_grad
    assert all(a is b for a, b in zip(kept, model.parameters(), strict=True))


def test_an_optimizer_made_before_goes_on(network, images):
    model = network().train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    isonorm.convert(model, IterNorm4)
    before = model[1].weight.detach().clone()
    y = model(images)
    y.backward(torch.randn_like(y))
    optimizer.step()
    assert not torch.equal(before, model[1].weight)


def test_options_of_a_factory_that_are_overridden_are_told(network):
    model = network()
    report = isonorm.convert(model, partial(isonorm.IterNorm, eps=0.5, momentum=0.3))
    assert model[1].eps == 1e-5 and model[1].momentum == 0.1
    assert "eps=0.5 became 1e-05" in report.changed[0].note
    assert "momentum=0.3 became 0.1" in str(report)


def test_hooks_carry_over_and_their_handles_work(network, images):
    model, seen = network(), []
    handles = [
        model[1].register_forward_hook(lambda module, args, y: seen.append(type(module).__name__)),
        model[1].register_forward_pre_hook(lambda module, args: seen.append("before")),
        model[1].register_full_backward_hook(lambda module, gx, gy: seen.append("backward")),
    ]
    isonorm.convert(model, IterNorm4)
    y = model(images)
    y.backward(torch.randn_like(y))
    assert seen == ["before", "IterNorm", "backward"]
    for handle in handles:
        handle.remove()
    model(images)
    assert len(seen) == 3


def test_a_shared_norm_stays_shared(lived_in, images):
    norm = nn.BatchNorm2d(8)
    model = lived_in(
        nn.Sequential(nn.Conv2d(3, 8, 1), norm, nn.ReLU(), nn.Conv2d(8, 8, 1), norm, nn.ReLU())
    )
    expected = model(images)
    report = isonorm.convert(model, IterNorm4)
    assert [change.name for change in report.changed] == ["1 = 4"]
    assert model[1] is model[4] and type(model[1]) is isonorm.IterNorm
    torch.testing.assert_close(model(images), expected)


def test_sync_batchnorm_keeps_its_group():
    model = nn.Sequential(nn.SyncBatchNorm(8))
    isonorm.convert(model, IterNorm4)
    assert model[0].process_group == "world"
    isonorm.revert(model)
    assert type(model[0]) is nn.SyncBatchNorm


def test_converting_twice_changes_nothing_the_second_time(network):
    model = network()
    isonorm.convert(model, "iternorm")
    layer, report = model[1], isonorm.convert(model, "iternorm")
    assert model[1] is layer and not report.changed
    assert {row.reason for row in report.left} == {"it is already that"}


def test_copies_and_pickles_of_a_converted_model_revert_too(network, images):
    model = network()
    isonorm.convert(model, IterNorm4)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        torch.testing.assert_close(other(images), model(images))
        isonorm.revert(other)
        assert type(other[1]) is nn.BatchNorm2d


def test_torchs_layers_and_others_are_targets_too(network, images):
    model = network(lambda c: nn.GroupNorm(2, c))
    isonorm.convert(model, lambda c: nn.GroupNorm(5, c), where="1")
    assert model[1].num_groups == 5 and model(images).isfinite().all()
    assert not isonorm.convert(model, lambda c: nn.GroupNorm(5, c), where="1").changed
    (change,) = isonorm.convert(model, lambda c: nn.Identity(), where="4").changed
    assert type(model[4]) is nn.Identity and change.deviation is None


def test_losing_synchronization_is_told():
    model = nn.Sequential(nn.SyncBatchNorm(4))
    (change,) = isonorm.convert(model, nn.BatchNorm1d).changed
    assert change.same and "no longer synchronized" in change.note


def test_a_synchronized_layer_goes_back_to_a_synchronized_one():
    model = nn.Sequential(nn.BatchNorm1d(4))
    isonorm.convert(model, "iternorm")
    isonorm.convert_sync(model)
    isonorm.revert(model)
    assert type(model[0]) is nn.SyncBatchNorm


@pytest.mark.parametrize(
    "source", [nn.InstanceNorm2d, partial(nn.BatchNorm2d, affine=False, track_running_stats=False)]
)
def test_a_source_without_tensors_gets_the_place_of_its_surroundings(source):
    for place in ({"dtype": torch.float64}, {"device": "meta"}):
        model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Sequential(source(8))).to(**place)
        isonorm.convert(model, "iternorm")
        weight = model[1][0].weight
        assert (weight.dtype, weight.device) == (model[0].weight.dtype, model[0].weight.device)


def test_a_model_on_the_meta_device_stays_there():
    model = nn.Sequential(nn.BatchNorm2d(70, device="meta"))
    weight = model[0].weight
    (change,) = isonorm.convert(model, "iternorm").changed
    assert model[0].weight is weight
    assert model[0].weight.is_meta and model[0].running_cov.is_meta and "meta" in change.note


def test_a_coloring_of_other_groups_is_a_new_parameter():
    def colored(size):
        return isonorm.Normalize(
            8, area=isonorm.area.batch(size), operation="whiten", recovery="coloring"
        )

    model = nn.Sequential(colored(4)).eval()
    with torch.no_grad():
        model[0].color += 0.1 * torch.randn(2, 4, 4)
    isonorm.convert(model, lambda c: colored(2))
    assert model[0].color.shape == (4, 2, 2) and model[0].color.requires_grad
    assert model(torch.randn(5, 8)).isfinite().all()


def test_the_report_reads_well():
    model = nn.Sequential(nn.BatchNorm2d(8), nn.LayerNorm(8), nn.BatchNorm2d(128))
    report = isonorm.convert(model, "iternorm")
    assert str(report).splitlines() == [
        "2 norms changed, 1 left.",
        "  0  BatchNorm2d(8)    →  IterNorm(8)    same in eval",
        "  2  BatchNorm2d(128)  →  IterNorm(128)  same in eval",
        "Left as they were:",
        "  1  LayerNorm(8)  its channels are last, not in dimension 1",
    ]
    assert repr(report) == "<Conversion: 2 changed, 1 left>"


def test_the_report_of_a_model_without_norms_says_so():
    assert (
        str(isonorm.convert(nn.Sequential(nn.ReLU()), "iternorm")) == "no norms changed, none left."
    )


@pytest.mark.parametrize("make", [nn.BatchNorm2d, isonorm.BatchNorm], ids=["torch's", "isonorm's"])
def test_statistics_that_are_switched_off_stay_so(make):
    model = nn.Sequential(make(8))
    model[0].track_running_stats = False
    isonorm.convert(model, "iternorm")
    model(torch.randn(4, 8, 3, 3) + 5)
    assert not model[0].track_running_stats and not model[0].running_mean.any()
