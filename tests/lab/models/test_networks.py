"""What every network can do, at reduced width and with several norms."""

from __future__ import annotations

import copy
import math
import pickle

import pytest
import torch
from torch import Tensor, fx, nn

import isonorm
from isonorm.lab.models import MODELS, create_model, he_conv
from isonorm.lab.models.natural import NaturalMLP
from tests.lab.networks import DEEP_NETWORKS, NETWORKS, Network

NORMS = ["plain", "batchnorm", "iternorm", "dbn"]

every_network = pytest.mark.parametrize("network", NETWORKS, ids=str)


def some_networks(*labels: str) -> list[Network]:
    return [network for network in NETWORKS if network.label in labels]


def weights(model: nn.Module) -> dict[str, Tensor]:
    """Of the convolutions and linear layers."""
    return {
        name: layer.weight
        for name, layer in model.named_modules()
        if isinstance(layer, nn.Conv2d | nn.Linear)
    }


def check_gradients(model: nn.Module, x: Tensor) -> None:
    logits = model(x)
    assert logits.shape == (len(x), model.fc.out_features)
    (logits * torch.randn_like(logits)).sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())
    assert all(weight.grad.abs().max() > 0 for weight in weights(model).values())


def test_the_small_networks_are_of_every_family_and_small():
    families = {entry.network for entry in MODELS.values()} - {NaturalMLP}  # which takes no norm
    assert {MODELS[network.name].network for network in NETWORKS} == families
    for network in NETWORKS:
        assert sum(parameter.numel() for parameter in network.build().parameters()) < 1e5


@pytest.mark.parametrize("norm", NORMS)
@every_network
def test_forward_and_backward(network: Network, norm):
    check_gradients(network.build(norm), network.example())


@pytest.mark.slow
@pytest.mark.parametrize("network", DEEP_NETWORKS, ids=str)
def test_forward_and_backward_in_depth(network: Network):
    check_gradients(network.build("iternorm"), network.example())


@every_network
def test_double_precision_channels_last_and_eval(network: Network):
    model = network.build("iternorm")
    model(network.example())
    model.eval()
    x = network.example(seed=1)
    expected = model(x)
    precise = copy.deepcopy(model).double()(x.double())
    assert precise.dtype == torch.float64
    scale = precise.abs().max()
    torch.testing.assert_close(expected / scale, (precise / scale).float(), rtol=0, atol=1e-5)

    strided = model.to(memory_format=torch.channels_last)
    y = strided(x.contiguous(memory_format=torch.channels_last))
    torch.testing.assert_close(y / scale, expected / scale, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "network", some_networks("vgg_e", "cifar_resnet20", "wrn_10_2", "resnet18"), ids=str
)
def test_channels_last_stays_so_up_to_the_pooling(network: Network):
    model = network.build("iternorm").to(memory_format=torch.channels_last)
    strides = {}
    for child, layer in model.named_children():
        layer.register_forward_hook(
            lambda _, inputs, output, child=child: (
                strides.update({child: output.is_contiguous(memory_format=torch.channels_last)})
                if output.dim() == 4
                else None
            )
        )
    model(network.example().contiguous(memory_format=torch.channels_last))
    assert all(strides.values()), strides


@pytest.mark.parametrize(
    "network", some_networks("mlp", "vgg_a", "cifar_resnet20", "wrn_10_2", "resnet18"), ids=str
)
def test_copies_and_pickles_are_the_same_function(network: Network):
    model = network.build("dbn").eval()
    x = network.example(2)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        torch.testing.assert_close(other(x), model(x), rtol=0, atol=0)


class NormsAreLeaves(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, isonorm.Normalize) or super().is_leaf_module(m, module_qualified_name)


def trace(model: nn.Module) -> fx.GraphModule:
    return fx.GraphModule(model, NormsAreLeaves().trace(model))


def check_trace(model: nn.Module, x: Tensor) -> None:
    traced = trace(model.eval())
    called = [node.target for node in traced.graph.nodes if node.op == "call_module"]
    norms = [name for name, m in model.named_modules() if isinstance(m, isonorm.Normalize)]
    assert norms and sorted(name for name in called if name in norms) == sorted(norms)
    torch.testing.assert_close(traced(x), model(x), rtol=0, atol=0)


@every_network
def test_tracing_with_norms_as_leaves(network: Network):
    check_trace(network.build("iternorm"), network.example(2))


@pytest.mark.parametrize("network", some_networks("vgg_e", "wrn_10_2", "resnet50"), ids=str)
def test_tracing_with_activations_and_residuals_in_the_norms(network: Network):
    check_trace(network.build("iternorm", fuse_act=True), network.example(2))


