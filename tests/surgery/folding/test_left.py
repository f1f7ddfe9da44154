"""Norms that cannot be merged or replaced, and the reason that is given."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import isonorm
from isonorm.layers.fixed import FixedMap
from tests.surgery.folding.nets import Net, conv, fate_of, norm


@pytest.mark.parametrize("make", [norm, lambda: nn.BatchNorm2d(4)], ids=["iternorm", "torch"])
class TestWhereANormCannotBeMerged:
    def test_after_an_activation(self, make, same, x):
        folded = same(nn.Sequential(conv(), nn.ReLU(inplace=True), make(), nn.ReLU()), x)
        fate = fate_of(folded, "2")
        assert fate.became == "convolution" and isinstance(folded[2], FixedMap)
        assert fate.note == "it follows '1' (ReLU); it feeds '3' (ReLU)"

    def test_feeding_two_consumers(self, make, same, x):
        net = Net(lambda m, x: m.a(y := m.norm(x)) + m.b(y), norm=make(), a=conv(0), b=conv(0))
        assert (
            fate_of(same(net, x), "norm").note
            == "it follows <input>; it feeds 'a' (Conv2d), 'b' (Conv2d)"
        )

    def test_behind_a_convolution_with_two_consumers(self, make, same, x):
        net = Net(lambda m, x: (y := m.conv(x)) + F.relu(m.norm(y)), conv=conv(), norm=make())
        note = fate_of(same(net, x), "norm").note
        assert note == "'conv' also feeds <add>; it feeds <relu>"

    def test_in_front_of_a_padded_convolution(self, make, same, x):
        assert "'1' pads with zeros" in fate_of(same(nn.Sequential(make(), conv(1)), x), "0").note

    def test_in_front_of_a_layer_used_elsewhere(self, make, same, x):
        net = Net(lambda m, x: m.conv(m.norm(x)) + m.conv(x), norm=make(), conv=conv(0))
        assert "'conv' is also fed by <input>" in fate_of(same(net, x), "norm").note

    def test_when_its_input_changes_before_the_layer_reads_it(self, make, same, x):
        def forward(m, x):
            x = x + 0
            y = m.norm(x)
            x.relu_()
            return m.conv(y) + x[:, :, 1:-1, 1:-1]

        fate = fate_of(same(Net(forward, norm=make(), conv=conv(0)), x), "norm")
        assert fate.became == "convolution" and "<relu_> runs between" in fate.note

    @pytest.mark.parametrize(
        "alias", [lambda m, x: m.drop(x), lambda m, x: x[:], lambda m, x: x.view(x.shape)]
    )
    def test_when_its_input_changes_under_another_name(self, make, alias, same, x):
        def forward(m, x):
            x = x + 0
            y = m.norm(alias(m, x))
            x.relu_()
            return m.conv(y) + x[:, :, 1:-1, 1:-1]

        net = Net(forward, norm=make(), conv=conv(0), drop=nn.Dropout())
        fate = fate_of(same(net, x), "norm")
        assert fate.became == "convolution" and "<relu_> runs between" in fate.note

    def test_when_its_input_changes_by_an_augmented_assignment(self, make, same, x):
        """torch.fx takes it for an addition."""

        def forward(m, x):
            x = x * 1
            y = m.norm(x)
            x += 1
            return m.conv(y) + x[:, :, 1:-1, 1:-1]

        fate = fate_of(same(Net(forward, norm=make(), conv=conv(0)), x), "norm")
        assert fate.became == "convolution" and "<add> runs between" in fate.note

    def test_when_the_convolution_has_hooks(self, make, same, x):
        model = nn.Sequential(conv(), make())
        model[0].register_forward_hook(lambda module, args, out: out + 1)
        assert "'0' has hooks" in fate_of(same(model, x), "1").note

    def test_when_the_weight_is_used_by_itself(self, make, same, x):
        net = Net(lambda m, x: F.conv2d(m.norm(m.conv(x)), m.conv.weight), conv=conv(), norm=make())
        assert "the weight of 'conv' is also used by <conv2d>" in fate_of(same(net, x), "norm").note

    def test_behind_a_convolution_with_a_forward_of_its_own(self, make, same, x):
        class Standardized(nn.Conv2d):
            def forward(self, x):
                weight = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
                return self._conv_forward(x, weight, self.bias)

        assert "forward of its own" in fate_of(
            same(nn.Sequential(Standardized(4, 4, 3), make()), x), "1"
        ).note  # fmt: skip


def test_a_shared_convolution_with_two_norms_keeps_both(same, x):
    net = Net(lambda m, x: m.a(m.conv(x)) + m.b(m.conv(x)), conv=conv(), a=norm(), b=norm())
    folded = same(net, x)
    assert folded.fold_report.which("convolution") == ["a", "b"]
    assert "'conv' also feeds 'b'" in fate_of(folded, "a").note


def test_a_shared_norm_with_two_convolutions_stays_one(same, x):
    net = Net(lambda m, x: m.norm(m.a(x)) + m.norm(m.b(x)), a=conv(), b=conv(), norm=norm())
    assert "it follows 'a' (Conv2d), 'b' (Conv2d)" in fate_of(same(net, x), "norm").note


def test_a_norm_that_is_also_inside_what_cannot_be_followed(same, x):
    class Branching(nn.Module):
        def __init__(self, norm: nn.Module) -> None:
            super().__init__()
            self.norm = norm

        def forward(self, x):
            return self.norm(x) if x.mean() > -1e9 else x

    shared = norm()
    net = Net(
        lambda m, x: m.inside(F.relu(m.norm(m.conv(x)))),
        conv=conv(), norm=shared, inside=Branching(shared),
    )  # fmt: skip
    folded = same(net, x)
    assert fate_of(folded, "norm").became == "convolution"
    assert "it lies inside 'inside'" in fate_of(folded, "norm").note


def test_dead_branches_are_left(same, x):
    net = Net(lambda m, x: m.norm(m.conv(x)), conv=conv(), norm=norm(), aux=norm())
    assert fate_of(same(net, x), "aux").note == "it is not called in eval"


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: nn.GroupNorm(2, 4), "every example by its own"),
        (lambda: nn.InstanceNorm2d(4), "every example by its own"),
        (lambda: nn.InstanceNorm2d(4, track_running_stats=True), "may lack the batch axis"),
        (lambda: isonorm.GroupWhitening(4, num_groups=2), "every example by its own"),
        (lambda: isonorm.IterNorm(4, track_running_stats=False), "no running statistics"),
        (lambda: nn.BatchNorm2d(4, track_running_stats=False), "no running statistics"),
    ],
    ids=[
        "group",
        "instance",
        "instance-tracked",
        "groupwhitening",
        "iternorm-untracked",
        "torch-untracked",
    ],
)
def test_norms_without_a_fixed_map_are_left(make, why, same, x):
    folded = same(nn.Sequential(conv(), make()), x)
    assert fate_of(folded, "1").became == "left" and why in fate_of(folded, "1").note


def test_a_norm_with_hooks_or_kept_in_a_list_is_left(same, x):
    hooked, listed = norm(), norm()
    hooked.register_forward_hook(lambda module, args, out: out * 2)
    net = Net(
        lambda m, x: m.hooked(m.b(m.layers[1](m.layers[0](x)))),
        a=conv(), b=conv(), hooked=hooked, listed=listed,
    )  # fmt: skip
    net.layers = [net.a, net.listed]
    folded = same(net, x)
    assert "hooks" in fate_of(folded, "hooked").note
    assert "kept in a list" in fate_of(folded, "listed").note


@pytest.mark.parametrize("hook", [lambda m, args, y: y.clamp(max=0.1), lambda m, args, y: None])
def test_nothing_is_merged_past_a_module_with_hooks(hook, same, x):
    """Not even where they only look: what they would see is another thing."""
    for between in (nn.Identity(), nn.Dropout()):
        between.register_forward_hook(hook)
        folded = same(nn.Sequential(conv(), between, norm()), x)
        assert fate_of(folded, "2").became == "convolution"
    flatten = nn.Flatten()
    flatten.register_forward_hook(hook)
    folded = same(nn.Sequential(nn.ReLU(), norm(), flatten, nn.Linear(100, 3)), x)
    assert fate_of(folded, "1").became == "convolution"


@pytest.mark.parametrize(
    "hold",
    [
        lambda net: [(net.conv, net.norm)],
        lambda net: {"steps": [net.conv.forward, net.norm.forward]},
        lambda net: partial(net.norm),
    ],
    ids=["nested", "methods", "partial"],
)
def test_a_norm_that_is_held_elsewhere_is_left(hold, same, x):
    net = Net(lambda m, x: m.norm(m.conv(x)), conv=conv(), norm=norm())
    net.held = hold(net)
    net.held_twice = [net.held]
    net.held_twice.append(net.held_twice)
    assert fate_of(same(net, x), "norm").became == "left"


def test_what_else_is_read_of_a_merged_norm(same, x):
    net = Net(lambda m, x: m.norm(m.conv(x)) * m.norm.num_features, conv=conv(), norm=norm())
    assert fate_of(same(net, x), "norm").into == "conv"
    net = Net(lambda m, x: m.norm(m.conv(x)) + m.norm.running_mean.mean(), conv=conv(), norm=norm())
    assert "statistics are also used" in fate_of(same(net, x), "norm").note


def test_a_norm_that_names_its_input_otherwise_is_left(same, x):
    class Named(isonorm.IterNorm):
        def forward(self, features):
            return super().forward(features)

    net = Net(lambda m, x: m.norm(features=m.conv(x)), conv=conv(), norm=Named(4))
    assert fate_of(same(net, x), "norm").became == "left"


def test_a_batchnorm_with_a_forward_of_its_own_is_left(same, x):
    class Doubled(nn.BatchNorm2d):
        def forward(self, x):
            return 2 * super().forward(x)

    assert "forward of its own" in fate_of(same(nn.Sequential(conv(), Doubled(4)), x), "1").note


def test_what_cannot_be_followed_keeps_its_norms_as_convolutions(same, x):
    class Branching(nn.Sequential):
        def forward(self, x):
            return super().forward(x) if x.mean() > -1e9 else x

    branching = Branching(conv(), norm())
    folded = same(nn.Sequential(conv(), norm(), branching, conv(), norm()), x)
    assert folded.fold_report.which("merged") == ["1", "4"]
    assert fate_of(folded, "2.1").became == "convolution"
    assert "control flow" in fate_of(folded, "2.1").note

    folded = same(branching, x)  # the model itself
    assert fate_of(folded, "1").became == "convolution"
    assert "nothing is merged across modules" in fate_of(folded, "1").note


def test_a_map_beyond_the_range_of_its_dtype_is_left():
    model = nn.Sequential(conv(), nn.BatchNorm2d(4), nn.ReLU(), nn.BatchNorm2d(4)).half().eval()
    for module in (model[1], model[3]):
        nn.init.constant_(module.weight, 6e4)
        module.running_var.zero_()
    folded = isonorm.fold(model)
    assert folded.fold_report.which("left") == ["1", "3"]
    assert "not be finite in torch.float16" in fate_of(folded, "3").note
    x = torch.full((1, 4, 5, 5), 1e-4).half()
    assert torch.equal(folded(x), model(x))


def test_a_flatten_that_does_not_fit_is_no_reason_to_fail():
    """Such a model fails in its forward; what it says there is more than fold could."""
    for features in (3, 10):
        folded = isonorm.fold(nn.Sequential(norm(), nn.Flatten(), nn.Linear(features, 2)))
        assert f"'2' has {features} channels there" in fate_of(folded, "0").note


def test_a_norm_that_may_run_its_activation_first_is_left(same, x):
    class Before(nn.BatchNorm2d):
        def __init__(self, channels: int) -> None:
            super().__init__(channels)
            self.act = nn.ReLU()

        def forward(self, input):
            return super().forward(self.act(input))

    fate = fate_of(same(nn.Sequential(conv(), Before(4)), x), "1")
    assert fate.became == "left" and "a forward of its own" in fate.note
