"""What a norm is in eval: a fixed affine map with what follows it, or the reason why it is not."""

from __future__ import annotations

import copy
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy as is_lazy_tensor

from ..activation import as_module
from ..layers.fixed import FixedMap
from ..layers.normalize import Normalize
from ..layers.running import RunningTransform
from .report import Refused

OWN_STATISTICS = "it normalizes every example by its own statistics"

MAYBE_NO_BATCH = "InstanceNorm's inputs may lack the batch axis, so its channels may be the first"


class EvalMap(NamedTuple):
    """act(A·x + c + residual), ``A`` (groups, g, g) and ``c`` (C,) in float64."""

    A: Tensor
    c: Tensor
    act: nn.Module | None
    dtype: torch.dtype  # of the layer's own parameters

    def as_module(self) -> FixedMap:
        """The map alone. Raises ``Refused`` where its dtype cannot hold it."""
        A, c = self.A.to(self.dtype), self.c.to(self.dtype)
        if not A.is_meta and not (A.isfinite().all() and c.isfinite().all()):
            raise Refused(f"its map would not be finite in {self.dtype}")
        return FixedMap(A, c, self.act)


def eval_map(norm: nn.Module) -> EvalMap:
    """The map of a norm in eval, derived in float64. Raises ``Refused`` where there is none."""
    if is_lazy(norm):
        raise Refused("it is lazy and has not seen an input yet")
    if isinstance(norm, RunningTransform):
        if not norm.area.spans_batch:
            raise Refused(OWN_STATISTICS)
        if norm.running_mean is not None:
            return _of_layer(norm)
    elif not isinstance(norm, _BatchNorm):
        tracks = getattr(norm, "running_mean", None) is not None
        raise Refused(MAYBE_NO_BATCH if tracks else OWN_STATISTICS)
    elif norm.running_mean is not None and norm.running_var is not None:
        return _of_batchnorm(norm, norm.running_mean, norm.running_var)
    raise Refused("it keeps no running statistics, so every batch is normalized by its own")


def _of_layer(norm: RunningTransform) -> EvalMap:
    if not isinstance(norm, Normalize) or not has_forward_of(norm, Normalize):
        raise Refused(own_forward(norm))
    own = next(norm.parameters(), norm.running_mean)
    assert own is not None
    A, c = copy.deepcopy(norm).to(_bench(own), torch.float64).inference_map()
    return EvalMap(A.detach(), c.detach(), as_module(norm.act), own.dtype)


def _of_batchnorm(norm: _BatchNorm, mean: Tensor, variance: Tensor) -> EvalMap:
    plain = has_forward_of(norm, _BatchNorm, nn.SyncBatchNorm)
    scale = (wide(variance) + norm.eps).rsqrt()
    if norm.weight is not None:
        scale = scale * wide(norm.weight)
    shift = -wide(mean) * scale
    if norm.bias is not None:
        shift = shift + wide(norm.bias)
    own = next(norm.parameters(), mean)
    act = None if plain else _together(*drop_and_act(norm))
    return EvalMap(scale.view(-1, 1, 1), shift, act, own.dtype)


def drop_and_act(norm: nn.Module) -> tuple[nn.Module, nn.Module]:
    """What timm's norm-and-activation layers run last, told by what they have, not by class: both,
    since a layer with an activation alone may well run it first.
    """
    drop, act = getattr(norm, "drop", None), getattr(norm, "act", None)
    if not isinstance(drop, nn.Module) or not isinstance(act, nn.Module):
        raise Refused(own_forward(norm))
    return drop, act


def _together(*modules: nn.Module) -> nn.Module | None:
    """Those that do something as one module; None where none does."""
    active = [module for module in modules if not isinstance(module, nn.Identity)]
    return nn.Sequential(*active) if len(active) > 1 else next(iter(active), None)


def is_lazy(module: nn.Module) -> bool:
    return any(is_lazy_tensor(t) for t in (*module.parameters(), *module.buffers()))


def has_forward_of(module: nn.Module, *classes: type[nn.Module]) -> bool:
    """Whether a module, perhaps of a subclass, computes what one of these classes computes."""
    known = type(module).forward in [kind.forward for kind in classes]
    return known and "forward" not in vars(module)


def own_forward(module: nn.Module) -> str:
    return f"{type(module).__name__} has a forward of its own, which may do something else"


def wide(tensor: Tensor) -> Tensor:
    """In float64, where it exists."""
    return tensor.detach().to(_bench(tensor), torch.float64)


def _bench(tensor: Tensor) -> torch.device:
    return torch.device("cpu") if tensor.device.type == "mps" else tensor.device
