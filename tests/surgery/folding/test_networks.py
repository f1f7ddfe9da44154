"""Every network of the lab: converted, trained a little, folded, and still the same function."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import isonorm
from isonorm.layers.fixed import FixedMap, Merged
from tests.lab.networks import DEEP_NETWORKS, NETWORKS, Network

DENSE = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)


def train_two_steps(model: nn.Module, network: Network) -> nn.Module:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for seed in (1, 2):
        optimizer.zero_grad()
        logits = model(network.example(seed=seed))
        nn.functional.cross_entropy(logits, torch.arange(len(logits))).backward()
        optimizer.step()
    return model.eval()


def norms_behind_a_layer(model: nn.Module, x: torch.Tensor) -> set[str]:
    """The norms that are given the very tensor a convolution or linear layer returned."""
    outputs: list[torch.Tensor] = []
    found: set[str] = set()
    handles = []
    for name, module in model.named_modules():
        if isinstance(module, DENSE):
            hook = module.register_forward_hook(lambda m, args, out: outputs.append(out))
        elif isinstance(module, isonorm.Normalize | nn.BatchNorm1d | nn.BatchNorm2d):
            hook = module.register_forward_pre_hook(
                lambda m, args, name=name: (
                    found.add(name) if any(args[0] is out for out in outputs) else None
                )
            )
        else:
            continue
        handles.append(hook)
    model(x)
    for handle in handles:
        handle.remove()
    return found


def check(network: Network, model: nn.Module) -> None:
    model = train_two_steps(model, network)
    exact = copy.deepcopy(model).double().eval()
    x = network.example(8, seed=3)
    with torch.no_grad():
        expected = exact(x.double())
        behind = norms_behind_a_layer(model, x)
        folded, folded_exact = isonorm.fold(model), isonorm.fold(exact)
        torch.testing.assert_close(folded_exact(x.double()), expected, rtol=1e-10, atol=1e-10)
        own_error = (model(x) - expected).norm()
        assert (folded(x) - expected).norm() <= 3 * own_error

    fates = {fate.name: fate for fate in folded.fold_report}
    for name in behind:  # a stem's output may also be the first shortcut
        assert fates[name].became == "merged" or "also feeds <add>" in fates[name].note
    assert sum(fates[name].became != "merged" for name in behind) <= 1
    assert not folded.fold_report.which("left")
    kept = {name for name, m in folded.named_modules() if isinstance(m, Merged | FixedMap)}
    assert kept == set(fates)
    assert not any(isinstance(m, isonorm.Normalize) for m in folded.modules())


def converted(network: Network) -> nn.Module:
    model = network.with_torch_batchnorm()
    report = isonorm.convert(model, "iternorm")
    assert report.changed and not report.left
    return model


def named(*labels: str) -> pytest.MarkDecorator:
    chosen = [n for n in (*NETWORKS, *DEEP_NETWORKS) if str(n) in labels]
    assert len(chosen) == len(labels)
    return pytest.mark.parametrize("network", chosen, ids=str)


@pytest.mark.parametrize("network", NETWORKS, ids=str)
def test_converted_to_iternorm(network: Network):
    check(network, converted(network))


@named("mlp", "vgg_a_norm_after", "preact_resnet18", "resnet18_DF")
@pytest.mark.parametrize("norm", ["dbn", "batchnorm"])
def test_with_other_norms(network: Network, norm: str):
    check(network, network.build(norm))


@named("cifar_resnet20", "preact_resnet18", "resnet18")
def test_with_fused_activations(network: Network):
    check(network, network.build("iternorm", fuse_act=True))


@named("mlp", "resnet18")
def test_with_torchs_batchnorm(network: Network):
    check(network, network.with_torch_batchnorm())


# cifar_resnet110 is five times cifar_resnet20, which is among those above
@pytest.mark.slow
@named("splain44", "preact_resnet152", "wrn_40_10", "resnet101")
def test_deep_ones(network: Network):
    check(network, converted(network))
