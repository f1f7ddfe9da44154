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
from ..layers.buffers import wide_dtype

OWN = "isonorm"

#: What belongs to a norm in the other formats; anything else under its name is not expected there.
KEYS = {
    "weight", "bias", "running_mean", "running_var", "running_wm", "running_projection",
    "running_cov", "num_batches_tracked", "sw_mean_weight", "sw_var_weight",
}  # fmt: skip


#: The running statistics of all formats, and of them those that are a variance or covariance.
_STATISTICS = (
    "running_mean", "running_var", "running_wm", "running_projection", "running_cov",
    "running_whitening",
)  # fmt: skip
_VARIANCES = ("running_var", "running_cov")
#: What averaging in float32 may leave of symmetry and of a zero eigenvalue, relative to the trace.
_ROUNDING = 2e-5


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
    """Return the layer whose state this is. Its eps is not in it, and is taken to be ``eps``."""
    kind = format_of(state)
    if "running_mean" not in state:
        raise ValueError(f"it looks like {kind}, but has no running_mean")
    _check_shapes(state, num_features)
    mean = state["running_mean"]
    if kind == "torch's BatchNorm":
        layer, note = BatchNorm(num_features, eps=eps, dtype=wide_dtype(mean.dtype)), ""
        matrix = state["running_var"].reshape(-1, 1, 1)
    elif kind == "IterNorm-pytorch":
        matrix = state["running_wm"]
        layer = IterNorm(num_features, group_size=matrix.shape[-1], running="whitening", eps=eps)
        note = ""
    elif kind == "IterNorm-pytorch's DBN":
        size = state["running_projection"].shape[-1]
        groups = num_features // size
        mean, matrix = (
            mean.reshape(-1).repeat(groups),
            state["running_projection"].repeat(groups, 1, 1),
        )
        layer = DBN(num_features, group_size=size, running="whitening", eps=eps)
        note = f"one projection for all {groups} groups, which now go apart" if groups > 1 else ""
    else:
        matrix = state["running_cov"]
        layer = IterNorm(num_features, group_size=matrix.shape[-1], eps=eps)
        note = _share(state)
    _fill(layer, mean.reshape(-1), matrix, state)
    return Found(layer, kind, note)


def check_statistics(state: Mapping[str, Tensor]) -> None:
    """Raise ValueError if running statistics are not finite, or no data can have them.

    >>> check_statistics({"running_var": torch.tensor([1.0, -0.5])})
    Traceback (most recent call last):
    ...
    ValueError: its running_var holds -0.5, and no variance is negative
    """
    for name in filter(state.__contains__, _STATISTICS):
        value = state[name].detach()
        if not value.is_floating_point():
            raise ValueError(f"its {name} is of {value.dtype}, not of real floating-point numbers")
        wide = value.cpu().double()
        if not wide.isfinite().all():
            raise ValueError(f"its {name} holds NaN or infinite numbers")
        if name in _VARIANCES and value.numel():
            _check_variance(name, wide, _ROUNDING + torch.finfo(value.dtype).eps)
    count = state.get("num_batches_tracked")
    if count is not None and not count.is_complex() and not (count.double() >= 0).all():
        raise ValueError(
            f"its num_batches_tracked is {count.double().min():g}, and no count is negative"
        )


def _check_variance(name: str, value: Tensor, rounding: float) -> None:
    """Check variances, or covariance matrices (groups, d, d), up to rounding."""
    if value.dim() < 3 or value.shape[-1] == 1:
        if (value < 0).any():
            raise ValueError(f"its {name} holds {value.min():g}, and no variance is negative")
        return
    allowed = rounding * value.diagonal(dim1=-2, dim2=-1).abs().sum(-1)
    if ((value - value.mT).abs().amax((-2, -1)) > allowed).any():
        raise ValueError(f"its {name} is not symmetric, as every covariance is")
    smallest = torch.linalg.eigvalsh(value)[..., 0]
    if (smallest < -allowed).any():
        raise ValueError(
            f"its {name} has the eigenvalue {smallest.min():g}, and no covariance has one below 0"
        )


def _check_shapes(state: Mapping[str, Tensor], num_features: int) -> None:
    """Check what the layer is made from: square matrices, and nothing larger than its channels."""
    for name, dims in (("running_wm", 3), ("running_projection", 2), ("running_cov", 3)):
        value = state.get(name)
        if value is None:
            continue
        square = value.dim() == dims and value.shape[-1] == value.shape[-2] > 0
        if not square or max(value.shape) > num_features:
            raise ValueError(
                f"its {name} has shape {tuple(value.shape)}, but square matrices for at most "
                f"{num_features} channels were expected"
            )
    limits = {"running_mean": num_features, "running_var": num_features, "num_batches_tracked": 1}
    for name, most in limits.items():
        if name in state and not 1 <= state[name].numel() <= most:
            raise ValueError(
                f"its {name} has shape {tuple(state[name].shape)}, but the layer has "
                f"{num_features} channels"
            )
    for name in ("sw_mean_weight", "sw_var_weight"):
        value = state.get(name)
        if value is not None and not (
            value.dim() == 1 and len(value) > 1 and value.isfinite().all()
        ):
            raise ValueError(
                f"its {name} has shape {tuple(value.shape)} or values that are not finite, but a "
                "vector of finite weights was expected"
            )


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
    check_statistics(state)
    layer.running_mean.copy_(mean)
    running.copy_(matrix)
    if "num_batches_tracked" in state and layer.num_batches_tracked is not None:
        layer.num_batches_tracked.copy_(state["num_batches_tracked"].reshape(()))
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
