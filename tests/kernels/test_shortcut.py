"""When layers leave the kernels' shortcut alone; what it computes is for ``shortcut_checks``."""

from __future__ import annotations

import sys

import torch

import isonorm
from isonorm import kernels


def test_a_gpu_without_triton_trains_by_the_general_way(monkeypatch) -> None:
    """As torch for Windows has it. Interpreting stands in for the GPU."""
    for name in [*sys.modules]:
        if name.startswith("isonorm.kernels.gpu"):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.setattr(kernels, "INTERPRETING", True)
    monkeypatch.setattr(kernels, "HAS_TRITON", False)
    layer = isonorm.IterNorm(4, group_size=2)
    layer(torch.randn(8, 4))
    assert int(layer.num_batches_tracked) == 1
