"""Residual networks against their definitions, written as functions of a state dict."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from isonorm.lab.models import create_model
from tests.lab.networks import NETWORKS, Network

State = dict[str, Tensor]

#: One of each kind of block.
FUSABLE = ["vgg_a", "cifar_resnet20", "preact_resnet50", "wrn_10_2_L1", "resnet18_DF", "resnet50"]


def conv(x: Tensor, state: State, name: str, stride: int = 1) -> Tensor:
    weight = state[f"{name}.weight"]
    return F.conv2d(x, weight, stride=stride, padding=weight.shape[-1] // 2)


def norm(x: Tensor, state: State, name: str) -> Tensor:
    """BatchNorm in training."""
    return F.batch_norm(
        x, None, None, state[f"{name}.weight"], state[f"{name}.bias"], training=True
    )


def post_activation(x: Tensor, state: State, block: str, convs: int, strided: int, stride: int):
    y = x
    for i in range(1, convs + 1):
        y = conv(y, state, f"{block}.conv{i}", stride if i == strided else 1)
        y = norm(y, state, f"{block}.norm{i}")
        y = F.relu(y) if i < convs else y
    if f"{block}.shortcut.conv.weight" in state:
        x = norm(conv(x, state, f"{block}.shortcut.conv", stride), state, f"{block}.shortcut.norm")
    elif y.shape != x.shape:
        zeros = torch.zeros_like(y)
        zeros[:, : x.shape[1]] = x[:, :, ::stride, ::stride]
        x = zeros
    return F.relu(y + x)


def pre_activation(x: Tensor, state: State, block: str, convs: int, strided: int, stride: int):
    y, identity = x, x
    for i in range(1, convs + 1):
        y = F.relu(norm(y, state, f"{block}.norm{i}"))
        if i == 1 and f"{block}.shortcut.weight" in state:
            identity = conv(y, state, f"{block}.shortcut", stride)
        y = conv(y, state, f"{block}.conv{i}", stride if i == strided else 1)
    return y + identity


CASES = [
    # name, options, block, convolutions in it, which of them has the stride, blocks of each stage
    ("resnet18", {"width": 1 / 16}, post_activation, 2, 1, (2, 2, 2, 2)),
    ("resnet50", {"width": 1 / 16}, post_activation, 3, 2, (3, 4, 6, 3)),
    ("cifar_resnet20", {"width": 0.5}, post_activation, 2, 1, (3, 3, 3)),
    ("wrn", {"depth": 16, "widen": 2, "width": 0.25}, pre_activation, 2, 1, (2, 2, 2)),
    ("wrn", {"depth": 10, "width": 0.1, "first_norm": "batchnorm"}, pre_activation, 2, 1, (1,) * 3),
    ("preact_resnet", {"depth": 34, "width": 1 / 16}, pre_activation, 2, 1, (3, 4, 6, 3)),
    ("preact_resnet", {"depth": 50, "width": 1 / 16}, pre_activation, 3, 2, (3, 4, 6, 3)),
    ("equinorm_wrn", {"width": 1 / 24}, pre_activation, 2, 1, (3, 3, 3)),
]


@pytest.mark.parametrize(
    ("name", "options", "block", "convs", "strided", "counts"),
    CASES,
    ids=lambda value: getattr(value, "__name__", None),
)
def test_residual_networks_compute_what_their_papers_draw(
    name, options, block, convs, strided, counts
):
    model = create_model(name, **options).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    state = dict(model.named_parameters())
    large = name in {"resnet18", "resnet50"}
    x = torch.randn(3, 3, 64 if large else 16, 64 if large else 16, dtype=torch.float64)

    y = conv(x, state, "conv1", stride=2 if large else 1)
    if "norm1.weight" in state:
        y = norm(y, state, "norm1")
    if block is post_activation:
        y = F.relu(y)
    if large:
        y = F.max_pool2d(y, 3, stride=2, padding=1)
    for stage, count in enumerate(counts, start=1):
        for index in range(count):
            stride = 2 if stage > 1 and index == 0 else 1
            y = block(y, state, f"layer{stage}.{index}", convs, strided, stride)
        assert f"layer{stage}.{count}.conv1.weight" not in state
    if block is pre_activation:
        y = F.relu(norm(y, state, "final_norm"))
    y = F.linear(y.mean(dim=(2, 3)), state["fc.weight"], state["fc.bias"])

    torch.testing.assert_close(model(x), y, rtol=1e-8, atol=1e-8)


# --- activations inside the norms -----------------------------------------------------------------


@pytest.mark.parametrize(
    "network", [network for network in NETWORKS if network.label in FUSABLE], ids=str
)
def test_fused_activations_are_the_same_function_of_the_same_state(network: Network):
    plainly = network.build("iternorm").double()
    fused = network.build("iternorm", fuse_act=True).double()
    assert not any(isinstance(layer, nn.ReLU) for layer in fused.modules())
    assert list(fused.state_dict()) == list(plainly.state_dict())
    with torch.no_grad():
        for parameter in plainly.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    fused.load_state_dict(plainly.state_dict())

    x = network.example(dtype=torch.float64)
    cotangent = torch.randn(len(x), plainly.fc.out_features, dtype=torch.float64)
    results = []
    for model in (plainly, fused):
        torch.manual_seed(3)  # for dropout
        y = model(x)
        gradients = torch.autograd.grad((y * cotangent).sum(), list(model.parameters()))
        results.append((y, gradients, model.eval()(x)))
    torch.testing.assert_close(results[1], results[0], rtol=1e-7, atol=1e-7)


def test_the_relu_stays_where_there_is_no_norm_to_take_it():
    options = {"width": 1 / 16, "first_norm": "plain"}
    plainly = create_model("resnet18", **options)
    fused = create_model("resnet18", fuse_act=True, **options)
    assert isinstance(fused.act1, nn.ReLU)
    fused.load_state_dict(copy.deepcopy(plainly.state_dict()))
    x = torch.randn(4, 3, 64, 64)
    torch.testing.assert_close(fused(x), plainly(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("resnet18", {"norm": None}, "takes a norm and activation='relu'; got no norm"),
        ("vgg_a", {"activation": "elu"}, "got a norm and activation='elu': leave fuse_act out"),
        ("vgg_a", {"norm_after_act": True}, "norm_after_act=True in front of it: choose one"),
        ("resnet18", {"norm": nn.BatchNorm2d}, "needs norms of isonorm, .* got BatchNorm2d"),
    ],
)
def test_what_cannot_be_fused(name, options, sentence):
    with pytest.raises(ValueError, match=sentence):
        create_model(name, fuse_act=True, width=1 / 16, **options)
