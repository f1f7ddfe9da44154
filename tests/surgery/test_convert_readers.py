"""Code around a norm that reads what it holds, asks what it is, or names its arguments."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import isonorm
from tests.surgery.blocks import Branching
from tests.surgery.folding.nets import Net


def functional(m, x):
    norm = m.norm
    return F.batch_norm(m.conv(x), norm.running_mean, norm.running_var, norm.weight, norm.bias)


def shifted_if_affine(m, x):
    y = m.norm(m.conv(x))
    return y if m.norm.weight is None else y + m.norm.weight.mean()


def trained_otherwise(m, x):
    y = m.norm(m.conv(x))
    return y * m.norm.running_var.mean() if m.training else y


READERS = {
    "functional": functional,
    "none": shifted_if_affine,
    "training": trained_otherwise,
    "weight": lambda m, x: m.norm(m.conv(x)) * m.norm.weight.sum(),
    "variance": lambda m, x: m.norm(m.conv(x)) * float(m.norm.running_var.sum()),
    "values": lambda m, x: m.norm(m.conv(x)) * sum(p.sum() for p in m.norm.parameters()),
    "class": lambda m, x: m.norm(m.conv(x)) * (2 if type(m.norm) is nn.BatchNorm2d else 1),
    "attribute": lambda m, x: m.norm(m.conv(x)) * (2 if m.norm.affine else 1),
    "keyword": lambda m, x: m.norm(features=m.conv(x)),
}


class Named(nn.BatchNorm2d):
    def forward(self, features):
        return super().forward(features)


def build(reader: str, lived_in) -> nn.Module:
    norm = Named(8) if reader == "keyword" else nn.BatchNorm2d(8, affine=reader != "none")
    net = Net(READERS[reader], conv=nn.Conv2d(3, 8, 3), norm=norm, free=nn.BatchNorm2d(3))
    net.run = lambda m, x: READERS[reader](m, m.free(x))
    return lived_in(net.double())


@pytest.mark.parametrize("to", ["iternorm", "equinorm", "batchnorm"])
@pytest.mark.parametrize("reader", READERS)
def test_a_norm_that_other_code_reads_is_left(reader, to, lived_in, images):
    """Or, where another layer would read the same, the model still computes what it did."""
    model = build(reader, lived_in)
    images, before = images.double(), copy.deepcopy(model)
    report = isonorm.convert(model, to, where="norm")
    if not report.changed:
        (left,) = [row for row in report.left if row.name == "norm"]
        assert model.norm.__class__ is before.norm.__class__ and left.reason
        for key, value in before.state_dict().items():
            assert torch.equal(model.state_dict()[key], value)
    else:
        assert to != "equinorm"
    with torch.no_grad():
        torch.testing.assert_close(model(images), before(images), rtol=1e-9, atol=1e-9)
    assert model.train()(images).isfinite().all()


def test_the_reason_names_the_reader(lived_in):
    def reason(reader):
        return isonorm.convert(build(reader, lived_in), "iternorm", where="norm").left[0].reason

    assert reason("functional") == "its weight is also used by <batch_norm>"
    assert reason("variance") == "its running_var is also used by <forward of the model>"
    assert reason("weight") == "its weight is also used by <sum>"
    assert "the code around it is made for it: it runs something else" in reason("none")


def test_the_others_are_converted(lived_in):
    report = isonorm.convert(build("functional", lived_in), "iternorm")
    assert [row.name for row in report.changed] == ["free"] and not report.unknown


class Unused(nn.Module):
    """Reads shapes and dtypes alone, and numbers that carry over."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)

    def forward(self, x):
        y = self.norm(self.conv(x.to(self.norm.weight.dtype)))
        return y * self.norm.num_features / self.norm.weight.shape[0] + self.norm.eps


def test_what_carries_over_may_be_read(lived_in, images, relative_error):
    model = lived_in(Unused().double())
    expected = model(images.double())
    assert isonorm.convert(model, "iternorm").changed
    assert relative_error(model(images.double()), expected) < 1e-9


def test_statistics_that_synchronization_keeps_may_be_read(lived_in, images):
    model = build("functional", lived_in)
    assert not [row for row in isonorm.convert_sync(model).left if row.name == "norm"]


def test_where_a_model_cannot_be_followed_the_report_says_so():
    model = nn.Sequential(Branching(nn.BatchNorm2d(3)), nn.BatchNorm2d(3))
    report = isonorm.convert(model, "iternorm")
    assert len(report.changed) == 2 and list(report.unknown) == ["0.0"]
    assert str(report).splitlines()[-2:] == [
        "Not known: whether other code reads what these norms hold.",
        f"  0.0  {report.unknown['0.0']}",
    ]
    assert "it lies inside '0': TraceError" in report.unknown["0.0"]
    whole = isonorm.convert(Branching(nn.BatchNorm2d(3), nn.BatchNorm2d(3)), "iternorm")
    assert "Branching.forward cannot be followed" in whole.unknown["1"]
    assert str(whole).count("cannot be followed") == 1


@pytest.mark.parametrize("wrap", [nn.DataParallel, torch.optim.swa_utils.AveragedModel])
def test_the_model_inside_a_wrapper_is_followed(wrap, lived_in):
    report = isonorm.convert(wrap(build("functional", lived_in)), "iternorm")
    assert [row.name for row in report.left] == ["module.norm"] and not report.unknown


