"""Folding through the shapes of real networks: what is merged, and into what."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from isonorm.layers.fixed import Merged
from tests.surgery.blocks import BatchNormAct2d
from tests.surgery.folding.nets import Net, conv, fate_of, norm


def test_a_residual_block_with_its_activation(same, x):
    net = Net(
        lambda m, x: m.second(m.b(m.first(m.a(x))), residual=m.short(m.c(x))),
        a=conv(), first=norm(act="relu"), b=conv(), second=norm(act="silu"), c=conv(), short=norm(),
    )  # fmt: skip
    folded = same(net, x)
    assert folded.fold_report.which("merged") == ["first", "second", "short"]
    assert isinstance(folded.second, Merged) and isinstance(folded.second.act, nn.SiLU)


def test_a_block_used_in_two_places_is_merged_once(same, x):
    """Both of its uses see the same pair, as in siamese networks."""
    block = nn.Sequential(conv(), norm(), nn.ReLU())
    folded = same(Net(lambda m, x: m.block(m.block(x)) - m.block(x), block=block), x)
    assert folded.fold_report.which("merged") == ["block.1"]


def test_a_block_with_two_names(same, x):
    block = nn.Sequential(conv(), norm())
    net = Net(lambda m, x: m.again[0](x), block=block, again=nn.ModuleList([block]))
    folded = same(net, x)
    assert folded.block is folded.again[0] and isinstance(folded.block[1], Merged)


def test_a_norm_with_two_names_is_replaced_under_both(same, x):
    shared = norm()
    net = Net(lambda m, x: m.other(m.conv(x)), conv=conv(), norm=shared, other=shared)
    folded = same(net, x)
    assert isinstance(folded.other, Merged) and folded.norm is folded.other


def test_tied_weights_are_untied_where_one_is_merged(same, x):
    a, b = conv(), conv()
    b.weight = a.weight
    folded = same(nn.Sequential(a, norm(), nn.ReLU(), b), x)
    assert folded.fold_report.which("merged") == ["1"]
    assert fate_of(folded, "1").note == "the weight of '0' is no longer that of '3'"
    assert not torch.equal(folded[0].weight, folded[3].weight)


@pytest.mark.parametrize("wrap", [parametrizations.weight_norm, parametrizations.spectral_norm])
def test_a_parametrized_convolution_becomes_plain(wrap, same, x):
    folded = same(nn.Sequential(wrap(conv()), norm()).eval(), x)
    assert folded.fold_report.which("merged") == ["1"]
    assert type(folded[0]) is nn.Conv2d and set(folded[0].state_dict()) == {"weight", "bias"}


def test_through_what_does_nothing_in_eval_and_merged_norms(same, x):
    model = nn.Sequential(
        norm(), nn.Identity(), norm(), conv(0), nn.Dropout(), norm(), nn.Dropout2d(), norm()
    )
    folded = same(model, x)
    assert [fate.into for fate in folded.fold_report] == ["3"] * 4


def test_normalization_after_dropout_and_act_as_timm_writes_it(same, x):
    first, second = (BatchNormAct2d(4, nn.ReLU(inplace=True)) for _ in range(2))
    folded = same(nn.Sequential(conv(), first, second), x)
    assert [fate.became for fate in folded.fold_report] == ["merged", "convolution"]
    assert isinstance(folded[1].act, nn.ReLU) and isinstance(folded[2].act, nn.ReLU)


def test_a_linear_layer_is_merged_for_two_axes_only(same):
    folded = same(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), torch.randn(5, 4))
    assert folded.fold_report.which("merged") == ["1"]
    with pytest.raises(ValueError, match=r"merged into '0' for inputs of 2 axes.*\(5, 4, 4\)"):
        folded(torch.randn(5, 4, 4).double())
    images = same(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm2d(4)), torch.randn(2, 4, 3, 4))
    assert "second axis" in fate_of(images, "1").note
