"""The public formats of normalization layers, read as layers of this package.

Given a layer's part of a state dict, ``read_layer`` makes the layer that it is the state of:

| format | told by | read as |
|---|---|---|
| torch's BatchNorm | running_var | BatchNorm |
| IterNorm-pytorch | running_wm (g, d, d), running_mean (g, d, 1) | IterNorm, averaging W |
| its DBN | running_projection (d, d), running_mean (d, 1), for all groups | DBN, averaging W |
| Switchable Whitening | running_cov (g, d, d), running_mean (g, d, 1) | IterNorm |
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..layers import DBN, BatchNorm, IterNorm, Normalize

OWN = "isonorm"

#: What belongs to a norm in the other formats; anything else under its name is not expected there.
KEYS = {
    "weight", "bias", "running_mean", "running_var", "running_wm", "running_projection",
    "running_cov", "num_batches_tracked", "sw_mean_weight", "sw_var_weight",
}  # fmt: skip


class Found(NamedTuple):
    """A layer from a file, the format it was in, and what could not come with it."""

    layer: Normalize
    format: str
    note: str = ""


def format_of(state: Mapping[str, Tensor]) -> str:
    """The format of a layer's state.

    >>> format_of({"weight": torch.ones(3), "running_var": torch.ones(3)})
    "torch's BatchNorm"
    """
    if "running_var" in state:
        return "torch's BatchNorm"
    if "running_wm" in state:
        return "IterNorm-pytorch"
    if "running_projection" in state:
        return "IterNorm-pytorch's DBN"
    if "running_cov" in state and state.get("running_mean", state["running_cov"]).dim() == 3:
        return "Switchable Whitening"
    return OWN


def read_layer(state: Mapping[str, Tensor], num_features: int, eps: float) -> Found:
    """The layer whose state this is. Its eps is not in it, and is taken to be the given one."""
    kind = format_of(state)
    if "running_mean" not in state:
        raise ValueError(f"it looks like {kind}, but has no running_mean")
    mean = state["running_mean"]
    if kind == "torch's BatchNorm":
        layer, note = BatchNorm(num_features, eps=eps, dtype=mean.dtype), ""
        matrix = state["running_var"].view(-1, 1, 1)
    elif kind == "IterNorm-pytorch":
        matrix = state["running_wm"]
        layer = IterNorm(num_features, group_size=matrix.shape[-1], running="whitening", eps=eps)
        note = ""
    elif kind == "IterNorm-pytorch's DBN":
        size = state["running_projection"].shape[-1]
        groups = num_features // size
        mean, matrix = mean.repeat(groups, 1), state["running_projection"].repeat(groups, 1, 1)
        layer = DBN(num_features, group_size=size, running="whitening", eps=eps)
        note = f"one projection for all {groups} groups, which now go apart" if groups > 1 else ""
    else:
        matrix = state["running_cov"]
        layer = IterNorm(num_features, group_size=matrix.shape[-1], eps=eps)
        note = _share(state)
    _fill(layer, mean.reshape(-1), matrix, state)
    return Found(layer, kind, note)


def _share(state: Mapping[str, Tensor]) -> str:
    """What of Switchable Whitening is not batch whitening."""
    if "sw_mean_weight" not in state:
        return ""
    mean = state["sw_mean_weight"].softmax(0)[0]
    cov = state.get("sw_var_weight", state["sw_mean_weight"]).softmax(0)[0]
    return (
        f"batch whitening alone, whose share was {float(mean):.0%} of the mean and "
        f"{float(cov):.0%} of the covariance"
    )


@torch.no_grad()
def _fill(layer: Normalize, mean: Tensor, matrix: Tensor, state: Mapping[str, Tensor]) -> None:
    running = layer.running_cov if layer.running == "covariance" else layer.running_whitening
    assert layer.running_mean is not None and running is not None
    for name, ours, theirs in (("mean", layer.running_mean, mean), ("matrix", running, matrix)):
        if ours.shape != theirs.shape:
            raise ValueError(
                f"its running {name} has shape {tuple(theirs.shape)}, but the layer has "
                f"{layer.num_features} channels, which makes {tuple(ours.shape)}"
            )
        ours.copy_(theirs)
    if "num_batches_tracked" in state and layer.num_batches_tracked is not None:
        layer.num_batches_tracked.copy_(state["num_batches_tracked"])
    for name in ("weight", "bias"):
        value = state.get(name)
        if value is not None and value.numel() != layer.num_features:
            raise ValueError(
                f"its {name} has {value.numel()} numbers, but the layer has {layer.num_features} "
                "channels"
            )
        flat = None if value is None else nn.Parameter(value.detach().reshape(-1).clone())
        setattr(layer, name, flat)
    layer.eval()