def test_code_before_a_failure_is_read():
    class Reading(Branching):
        def forward(self, x):
            return super().forward(x * self[0].weight.mean() + self[0].running_var.mean())

    for model in (nn.Sequential(Reading(nn.BatchNorm2d(3))), Reading(nn.BatchNorm2d(3))):
        report = isonorm.convert(model, "iternorm")
        assert "used by" in report.left[0].reason


def test_code_before_a_failure_asks_for_a_class():
    class Asking(Branching):
        def forward(self, x):
            if not isinstance(self[0], nn.BatchNorm2d):
                raise TypeError("I know no other norm")
            return super().forward(x)

    for model in (nn.Sequential(Asking(nn.BatchNorm2d(3))), Asking(nn.BatchNorm2d(3))):
        report = isonorm.convert(model, "iternorm")
        assert "I know no other norm" in report.left[0].reason


def by_keyword(m, x):
    y = m.relu(input=m.norm(input=m.conv(input=x)))
    return m.head(input=y.mean((2, 3)))


@pytest.mark.parametrize(
    "to", ["iternorm", "dbn", "batchnorm", "layernorm", "instancenorm", "equinorm"]
)
def test_keywords(to, lived_in, images):
    """Converted, trained and folded."""
    net = Net(
        by_keyword,
        conv=nn.Conv2d(3, 8, 3), norm=nn.BatchNorm2d(8), relu=nn.ReLU(), head=nn.Linear(8, 2),
    )  # fmt: skip
    model = lived_in(net.double())
    expected = model(images.double())
    report = isonorm.convert(model, to)
    assert report.changed
    if report.changed[0].same:
        torch.testing.assert_close(model(images.double()), expected)
    model.train()(images.double()).square().sum().backward()
    assert all(p.grad is not None for p in model.parameters())
    folded = isonorm.fold(model.eval())
    torch.testing.assert_close(folded(images.double()), model(images.double()))
    if to != "equinorm":
        isonorm.revert(model)
        assert model(images.double()).isfinite().all()


def test_activations_that_are_asked_for_more(lived_in, images):
    net = Net(lambda m, x: m.act(m.norm(x)) * (2 if m.act.inplace else 1),
              norm=nn.BatchNorm2d(3), act=nn.ReLU())  # fmt: skip
    model = lived_in(net)
    expected = model(images)
    with pytest.raises(ValueError, match=r"more of an activation.*leave fuse_act out"):
        isonorm.convert(model, "iternorm", fuse_act=True)
    assert type(model.norm) is nn.BatchNorm2d and torch.equal(model(images), expected)


def test_a_parametrized_layer_of_this_package_is_left():
    layer = isonorm.IterNorm(4)
    nn.utils.parametrize.register_parametrization(layer, "weight", nn.Softplus())
    report = isonorm.convert(nn.Sequential(layer), "dbn")
    assert "parametrized" in report.left[0].reason


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_scripted_parts_are_left(images):
    scripted = torch.jit.script(nn.Sequential(nn.Conv2d(8, 4, 1), nn.BatchNorm2d(4)))
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), scripted).eval()
    expected = model(images)
    for to in ("iternorm", "equinorm"):
        report = isonorm.convert(copy.deepcopy(model), to)
        assert len(report.changed) == 1 and "2.1  BatchNorm2d(4)" in str(report)
        assert "scripted" in report.left[0].reason or to == "equinorm"
    isonorm.convert(model, "iternorm")
    torch.testing.assert_close(model(images), expected, rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="inside a scripted module"):
        isonorm.insert(model, "2.0", "dbn")


@pytest.mark.parametrize("to", ["iternorm", "equinorm"])
def test_torchs_default_device_does_not_matter(to, network, images):
    model = network()
    with torch.device("meta"):
        report = isonorm.convert(model, to)
        isonorm.insert(model, "8", "dbn")
    assert report.changed and not any(t.is_meta for t in model.state_dict().values())
    assert model(images).isfinite().all()


@pytest.mark.parametrize("to", ["iternorm", "equinorm"])
def test_in_inference_mode_the_new_layers_learn(to, network, images):
    model = network()
    with torch.inference_mode():
        isonorm.convert(model, to)
        isonorm.insert(model, "8", "dbn")
    model.train()(images).square().sum().backward()
    assert all(p.grad is not None for p in model.parameters())


def test_a_model_of_inference_tensors_is_refused(images):
    with torch.inference_mode():
        model = nn.Sequential(nn.BatchNorm2d(3))
    with pytest.raises(ValueError, match=r"'0\.weight' is an inference tensor.*outside"):
        isonorm.convert(model, "iternorm")


def test_a_forward_that_is_another_every_time(images):
    random = np.random.default_rng(0)
    net = Net(lambda m, x: m.norm(x) * random.random(), norm=nn.BatchNorm2d(3))
    report = isonorm.convert(net, "iternorm")
    assert report.changed and "something else every time" in report.unknown["norm"]
    assert "something else every time" in str(isonorm.fold(net).fold_report)


def test_generators_are_left_alone():
    class Noisy(nn.BatchNorm2d):
        pass

    net = Net(lambda m, x: m.norm(x) * torch.rand(3, 1, 1), norm=Noisy(3))
    state = torch.get_rng_state()
    assert isonorm.convert(net, "batchnorm").changed
    assert torch.equal(torch.get_rng_state(), state)
