"""What else than a layer's own call reads its weight or a norm's state, or asks what it is."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations

import isonorm
from tests.surgery.blocks import BatchNormAct2d, Branching
from tests.surgery.folding.nets import Net, conv, fate_of, norm

WRAPS = [parametrizations.weight_norm, parametrizations.spectral_norm]


@pytest.mark.parametrize("wrap", WRAPS)
@pytest.mark.parametrize(
    "read",
    [
        lambda m, y: F.conv2d(y, m.conv.weight),
        lambda m, y: y * m.conv.weight.mean(),
        lambda m, y: m.head(m.conv.weight).mean() + y,
    ],
    ids=["conv2d", "mean", "layer"],
)
def test_a_parametrized_weight_is_read_again(wrap, read, same, x):
    net = Net(lambda m, x: read(m, m.norm(m.conv(x))), conv=wrap(conv()), norm=norm(), head=conv())
    fate = fate_of(same(net.eval(), x), "norm")
    assert fate.became == "convolution" and "the weight of 'conv' is also used by" in fate.note


@pytest.mark.parametrize("wrap", WRAPS)
def test_the_shape_of_a_parametrized_weight_is_read_again(wrap, same, x):
    net = Net(
        lambda m, x: m.norm(m.conv(x)) * m.conv.weight.shape[0], conv=wrap(conv()), norm=norm()
    )
    assert fate_of(same(net.eval(), x), "norm").into == "conv"


@pytest.mark.parametrize("name", ["weight", "gamma", "running_v"])
def test_the_state_of_a_layer_in_equilibrium_is_read_again(name, same, x):
    net = Net(
        lambda m, x: m.norm(m.conv(x)) * getattr(m.conv, name).mean(),
        conv=isonorm.EquiConv2d(4, 4, 3), norm=norm(),
    )  # fmt: skip
    net(x)
    folded = same(net, x)
    assert type(folded.conv) is isonorm.EquiConv2d
    assert "also used by" in fate_of(folded, "conv").note


def test_a_layer_in_equilibrium_that_is_kept_in_a_list_is_left(same, x):
    net = Net(lambda m, x: m.norm(m.layers[0](x)), conv=isonorm.EquiConv2d(4, 4, 3), norm=norm())
    net.layers = [net.conv]
    net(x)
    folded = same(net, x)
    assert "kept in a list" in fate_of(folded, "conv").note


@pytest.mark.parametrize("wrap", WRAPS)
def test_a_weight_under_a_parametrization_has_no_other_owner(wrap, same, x):
    assert not fate_of(same(nn.Sequential(wrap(conv()), norm()).eval(), x), "1").note


def test_a_weight_that_a_parametrization_of_another_layer_holds(same, x):
    class Transposed(nn.Module):
        def __init__(self, of: nn.Module) -> None:
            super().__init__()
            self.of = of

        def forward(self, weight):
            return weight + self.of.weight.flip(0)

    first, second = conv(), conv()
    nn.utils.parametrize.register_parametrization(second, "weight", Transposed(first))
    fate = fate_of(same(nn.Sequential(first, norm(), nn.ReLU(), second), x), "1")
    assert fate.became == "convolution"


@pytest.mark.parametrize(
    "ask",
    [
        lambda m: m.norm.eps,
        lambda m: 2 if isinstance(m.norm, nn.BatchNorm2d) else 1,
        lambda m: 2 if type(m.norm).__name__ == "BatchNorm2d" else 1,
        lambda m: 2 if hasattr(m.norm, "running_var") else 1,
        lambda m: 2 if m.norm.affine else 1,
    ],
    ids=["eps", "isinstance", "name", "hasattr", "affine"],
)
def test_code_that_asks_what_a_norm_is(ask, same, x):
    net = Net(lambda m, x: m.norm(m.conv(x)) * ask(m), conv=conv(), norm=nn.BatchNorm2d(4))
    net.add_module("other", nn.Sequential(conv(), norm()))
    net.run = lambda m, x: m.norm(m.conv(m.other(x))) * ask(m)
    folded = same(net, x)
    note = fate_of(folded, "norm").note
    assert "the code around it" in note or "its statistics are also used" in note
    assert fate_of(folded, "other.1").became == "merged"


def test_keywords(same, x):
    net = Net(
        lambda m, x: m.head(input=m.norm(input=m.conv(input=x)).mean((2, 3))),
        conv=conv(), norm=norm(), head=nn.Linear(4, 3),
    )  # fmt: skip
    assert fate_of(same(net, x), "norm").into == "conv"
    net = Net(lambda m, x: m.norm(x=m.conv(x)), conv=conv(), norm=BatchNormAct2d(4, nn.ReLU()))
    fate = fate_of(same(net, x), "norm")
    assert fate.became == "left" and "argument" in fate.note


def test_a_layer_that_what_cannot_be_followed_holds(same, x):
    """It calls a convolution that is in a list of its own."""
    net = Net(
        lambda m, x: m.inside(m.norm(m.conv(x))), conv=conv(), norm=norm(), inside=Branching()
    )
    net.inside.layers = [net.conv]
    assert "inside" in fate_of(same(net, x), "norm").note


def _mean_weight(norm):
    return norm.weight.mean()


@pytest.mark.parametrize(
    "read",
    [
        lambda self: self[1].weight.mean(),
        lambda self: getattr(self[1], "running_mean").mean(),  # noqa: B009
        lambda self: sum(p.mean() for p in self.parameters()),
        lambda self: _mean_weight(self[1]),
        lambda self: self.read(),
        lambda self: self.weights,
    ],
    ids=["attribute", "string", "parameters", "function", "method", "property"],
)
@pytest.mark.parametrize("whole", [True, False])
def test_what_cannot_be_followed_reads_a_norm(read, whole, same, x):
    class Base(Branching):
        def read(self):
            return self[1].weight.mean()

        @property
        def weights(self):
            return self.read()

    class Reading(Base):
        def forward(self, x):
            return super().forward(x) + read(self)

    model = Reading(conv(), norm())
    folded = same(model if whole else nn.Sequential(model), x)
    (fate,) = folded.fold_report
    assert fate.became == "left" and "code that cannot be followed reads" in fate.note


@pytest.mark.parametrize("whole", [True, False])
def test_what_cannot_be_followed_reads_a_layer_in_equilibrium(whole, same, x):
    class Reading(Branching):
        def forward(self, x):
            return super().forward(x) * self[0].weight.mean()

    model = Reading(isonorm.EquiConv2d(4, 4, 3))
    model(x)
    (fate,) = same(model if whole else nn.Sequential(model), x).fold_report
    assert fate.became == "left" and "'weight'" in fate.note


def test_a_failure_inside_is_no_failure_outside(same, x):
    model = nn.Sequential(nn.Sequential(conv(), norm(), nn.ReLU(), nn.Sequential(Branching())))
    assert same(model, x).fold_report.which("merged") == ["0.1"]


def test_torchs_fused_modules_for_training_with_quantization(x):
    """They read the statistics of the norm inside."""
    fused = torch.ao.nn.intrinsic.qat.ConvBn2d(
        4, 4, 3, qconfig=torch.ao.quantization.get_default_qat_qconfig("fbgemm")
    )
    model = nn.Sequential(fused, nn.ReLU())
    model(x)
    model.eval()
    folded = isonorm.fold(model)
    assert "used by" in fate_of(folded, "0.bn").note
    torch.testing.assert_close(folded(x), model(x))
    (left,) = isonorm.convert(model, "iternorm").left
    assert left.name == "0.bn" and "used by" in left.reason
    torch.testing.assert_close(folded(x), model(x))


class Caching(nn.Module):
    """As in LeViT: what was computed with gradients is kept."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.cache = conv(), norm(), {}

    def forward(self, x):
        bias = self.conv.bias * 2
        self.cache["cpu"] = [bias]
        return self.norm(self.conv(x)) + bias.view(-1, 1, 1)