@every_network
def test_torchs_batchnorms_in_place_of_ours_are_the_same_function(network: Network):
    torch.manual_seed(1)
    ours = network.build("batchnorm")
    torch.manual_seed(1)
    theirs = network.with_torch_batchnorm()
    kinds = {type(layer) for layer in theirs.modules()}
    assert isonorm.BatchNorm not in kinds and kinds & {nn.BatchNorm1d, nn.BatchNorm2d}
    x = network.example().double()
    torch.manual_seed(2)  # for dropout
    expected = ours.double()(x)
    torch.manual_seed(2)
    torch.testing.assert_close(theirs.double()(x), expected, rtol=1e-9, atol=1e-9)


@every_network
def test_equal_seeds_mean_equal_initial_weights_with_every_norm(network: Network):
    def initial(norm: str) -> dict[str, Tensor]:
        torch.manual_seed(5)
        return weights(network.build(norm))

    for norm in NORMS[1:]:
        torch.testing.assert_close(initial(norm), initial("plain"), rtol=0, atol=0)


@pytest.mark.parametrize("name", ["vgg_a", "cifar_resnet20", "wrn", "resnet18"])
def test_initial_weights_are_he_et_als(name):
    options = {"depth": 10, "widen": 4} if name == "wrn" else {}
    model = create_model(name, norm="plain", **options)
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d):
            fan_out = layer.out_channels * math.prod(layer.kernel_size)
            n = layer.weight.numel()
            assert layer.weight.std().item() == pytest.approx(
                math.sqrt(2 / fan_out), rel=5 / math.sqrt(2 * n)
            )
            assert layer.weight.mean().abs() < 5 * math.sqrt(2 / fan_out / n)
            assert not layer.bias.any()
    bound = 1 / math.sqrt(model.fc.in_features)
    assert 0.9 * bound < model.fc.weight.abs().max() <= bound and not model.fc.bias.any()


# --- options ------------------------------------------------------------------------------------


def test_norm_after_the_activation():
    model = create_model("vgg_a", norm="dbn", norm_after_act=True, width=1 / 16)
    names = [name for name, _ in model.named_children()]
    assert names[:5] == ["conv1", "act1", "norm1", "pool1", "conv2"]
    assert names[-4:] == ["linear9", "act9", "norm9", "fc"]
    assert model.conv1.bias is not None and model.linear9.bias is not None


def test_activation():
    model = create_model("vgg_a", activation="elu", width=1 / 16)
    kinds = [type(layer) for layer in model]
    assert kinds.count(nn.ELU) == 9 and nn.ReLU not in kinds


def test_planes_and_in_channels_of_splain():
    model = create_model("splain20", planes=42, in_channels=1)
    assert model.conv1.weight.shape == (42, 1, 3, 3) and model.conv19.weight.shape[0] == 42


def test_width_multiplies_every_number_of_channels():
    model = create_model("resnet50", width=0.5)
    assert (model.conv1.out_channels, model.fc.in_features, model.fc.out_features) == (
        32,
        1024,
        1000,
    )
    assert create_model("wrn_28_10", width=0.01).conv1.out_channels == 1


@pytest.mark.parametrize(
    ("name", "options"),
    [("small_cnn", {}), ("cifar_resnet20", {}), ("preact_resnet", {"depth": 18}), ("resnet18", {})],
)
def test_convolutions_can_be_anothers(name, options):
    options = options | {"width": 1 / 16, "num_classes": 3}

    def weight_normalized(*args, **keywords) -> nn.Module:
        return nn.utils.parametrizations.weight_norm(he_conv(*args, **keywords))

    model = create_model(name, norm="plain", conv=weight_normalized, **options)
    convolutions = [layer for layer in model.modules() if isinstance(layer, nn.Conv2d)]
    assert all(nn.utils.parametrize.is_parametrized(layer) for layer in convolutions)
    assert all(layer.bias is not None for layer in convolutions)
    assert model(torch.randn(2, 3, 32, 32)).shape == (2, 3)

    asked: list[dict] = []

    def listening(*args, **keywords) -> nn.Module:
        asked.append(keywords)
        return he_conv(*args, **keywords)

    for norm, expected in (("plain", None), ("batchnorm", False)):
        asked.clear()
        create_model(name, norm=norm, conv=listening, **options)
        assert {keywords.get("bias") for keywords in asked} == {expected}
        assert len(asked) == len(convolutions)


def test_a_network_can_be_cut():
    model = create_model("cifar_resnet20", width=0.25)
    features = model[:-1]
    assert type(features) is nn.Sequential and features[-1] is model.flatten is model[-2]
    assert features(torch.randn(2, 3, 16, 16)).shape == (2, 16)
