"""What a source norm is, and what is read from it: any norm, in this package's own terms.

torch's BatchNorm is batch(1) × standardize × affine, its InstanceNorm instance(1), its GroupNorm
group(k). Read so, a conversion is from one ``Normalize`` to another, whoever made the layers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.utils.parametrize import is_parametrized

from .. import area as areas
from .. import registry
from ..layers import Normalize
from .maps import drop_and_act, has_forward_of, is_lazy, own_forward
from .report import Refused, class_name
from .tree import Hung

CHANNELS_LAST = (
    "the channels of torch's LayerNorm are last, not in dimension 1: choose isonorm.LayerNorm."
)
#: torch's norms whose channels are in dimension 1.
CHANNEL_NORMS = _BatchNorm | _InstanceNorm | nn.GroupNorm


class Source(NamedTuple):
    """A norm in this package's terms, and the modules that act behind it inside the same module,
    as in timm's BatchNormAct2d.
    """

    norm: Normalize
    drop: nn.Module | None = None
    act: nn.Module | None = None


def channels_of(norm: nn.Module) -> int | None:
    """The number of channels a norm is made for; None where it does not tell."""
    return getattr(norm, "num_features", getattr(norm, "num_channels", None))


def looks_like_a_norm(module: nn.Module) -> bool:
    """Whether a report should mention a module, be it converted or not."""
    if isinstance(module, Normalize | CHANNEL_NORMS | nn.LayerNorm) or registry.has(type(module)):
        return True
    return "norm" in class_name(module).lower() and next(module.children(), None) is None


def read(module: nn.Module) -> Source:
    """The module as a source, sharing its parameters; ``Refused`` says why it is none.

    >>> read(nn.BatchNorm2d(3)).norm
    Normalize(3, area=batch(group_size=1), operation=standardize(p=2), recovery='affine', eps=1e-05, momentum=0.1)
    """  # noqa: E501
    _check_plain_parameters(module)
    if isinstance(module, Normalize):
        if not has_forward_of(module, Normalize):
            raise Refused(own_forward(module))
        return Source(module)
    if isinstance(module, nn.LayerNorm):
        raise Refused(_why_no_layer_norm(module))
    _check_readable(module)
    drop, act = _children_behind(module)
    return Source(_as_normalize(module), drop, act)


def _check_readable(module: nn.Module) -> None:
    if is_lazy(module):
        raise Refused("it is lazy: pass a batch through the model first, so that it has channels")
    if isinstance(module, torch.jit.ScriptModule):
        raise Refused("it is scripted: convert the module it was made from, then script that")
    if not isinstance(module, CHANNEL_NORMS):
        raise Refused(f"{type(module).__name__} is not a norm that can be read")


def _check_plain_parameters(module: nn.Module) -> None:
    if is_parametrized(module):
        raise Refused("its parameters are parametrized: remove the parametrizations first")


def as_target(norm: Any) -> Normalize:
    """A new norm in this package's terms: its state, whatever a forward of its own makes of it."""
    _check_plain_parameters(norm)
    if isinstance(norm, Normalize):
        return norm
    _check_readable(norm)
    return _as_normalize(norm)


def plain_forward(norm: nn.Module) -> bool:
    """Whether a norm computes what isonorm's or torch's class of it does, and nothing else."""
    return has_forward_of(
        norm, Normalize, _BatchNorm, nn.SyncBatchNorm, _InstanceNorm, nn.GroupNorm
    )


def _why_no_layer_norm(module: nn.LayerNorm) -> str:
    if has_forward_of(module, nn.LayerNorm):
        return "its channels are last, not in dimension 1"
    return f"{type(module).__name__} is a LayerNorm whose forward has a layout of its own"


def _children_behind(module: nn.Module) -> tuple[nn.Module | None, nn.Module | None]:
    """(drop, act) of timm's norm-and-activation layers; nothing behind torch's own."""
    if plain_forward(module):
        return None, None
    return drop_and_act(module)


def _as_normalize(module: Any) -> Normalize:
    """One of torch's norms as a ``Normalize`` with the same parameters and statistics."""
    mean, variance = (module._buffers.get(name) for name in ("running_mean", "running_var"))
    if (mean is None) != (variance is None):
        raise Refused("only one of running_mean and running_var is None: torch's layer raises, too")
    tracks = mean is not None
    if isinstance(module, nn.GroupNorm):
        channels, area = module.num_channels, areas.group(module.num_groups)
    else:
        # an InstanceNorm that keeps statistics is BatchNorm in eval
        batch = isinstance(module, _BatchNorm) or tracks
        channels, area = module.num_features, areas.batch(1) if batch else areas.instance(1)
    options: dict[str, Any] = {}
    if area.spans_batch:
        options = {"momentum": module.momentum, "track_running_stats": tracks}
    if isinstance(module, nn.SyncBatchNorm):
        options["process_group"] = module.process_group or "world"
    layer = Normalize(channels, area=area, eps=module.eps, **place_of(module), **options)
    layer.weight, layer.bias = module.weight, module.bias
    if tracks:
        assert mean is not None and variance is not None
        layer.track_running_stats = bool(module.track_running_stats)
        wide = torch.float64 if mean.dtype == torch.float64 else torch.float32
        layer.running_mean = mean.to(wide)
        layer.running_cov = variance.to(wide).view(-1, 1, 1)
        layer.num_batches_tracked = module._buffers["num_batches_tracked"]
    return layer.train(module.training)


def place_at(hung: Hung, model: nn.Module) -> dict[str, Any]:
    """Device and dtype of a module or, if it has no tensors, of those around it."""
    return place_of(hung.module) or place_of(hung.places[0].parent) or place_of(model)


@contextmanager
def at_home(hung: Hung, model: nn.Module) -> Iterator[None]:
    """Make new tensors on the device of a module, whatever torch's default device is."""
    device = place_at(hung, model).get("device")
    with nullcontext() if device is None else device:
        yield


def place_of(module: nn.Module) -> dict[str, Any]:
    """Device and dtype of a module, as far as it has tensors to tell them by."""
    tensors = (*module.parameters(), *module.buffers())
    floating = [t for t in tensors if t.is_floating_point()]
    return {"device": floating[0].device, "dtype": floating[0].dtype} if floating else {}
