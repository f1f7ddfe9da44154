"""A norm in every convolution and linear layer: before and behind, with all that these can do."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import isonorm

#: The plain layers with every option that shapes what a channel is; 12 channels on both sides.
LAYERS = {
    "conv1d": (lambda: nn.Conv1d(12, 12, 3, dilation=2), 1),
    "conv2d": (lambda: nn.Conv2d(12, 12, (3, 1), stride=2), 2),
    "conv3d": (lambda: nn.Conv3d(12, 12, 2), 3),
    "no-bias": (lambda: nn.Conv2d(12, 12, 3, bias=False), 2),
    "grouped": (lambda: nn.Conv2d(12, 12, 3, groups=3), 2),
    "depthwise": (lambda: nn.Conv2d(12, 12, 3, groups=12, bias=False), 2),
    "reflect": (lambda: nn.Conv2d(12, 12, 3, padding=1, padding_mode="reflect"), 2),
    "circular": (lambda: nn.Conv2d(12, 12, 3, padding=1, padding_mode="circular"), 2),
    "replicate": (lambda: nn.Conv1d(12, 12, 3, padding=2, padding_mode="replicate"), 1),
    "valid": (lambda: nn.Conv2d(12, 12, 3, padding="valid"), 2),
    "same-of-one": (lambda: nn.Conv2d(12, 12, 1, padding="same"), 2),
    "transposed-of-one": (lambda: nn.ConvTranspose2d(12, 12, 1, groups=2), 2),
    "linear": (lambda: nn.Linear(12, 12), 0),
    "linear-no-bias": (lambda: nn.Linear(12, 12, bias=False), 0),
}

#: Those whose output meets padding or gaps: a shift in front of them is no bias behind.
EDGED = {
    "zeros": (lambda: nn.Conv2d(12, 12, 3, padding=1), 2),
    "same": (lambda: nn.Conv2d(12, 12, 3, padding="same"), 2),
    "transposed1d": (lambda: nn.ConvTranspose1d(12, 12, 3, stride=2, output_padding=1), 1),
    "transposed2d": (lambda: nn.ConvTranspose2d(12, 12, 3, groups=3, padding=1, bias=False), 2),
    "transposed3d": (lambda: nn.ConvTranspose3d(12, 12, 2, groups=2, dilation=2), 3),
    "transposed-strided-one": (lambda: nn.ConvTranspose2d(12, 12, 1, stride=2), 2),
}

NORMS = {
    "iternorm-4": lambda: isonorm.IterNorm(12, group_size=4),
    "dbn-2": lambda: isonorm.DBN(12, group_size=2),
    "dbn-remainder": lambda: isonorm.DBN(12, group_size=5, affine=False),
    "coloring": lambda: isonorm.Normalize(
        12, area=isonorm.area.batch(3), operation="whiten", recovery="coloring"
    ),
    "batchgroup": lambda: isonorm.BatchGroupNorm(12, num_groups=3),
    "batchnorm": lambda: isonorm.BatchNorm(12),
    "torch": None,
}


def cases(layers, norms=NORMS):
    return pytest.mark.parametrize(
        ("make_layer", "rank", "norm"),
        [
            pytest.param(*layers[layer], norm, id=f"{layer}-{norm}")
            for layer in layers
            for norm in norms
        ],
    )


def build_norm(name, rank):
    if name == "torch":
        return {0: nn.BatchNorm1d, 1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}[rank](
            12
        )
    return NORMS[name]()


def is_sparse_enough(layer, norm):
    """Whether whitening groups lie within the groups of the layer."""
    if not isinstance(norm, isonorm.Normalize):
        return True
    per_group = 12 // getattr(layer, "groups", 1)
    return per_group == 12 or per_group % norm.inference_map()[0].shape[-1] == 0


@cases(LAYERS | EDGED)
def test_a_norm_behind_a_layer_is_merged_into_it(make_layer, rank, norm, same):
    layer, norm = make_layer(), build_norm(norm, rank)
    folded = same(nn.Sequential(layer, norm), torch.randn(3, 12, *[6] * rank))
    (fate,) = folded.fold_report
    if is_sparse_enough(layer, norm):
        assert (fate.became, fate.into) == ("merged", "0")
    else:
        assert fate.became == "convolution" and "denser" in fate.note
    assert folded[0].weight.shape == layer.weight.shape


@cases(LAYERS)
def test_a_norm_in_front_of_a_layer_is_merged_into_it(make_layer, rank, norm, same):
    layer, norm = make_layer(), build_norm(norm, rank)
    folded = same(nn.Sequential(norm, layer), torch.randn(3, 12, *[6] * rank))
    (fate,) = folded.fold_report
    if is_sparse_enough(layer, norm):
        assert (fate.became, fate.into) == ("merged", "1")
    else:
        assert fate.became == "convolution" and "denser" in fate.note
    assert folded[1].weight.shape == layer.weight.shape


@cases(EDGED, ["dbn-2", "torch"])
def test_a_norm_in_front_of_an_edge_stays_a_convolution(make_layer, rank, norm, same):
    folded = same(
        nn.Sequential(build_norm(norm, rank), make_layer()), torch.randn(3, 12, *[6] * rank)
    )
    (fate,) = folded.fold_report
    assert fate.became == "convolution"
    assert "pads with zeros" in fate.note or "is transposed" in fate.note


@pytest.mark.parametrize(("make_layer", "rank"), EDGED.values(), ids=EDGED)
def test_a_norm_without_a_shift_is_merged_in_front_of_an_edge(make_layer, rank, same):
    model = nn.Sequential(isonorm.DBN(12, group_size=2, affine=False), make_layer())
    folded = same(model, torch.randn(3, 12, *[6] * rank), centered=True)
    assert folded.fold_report.which("merged") == ["0"]


@pytest.mark.parametrize("positions", [1, 6])
def test_a_norm_in_front_of_a_flatten_is_merged_behind_it(positions, same):
    model = nn.Sequential(
        isonorm.DBN(12, group_size=5), nn.Flatten(), nn.Dropout(), nn.Linear(12 * positions, 4)
    )
    folded = same(model, torch.randn(5, 12, positions))
    assert folded.fold_report.which("merged") == ["0"]


def test_a_norm_in_front_of_another_flatten_stays_a_convolution(same):
    model = nn.Sequential(nn.BatchNorm2d(4), nn.Flatten(2), nn.Linear(4, 4))
    folded = same(model, torch.randn(3, 4, 2, 2))
    assert folded.fold_report.which("convolution") == ["0"]


def test_a_weight_that_would_overflow_is_not_written():
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)).half()
    with torch.no_grad():
        model[1].running_var.zero_()
        model[0].weight.fill_(1000)
    folded = isonorm.fold(model)
    assert "not be finite in torch.float16" in folded.fold_report[0].note
    assert torch.equal(folded[0].weight, model[0].weight)
