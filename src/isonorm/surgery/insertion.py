"""``insert``: a norm in front of a module that had none."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from .convert import Factory, target_factory
from .sources import CHANNELS_LAST, at_home, channels_of, place_at
from .tree import (
    KEPT_ASIDE,
    Changes,
    KeepsKeys,
    check_changeable,
    kept_aside,
    modules_of,
    nearest,
)


class Preceded(KeepsKeys):
    """A module with a norm in front of it.

    ``positions`` unflattens an input (N, C·positions), as a classifier behind ``flatten`` gets it,
    for the norm. A state dict written before the norm was there loads: its keys move to ``module``.
    """

    wraps = "module"

    def __init__(self, norm: nn.Module, module: nn.Module, positions: int = 1) -> None:
        super().__init__()
        self.norm, self.module, self.positions = norm, module, positions

    def forward(self, input: Tensor, *args, **options):
        if self.positions > 1:
            input = self.norm(input.unflatten(1, (-1, self.positions))).flatten(1)
        else:
            input = self.norm(input)
        return self.module(input, *args, **options)


def insert(model: nn.Module, name: str, norm: str | nn.Module | Factory) -> Preceded:
    """Puts a norm in front of the module called ``name``, in place: before the classifier it is the
    papers' "DF", decorrelated features.

    ``norm`` is a layer, or what ``convert`` takes: a name, class or factory, then made for as many
    channels as the module takes. Where a linear layer's inputs are flattened from fewer channels,
    make the layer for those. What is returned stands where the module stood, and holds it: to undo,
    put ``.module`` back.

    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    >>> insert(model, "1", "dbn").norm
    DBN(64, group_size=16, method='zca', affine=True, eps=1e-05, momentum=0.1)
    """
    check_changeable(model)
    modules = {found: hung for hung in modules_of(model) for found in hung.names}
    if name not in modules:
        raise ValueError(
            f"the model has no module called {name!r}; {nearest(str(name), list(modules))}."
        )
    module = modules[name].module
    if any(isinstance(place.parent, torch.jit.ScriptModule) for place in modules[name].places):
        raise ValueError(
            f"nothing can be put in front of {name!r}: it lies inside a scripted module."
        )
    if module in kept_aside(model):
        raise ValueError(f"nothing can be put in front of {name!r}: {KEPT_ASIDE}.")
    channels = _channels_in(module)
    if not isinstance(norm, nn.Module):
        factory = target_factory(norm)
        if channels is None:
            raise ValueError(
                f"how many channels {type(module).__name__} {name!r} takes is not known: pass a "
                "layer made for them."
            )
        with torch.inference_mode(False), at_home(modules[name], model):
            norm = factory(channels)
    positions = _positions(norm, module, channels, name)
    norm.to(**place_at(modules[name], model)).train(module.training)
    preceded = Preceded(norm, module, positions)
    preceded.training = module.training
    with Changes() as changes:
        changes.put(modules[name], preceded)
    return preceded


def _channels_in(module: nn.Module) -> int | None:
    if isinstance(module, nn.Linear):
        return module.in_features
    return module.in_channels if isinstance(module, _ConvNd) else None


def _positions(norm: nn.Module, module: nn.Module, channels: int | None, name: str) -> int:
    """How many positions of each of the norm's channels a linear layer's input holds."""
    if isinstance(norm, nn.LayerNorm) and isinstance(module, _ConvNd):
        raise TypeError(CHANNELS_LAST)
    made_for = channels_of(norm)
    if channels is None or made_for in (None, channels):
        return 1
    if isinstance(module, nn.Linear) and isinstance(made_for, int) and channels % made_for == 0:
        return channels // made_for
    raise ValueError(
        f"{type(module).__name__} {name!r} takes {channels} channels, but the norm is made for "
        f"{made_for}: make it for {channels}"
        + (", or for a divisor, if they are flattened." if isinstance(module, nn.Linear) else ".")
    )
