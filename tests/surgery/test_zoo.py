"""torchvision's and timm's networks, where those packages are installed and import beside torch."""

from __future__ import annotations

import importlib

import pytest
import torch
from torch import nn

import isonorm

NETWORKS = [
    *(
        ("torchvision.models", name)
        for name in ("resnet50", "efficientnet_b0", "convnext_tiny", "mobilenet_v3_small")
    ),
    *(
        ("timm.models", name)
        for name in (
            "resnet50", "resnetv2_50", "efficientnet_b0", "convnext_tiny", "mobilenetv3_small_100",
        )
    ),
]  # fmt: skip


def make(package: str, name: str) -> nn.Module:
    try:
        module = importlib.import_module(package)
    except Exception as error:  # torchvision built for another torch fails in its own ways
        pytest.skip(f"{package} does not import here: {type(error).__name__}: {error}")
    return getattr(module, name)()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("fuse_act", [False, True], ids=["apart", "fused"])
@pytest.mark.parametrize(("package", "name"), NETWORKS)
def test_converts_and_trains(package, name, fuse_act, relative_error):
    model, x = make(package, name), torch.randn(4, 3, 64, 64)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_var.uniform_(0.5, 2)
            nn.init.uniform_(module.weight, 0.5, 1.5)
    with torch.no_grad():
        expected = model.eval()(x)
        report = isonorm.convert(model, "iternorm", fuse_act=fuse_act)
        assert relative_error(model(x), expected) < 1e-4
    assert not any(isinstance(m, nn.BatchNorm2d) for m in model.modules())
    assert all(change.same for change in report.changed)
    if "convnext" in name:
        assert not report.changed and all("LayerNorm" in row.module for row in report.left)
    else:
        assert report.changed and not report.left
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    y = model.train()(x)
    nn.functional.cross_entropy(y, torch.arange(4)).backward()
    optimizer.step()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
    assert model.eval()(x).isfinite().all()
