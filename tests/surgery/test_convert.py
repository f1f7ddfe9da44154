"""What ``convert`` changes, leaves and refuses, and that it changes all or nothing."""

from __future__ import annotations

import copy
import pickle
from functools import partial

import pytest
import torch
from torch import nn

import isonorm
from tests.surgery.blocks import Residual

IterNorm4 = partial(isonorm.IterNorm, group_size=4)


class Peculiar(nn.BatchNorm2d):
    def forward(self, x):
        return super().forward(x).exp()


# --- what changes ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dims", "shape"), [(1, (7, 8)), (1, (7, 8, 5)), (2, (7, 8, 3, 4)), (3, (7, 8, 2, 3, 2))]
)
def test_batchnorm_of_any_dimension(dims, shape):
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
def test_other_sources(network, images, source):
    model = network(source)
    isonorm.convert(model, isonorm.DBN)
    assert type(model[1]) is isonorm.DBN
    y = model.train()(images)
    y.backward(torch.randn_like(y))
    assert y.isfinite().all()


def test_what_carries_over(network):
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


def test_copies_and_pickles_of_a_converted_model(network, images):
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


def test_on_the_meta_device():
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


# --- where ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("where", "names"),
    [
        ("all", ["bn1", "bn2", "shortcut.1"]),
        ("first", ["bn1"]),
        ("bn*", ["bn1", "bn2"]),
        ("*.1", ["shortcut.1"]),
        (lambda name, module: name != "bn1" and module.num_features == 8, ["bn2", "shortcut.1"]),
        (lambda name, module: False, []),
        (nn.BatchNorm2d, ["bn1", "bn2", "shortcut.1"]),
        (nn.GroupNorm, []),
        (["bn2", "*.1"], ["bn2", "shortcut.1"]),
        ((nn.GroupNorm, "bn1"), ["bn1"]),
    ],
)
def test_where(where, names):
    model = Residual()
    report = isonorm.convert(model, IterNorm4, where=where)
    assert [change.name for change in report.changed] == names
    assert len(report.changed) + len(report.left) == 3
    found = [n for n, m in model.named_modules() if isinstance(m, isonorm.IterNorm)]
    assert found == names


def test_first_passes_over_what_cannot_be_converted():
    model = nn.Sequential(nn.LayerNorm(3), nn.BatchNorm1d(3), nn.BatchNorm1d(3))
    report = isonorm.convert(model, "iternorm", where="first")
    assert [change.name for change in report.changed] == ["1"]


@pytest.mark.parametrize(
    ("where", "error", "words"),
    [
        ("layer.*", ValueError, r"matches where='layer\.\*'"),
        ("bn3", ValueError, "near it are 'bn2', 'bn1'"),
        ("shortcut", ValueError, r"near it are 'shortcut\.1'"),
        (3, TypeError, "'all', 'first'"),
    ],
)
def test_a_where_that_selects_nothing(where, error, words):
    with pytest.raises(error, match=words):
        isonorm.convert(Residual(), "iternorm", where=where)


# --- what is left ---------------------------------------------------------------------------------


def parametrized(norm: nn.Module) -> nn.Module:
    return nn.utils.parametrize.register_parametrization(norm, "weight", nn.Softplus(), unsafe=True)


@pytest.mark.parametrize(
    ("norm", "reason"),
    [
        (nn.LayerNorm(4), "channels are last"),
        (nn.LazyBatchNorm2d(), "lazy"),
        (nn.LocalResponseNorm(2), "not a norm that can be read"),
        (Peculiar(4), "forward of its own"),
        (parametrized(nn.GroupNorm(1, 4)), "parametrized"),
    ],
    ids=["layer", "lazy", "response", "peculiar", "parametrized"],
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
def test_bad_targets(to, error, words):
    model = Residual()
    with pytest.raises(error, match=words):
        isonorm.convert(model, to)
    assert type(model.bn1) is nn.BatchNorm2d


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_wrapped_and_scripted_models_are_refused(monkeypatch):
    with pytest.raises(TypeError, match="change it, then script it"):
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


# --- the report -----------------------------------------------------------------------------------


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


def test_a_model_without_norms():
    assert (
        str(isonorm.convert(nn.Sequential(nn.ReLU()), "iternorm")) == "no norms changed, none left."
    )