def test_tensors_of_a_graph_in_a_dictionary_are_copied(x):
    model = Caching().eval()
    expected = model(x)
    folded = isonorm.fold(model)
    torch.testing.assert_close(folded(x), expected, rtol=1e-4, atol=1e-5)
    cached = model.cache["cpu"][0]
    assert cached.requires_grad
    fresh = isonorm.fold(model).cache["cpu"][0]
    assert fresh.data_ptr() != cached.data_ptr() and torch.equal(fresh, cached)


def test_what_cannot_be_copied_is_said():
    model = nn.Sequential(conv(), norm())
    model.generator = (i for i in range(3))
    with pytest.raises(TypeError, match=r"cannot be copied, and fold needs a copy: TypeError"):
        isonorm.fold(model)
    with pytest.raises(ValueError, match=r"'0\.weight' has no shape yet: pass a batch"):
        isonorm.fold(nn.Sequential(nn.LazyConv2d(3, 3), nn.LazyBatchNorm2d()))


def test_folding_in_inference_mode_gives_a_model_that_learns(x):
    with torch.inference_mode():
        folded = isonorm.fold(nn.Sequential(conv(), norm(), nn.ReLU()).train())
    folded(x).square().sum().backward()
    assert folded[0].weight.grad.abs().sum() > 0
