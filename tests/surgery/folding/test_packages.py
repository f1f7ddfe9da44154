"""timm's and torchvision's networks, where those packages are installed and import."""

from __future__ import annotations

import copy
import importlib

import pytest
import torch
from torch import nn

import isonorm

NETWORKS = [
    ("timm", "resnet50", 53),
    ("timm", "resnetv2_50", 0),
    ("timm", "efficientnet_b0", 49),
    ("timm", "convnext_tiny", 0),
    ("timm", "mobilenetv3_large_100", 46),
    ("torchvision", "resnet50", 53),
    ("torchvision", "efficientnet_b0", 49),
    ("torchvision", "convnext_tiny", 0),
    ("torchvision", "mobilenet_v3_large", 46),
]


def package(name: str):
    try:
        return importlib.import_module(name)
    except Exception as error:  # torchvision fails in its own ways beside another build of torch
        pytest.skip(f"{name} does not import: {error}")


def build(source: str, name: str) -> nn.Module:
    library = package(source)
    if source == "timm":
        return library.create_model(name)
    return getattr(library.models, name)(weights=None)


def put_in_isonorm(model: nn.Module) -> nn.Module:
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.BatchNorm2d):
            act = getattr(module, "act", None)
            norm = isonorm.IterNorm(module.num_features, group_size=8)
            model.set_submodule(name, nn.Sequential(norm, act) if act is not None else norm)
    return model


@pytest.mark.slow
@pytest.mark.parametrize("whitened", [False, True], ids=["batchnorm", "iternorm"])
@pytest.mark.parametrize(("source", "name", "merged"), NETWORKS, ids=str)
def test_a_network(source, name, merged, whitened):
    model = build(source, name)
    model = put_in_isonorm(model) if whitened else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    logits = model.train()(torch.randn(4, 3, 64, 64))
    nn.functional.cross_entropy(logits, torch.arange(4)).backward()
    optimizer.step()
    model = model.double().eval()
    x = torch.randn(2, 3, 64, 64).double()
    folded = isonorm.fold(model)
    with torch.no_grad():
        torch.testing.assert_close(folded(x), model(x), rtol=1e-10, atol=1e-10)
    report = folded.fold_report
    depthwise = [fate.name for fate in report if "denser" in fate.note]
    assert whitened or len(report.which("merged")) >= merged
    assert len(report.which("merged")) + len(depthwise) >= merged


def test_timms_reparameterization_finds_the_layers():
    timm = package("timm")
    model = nn.Sequential(
        nn.Conv2d(3, 8, 1), isonorm.IterNorm(8), isonorm.GroupNorm(8, num_groups=2)
    )
    model = model.eval()
    before = copy.deepcopy(model)
    fused = timm.utils.reparameterize_model(model)
    assert not isinstance(fused[1], isonorm.IterNorm) and isinstance(fused[2], isonorm.GroupNorm)
    x = torch.randn(2, 3, 4, 4)
    torch.testing.assert_close(fused(x), before(x))
