"""An activation, and a file of each kind."""

from __future__ import annotations

import pytest
import torch

from tests.surgery.checkpoints.states import C


@pytest.fixture
def x():
    return torch.randn(6, C, 5, 5)


@pytest.fixture(params=["model.pt", "model.safetensors"])
def path(request, tmp_path):
    if request.param.endswith("safetensors"):
        pytest.importorskip("safetensors")
    return tmp_path / request.param
