"""Models with norms, and states as other projects write them."""

from __future__ import annotations

import torch
from torch import nn

import isonorm

C, D = 12, 4  # channels, and channels a group


def affine() -> dict[str, torch.Tensor]:
    return {"weight": torch.randn(1, C, 1, 1), "bias": torch.randn(1, C, 1, 1)}


def symmetric(*shape: int) -> torch.Tensor:
    m = torch.randn(shape)
    return m @ m.mT / shape[-1] + 0.5 * torch.eye(shape[-1])


def model_with(norm: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Identity(), norm).eval()


def in_model(state: dict) -> dict:
    return {f"1.{name}": value for name, value in state.items()}


def itn_state() -> dict:
    return {"running_mean": torch.zeros(3, D, 1), "running_wm": symmetric(3, D, D)} | affine()


def network() -> nn.Module:
    norm = isonorm.IterNorm(8, group_size=3)
    return nn.Sequential(nn.Linear(8, 8), norm, nn.Linear(8, 8), norm, nn.BatchNorm1d(8))


class Holder(nn.Module):
    """A model whose only child is called as wrappers call theirs."""

    def __init__(self):
        super().__init__()
        self.module = nn.Sequential(nn.Conv2d(C, 4, 1), isonorm.IterNorm(4))
