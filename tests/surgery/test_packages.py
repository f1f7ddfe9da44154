"""timm's and torchvision's networks, where those packages are installed and import: converted,
trained, folded.
"""

from __future__ import annotations

import copy
import importlib

import pytest
import torch
from torch import nn

import isonorm

#: Package, network, and how many of its norms follow a convolution.
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


def convert(model: nn.Module, x: torch.Tensor, *, fuse_act: bool) -> isonorm.surgery.Conversion:
    """From BatchNorm to IterNorm; checks that eval is the same function."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_var.uniform_(0.5, 2)
            nn.init.uniform_(module.weight, 0.5, 1.5)
    with torch.no_grad():
        expected = model.eval()(x)
        report = isonorm.convert(model, "iternorm", fuse_act=fuse_act)
        assert (model(x) - expected).norm() < 1e-4 * expected.norm()
    assert not any(isinstance(module, nn.BatchNorm2d) for module in model.modules())
    assert all(change.same for change in report.changed)
    return report


def train_one_step(model: nn.Module, x: torch.Tensor) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    nn.functional.cross_entropy(model.train()(x), torch.arange(len(x))).backward()
    optimizer.step()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("norms", ["batchnorm", "iternorm", "iternorm with activations"])
@pytest.mark.parametrize(("source", "name", "behind"), NETWORKS, ids=str)
def test_a_network(source, name, behind, norms):
    model, x = build(source, name), torch.randn(4, 3, 64, 64)
    if norms != "batchnorm":
        report = convert(model, x, fuse_act=norms != "iternorm")
        if "convnext" in name:
            assert not report.changed and all("LayerNorm" in row.module for row in report.left)
        else:
            assert len(report.changed) >= behind and not report.left
    train_one_step(model, x)

    model, x = model.double().eval(), x.double()
    folded = isonorm.fold(model)
    with torch.no_grad():
        torch.testing.assert_close(folded(x), model(x), rtol=1e-10, atol=1e-10)
    merged = len(folded.fold_report.which("merged"))
    depthwise = [fate.name for fate in folded.fold_report if "denser" in fate.note]
    assert merged >= behind or (norms != "batchnorm" and merged + len(depthwise) >= behind)


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
