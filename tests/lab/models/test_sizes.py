"""The networks at full size, on the meta device: parameters, shapes and placements as published."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import nn

import isonorm
from isonorm.lab.models import MODELS, create_model, list_models


def build(name: str, **options) -> nn.Module:
    with torch.device("meta"):
        return create_model(name, **options)


def parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


# --- counted by hand, from the tables -----------------------------------------------------------


def chain(channels: list[int], classes: int = 10, hidden: int = 0) -> int:
    """3 × 3 convolutions in a row, each with γ and β, then linear layers."""
    count = sum(9 * before * after + 2 * after for before, after in pairwise([3, *channels]))
    last = channels[-1]
    if hidden:
        count, last = count + last * hidden + 2 * hidden, hidden
    return count + last * classes + classes


def cifar_resnet(n: int) -> int:
    stage = [16, 32, 64]
    first = 3 * 16 * 9 + 2 * 16
    within = sum((2 * n - (c > 16)) * 9 * c * c + 2 * n * 2 * c for c in stage)
    between = 9 * 16 * 32 + 9 * 32 * 64
    return first + within + between + 64 * 10 + 10


def wide_resnet(n: int, k: int, stem: int = 16) -> int:
    sizes = [stem, 16 * k, 32 * k, 64 * k]
    count = 9 * 3 * stem
    for before, size in pairwise(sizes):
        count += 9 * before * size + (2 * n - 1) * 9 * size * size  # convolutions
        count += 2 * before + 2 * size * (2 * n - 1)  # γ and β in front of each
        count += before * size if before != size else 0  # shortcut
    return count + 2 * sizes[-1] + sizes[-1] * 10 + 10


def preact_bottlenecks(counts: list[int]) -> int:
    count, before = 9 * 3 * 64, 64
    for planes, blocks in zip([64, 128, 256, 512], counts, strict=True):
        for index in range(blocks):
            after = 4 * planes
            count += before * planes + 9 * planes * planes + planes * after
            count += 2 * before + 2 * planes + 2 * planes
            count += before * after if index == 0 else 0
            before = after
    return count + 2 * before + before * 10 + 10


VGG_A = [64, 128, 256, 256, 512, 512, 512, 512]
VGG_E = [64] * 2 + [128] * 2 + [256] * 4 + [512] * 8

COUNTS = {
    "mlp": 784 * 100 + 2 * 100 * 100 + 100 * 10 + 3 * 3 * 100 + 10,
    "mlp_yale_b": 1024 * 128 + 128 * 64 + 64 * 48 + 48 * 48 + 48 * 38 + 3 * (128 + 64 + 96) + 38,
    "mlp_pie": 1024 * 128 + 4 * 128 * 128 + 128 * 68 + 3 * 5 * 128 + 68,
    "small_cnn": chain([32, 64, 128]),
    "vgg_a": chain(VGG_A, hidden=512),
    "vgg_e": chain(VGG_E),
    "splain20": chain([48] * 19),
    "splain32": chain([48] * 31),
    "splain44": chain([48] * 43),
    "cifar_resnet20": cifar_resnet(3),
    "cifar_resnet32": cifar_resnet(5),
    "cifar_resnet44": cifar_resnet(7),
    "cifar_resnet56": cifar_resnet(9),
    "cifar_resnet110": cifar_resnet(18),
    "preact_resnet152": preact_bottlenecks([3, 8, 36, 3]),
    "wrn_28_10": wide_resnet(4, 10),
    "wrn_40_10": wide_resnet(6, 10),
    "equinorm_wrn": wide_resnet(3, 6, stem=96),
    "resnet18": 11_689_512,  # torchvision's documentation
    "resnet34": 21_797_672,
    "resnet50": 25_557_032,
    "resnet101": 44_549_160,
}

#: Millions of parameters, as the papers round them.
PUBLISHED = {
    "cifar_resnet20": "0.27",  # He et al., CVPR 2016, Table 6
    "cifar_resnet32": "0.46",
    "cifar_resnet44": "0.66",
    "cifar_resnet56": "0.85",
    "cifar_resnet110": "1.7",
    "wrn_28_10": "36.5",  # Zagoruyko & Komodakis, Table 4
    "equinorm_wrn": "9.7",  # EquiNorm Section 6.1
    "preact_resnet152": "58.1",
}


def test_every_network_with_fixed_sizes_is_counted():
    families = {name for name, entry in MODELS.items() if not entry.fixed}
    assert set(list_models()) - set(COUNTS) == families - {"mlp", "small_cnn"}


@pytest.mark.parametrize("name", COUNTS)
def test_parameters_at_full_size(name):
    model = build(name)
    assert parameters(model) == COUNTS[name]
    assert all(tensor.is_meta for tensor in [*model.parameters(), *model.buffers()])


@pytest.mark.parametrize("name", PUBLISHED)
def test_counts_round_to_the_papers(name):
    digits = len(PUBLISHED[name].partition(".")[2])
    assert f"{parameters(build(name)) / 1e6:.{digits}f}" == PUBLISHED[name]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("vgg_e", {}),
        ("splain", {}),
        ("cifar_resnet", {}),
        ("preact_resnet", {"depth": 18}),
        ("wrn", {}),
        ("resnet", {}),
    ],
)
def test_whitening_has_as_many_parameters_as_batchnorm_and_plain_has_biases(name, options):
    batchnorm = build(name, **options)
    assert parameters(build(name, norm="iternorm", **options)) == parameters(batchnorm)
    norms = [layer for layer in batchnorm.modules() if isinstance(layer, isonorm.BatchNorm)]
    convolutions = [layer for layer in batchnorm.modules() if isinstance(layer, nn.Conv2d)]
    gammas_and_betas = 2 * sum(norm.num_features for norm in norms)
    biases = sum(conv.out_channels for conv in convolutions)
    assert all(conv.bias is None for conv in convolutions)
    plain = build(name, norm=None, **options)
    assert parameters(plain) == parameters(batchnorm) - gammas_and_betas + biases


# --- shapes -------------------------------------------------------------------------------------

BOTTLENECKS = {
    "conv1": (64, 112, 112),
    "maxpool": (64, 56, 56),
    "layer1": (256, 56, 56),
    "layer2": (512, 28, 28),
    "layer3": (1024, 14, 14),
    "layer4": (2048, 7, 7),
    "flatten": (2048,),
    "fc": (1000,),
}
BASIC = {
    **BOTTLENECKS,
    "layer1": (64, 56, 56),
    "layer2": (128, 28, 28),
    "layer3": (256, 14, 14),
    "layer4": (512, 7, 7),
    "flatten": (512,),
}
WIDE = {"layer1": (160, 32, 32), "layer2": (320, 16, 16), "layer3": (640, 8, 8), "fc": (10,)}
SHAPES = {
    "mlp": {"linear1": (100,), "act3": (100,), "fc": (10,)},
    "mlp_yale_b": {f"linear{i}": (n,) for i, n in enumerate((128, 64, 48, 48), start=1)},
    "mlp_pie": {"linear5": (128,), "fc": (68,)},
    "small_cnn": {"conv1": (32, 32, 32), "conv2": (64, 16, 16), "conv3": (128, 8, 8)},
    "vgg_a": {
        "pool1": (64, 16, 16),
        "pool2": (128, 8, 8),
        "pool3": (256, 4, 4),
        "pool4": (512, 2, 2),
        "pool5": (512, 1, 1),
        "linear9": (512,),
        "fc": (10,),
    },
    "vgg_e": {
        "pool1": (64, 16, 16),
        "pool2": (128, 8, 8),
        "pool3": (256, 4, 4),
        "pool4": (512, 2, 2),
        "conv16": (512, 2, 2),
        "avgpool": (512, 1, 1),
        "fc": (10,),
    },
    "splain20": {
        "conv1": (48, 32, 32),
        "conv7": (48, 32, 32),
        "conv8": (48, 16, 16),
        "conv13": (48, 16, 16),
        "conv14": (48, 8, 8),
        "conv19": (48, 8, 8),
    },
    "cifar_resnet56": {
        "conv1": (16, 32, 32),
        "layer1": (16, 32, 32),
        "layer2": (32, 16, 16),
        "layer3": (64, 8, 8),
    },
    "preact_resnet152": {
        "conv1": (64, 32, 32),
        "layer1": (256, 32, 32),
        "layer2": (512, 16, 16),
        "layer3": (1024, 8, 8),
        "layer4": (2048, 4, 4),
        "fc": (10,),
    },
    "wrn_28_10": {"conv1": (16, 32, 32), **WIDE},
    "wrn_40_10": {"conv1": (16, 32, 32), **WIDE},
    "equinorm_wrn": {
        "conv1": (96, 32, 32),
        "layer1": (96, 32, 32),
        "layer2": (192, 16, 16),
        "layer3": (384, 8, 8),
    },
    "resnet18": BASIC,
    "resnet50": BOTTLENECKS,
}


@pytest.mark.parametrize("name", SHAPES)
def test_shapes_at_each_stage_at_full_size(name):
    model = build(name)
    seen = {}
    for child, layer in model.named_children():
        layer.register_forward_hook(
            lambda _, inputs, output, child=child: seen.update({child: tuple(output.shape[1:])})
        )
    model(torch.empty(2, *MODELS[name].input_shape, device="meta"))
    assert {child: seen[child] for child in SHAPES[name]} == SHAPES[name]


def test_convolutions_of_equinorms_network():
    """Section 6.1: 20 with the classifier, counted as in ResNet-20; shortcuts aside."""
    layers = [m for m in build("equinorm_wrn").modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    kernels = [getattr(layer, "kernel_size", None) for layer in layers]
    assert (kernels.count((3, 3)), kernels.count((1, 1)), kernels.count(None)) == (19, 2, 1)


@pytest.mark.parametrize(
    ("name", "norms"), [("resnet18", 20), ("resnet34", 36), ("resnet50", 53), ("resnet101", 104)]
)
def test_norms_of_a_resnet(name, norms):
    found = [layer for layer in build(name).modules() if isinstance(layer, isonorm.BatchNorm)]
    assert len(found) == norms


# --- where the papers whiten --------------------------------------------------------------------


def norm_names(model: nn.Module, kind: type) -> list[str]:
    return [name for name, layer in model.named_modules() if isinstance(layer, kind)]


def test_first_norm_and_feature_norm_of_a_resnet():
    whitened = build("resnet18", first_norm="iternorm", feature_norm="iternorm")
    assert norm_names(whitened, isonorm.IterNorm) == ["norm1", "feature_norm"]
    assert len(norm_names(whitened, isonorm.BatchNorm)) == 19
    assert [name for name, _ in whitened.named_children()][-3:] == ["flatten", "feature_norm", "fc"]
    assert whitened.feature_norm.num_features == 512


@pytest.mark.parametrize("name", ["cifar_resnet20", "resnet50"])
def test_first_norm_stands_in_for_the_first_of_a_resnet(name):
    only_first = build(name, first_norm="dbn")
    assert norm_names(only_first, isonorm.DBN) == ["norm1"]
    assert list(only_first.state_dict()) == list(build(name, norm="dbn").state_dict())


@pytest.mark.parametrize(("name", "depth"), [("wrn", 10), ("preact_resnet", 18)])
def test_first_norm_is_one_more_where_blocks_bring_their_own(name, depth):
    model = build(name, depth=depth, first_norm="dbn")
    assert norm_names(model, isonorm.DBN) == ["norm1"]
    assert [name for name, _ in model.named_children()][:3] == ["conv1", "norm1", "layer1"]
    others = norm_names(build(name, depth=depth), isonorm.BatchNorm)
    assert norm_names(model, isonorm.BatchNorm) == others and "norm1" not in others


def test_the_first_convolution_has_a_bias_where_no_norm_comes_next():
    model = build("resnet18", norm=None, first_norm="iternorm")
    assert norm_names(model, isonorm.IterNorm) == ["norm1"]
    assert model.conv1.bias is None and model.layer1[0].conv1.bias is not None
    assert build("resnet18", first_norm="plain").conv1.bias is not None
    assert build("wrn").conv1.bias is None  # the block's own norm is the next
    assert build("wrn", norm=None).conv1.bias is not None
