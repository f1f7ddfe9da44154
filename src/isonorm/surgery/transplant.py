"""One norm in the place of another: everything a layer has besides its mathematics."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .. import checks
from ..activation import MODULES, as_module
from ..layers import Normalize
from .freezing import freeze_one, is_frozen
from .maps import own_forward
from .report import Refused
from .sources import CHANNEL_NORMS, CHANNELS_LAST, Source, as_target, channels_of, plain_forward
from .tree import KeepsKeys
from .warmstart import Start, warm_start

#: The activations that a layer can apply itself, by exact class.
FUSIBLE = {module: name for name, module in MODULES.items()}


class NormDropAct(KeepsKeys, nn.Sequential):
    """A norm with the drop and activation that were part of the module it replaces."""

    wraps = "norm"

    def __init__(self, norm: nn.Module, drop: nn.Module | None, act: nn.Module | None) -> None:
        super().__init__()
        for name, module in (("norm", norm), ("drop", drop), ("act", act)):
            if module is not None:
                self.add_module(name, module)


class Graft(NamedTuple):
    """A module to put in another's place, with the values its parameters will take then."""

    module: nn.Module
    norm: nn.Module
    writes: list[tuple[Tensor, Tensor]]
    start: Start


def graft(module: nn.Module, source: Source, norm: nn.Module, *, fuse_act: bool = False) -> Graft:
    """Makes a new norm continue an old module. The old one is not touched: ``writes`` are for
    later, since parameters stay the same objects, which optimizers know.
    """
    _check_layout(source.norm, norm)
    drop, act = source.drop, source.act
    asked, kept = (acts(layer) for layer in (norm, source.norm))
    new_act = ""
    if kept:
        if not isinstance(norm, Normalize):
            act = as_module(kept)
        else:
            norm.act = kept
            new_act = f"act={asked!r} became {kept!r}, as it was" if asked not in ("", kept) else ""
    elif asked:
        new_act = f"it applies {asked} now"
    elif fuse_act and isinstance(norm, Normalize) and fusible(act) and does_nothing(drop):
        assert act is not None
        norm.act, drop, act = FUSIBLE[type(act)], None, None

    if not isinstance(norm, Normalize | CHANNEL_NORMS):
        start = Start(_affine_of(source.norm, norm), None, "nothing is known of its statistics")
    else:
        overridden = _take_options(source.norm, norm)
        new = as_target(norm)
        start = warm_start(source.norm, new)
        if not all(value.isfinite().all() for value in start.values.values() if not value.is_meta):
            raise Refused("its parameters or statistics are not finite")
        own = "" if plain_forward(norm) else own_forward(norm)
        note = "; ".join(filter(None, (own, start.note, new_act, overridden)))
        compared = not own and (kept or not asked)
        start = start._replace(note=note, deviation=start.deviation if compared else None)
        _write_back(new, norm)
    writes = _share_parameters(source.norm, norm, start.values)

    whole = norm if drop is None and act is None else NormDropAct(norm, drop, act)
    _take_hooks(module, whole)
    norm.train(module.training)
    whole.training = module.training
    if is_frozen(module):
        freeze_one(norm, like=module)
    return Graft(whole, norm, writes, start)


def _check_layout(old: Normalize, norm: nn.Module) -> None:
    if isinstance(norm, nn.LayerNorm):
        raise TypeError(CHANNELS_LAST)
    channels = channels_of(norm)
    if channels not in (None, old.num_features):
        raise ValueError(
            f"the new layer is made for {channels} channels, but the old one has "
            f"{old.num_features}: pass on the number that the factory is called with."
        )


def acts(norm: nn.Module) -> str:
    """The activation that one of this package's layers applies, or nothing."""
    act = norm.act if isinstance(norm, Normalize) else None
    return "" if act in (None, "identity") else act


def fusible(act: nn.Module | None) -> bool:
    return act is not None and type(act) in FUSIBLE and not has_any_hooks(act)


def does_nothing(drop: nn.Module | None) -> bool:
    return drop is None or (type(drop) is nn.Identity and not has_any_hooks(drop))


def _take_options(old: Normalize, norm: Any) -> str:
    """eps, momentum, tracking and synchronization of the old layer; says what that overrides."""
    overridden = []

    def take(name: str, default: float) -> None:
        chosen, carried = getattr(norm, name), getattr(old, name)
        if chosen not in (default, carried):
            overridden.append(f"{name}={chosen} became {carried}, as it was")
        setattr(norm, name, carried)

    take("eps", 1e-5)
    if old.area.spans_batch and as_target(norm).area.spans_batch:
        take("momentum", 0.1)
        if not old.track_running_stats:  # perhaps switched off for a while
            norm.track_running_stats = False
        if old.running_mean is None:
            norm.track_running_stats = False
            for name in norm._buffers:
                norm._buffers[name] = None
        if isinstance(norm, Normalize):
            norm.check_finite = norm.check_finite or old.check_finite
            if old.process_group and not norm.process_group:
                try:
                    checks.check_synchronizable(norm.area, norm.operation)
                except ValueError as error:
                    raise Refused(f"it is synchronized, and {error}") from error
                norm.process_group = old.process_group
        elif old.process_group and not isinstance(norm, nn.SyncBatchNorm):
            overridden.append("it is no longer synchronized")
    return "; ".join(overridden)


def _write_back(new: Normalize, norm: Any) -> None:
    """Statistics that were read from one of torch's layers, and written to since."""
    if new is norm or new.running_mean is None or new.running_cov is None:
        return
    with torch.no_grad():
        norm.running_mean.copy_(new.running_mean)
        norm.running_var.copy_(new.running_cov.view(-1))


def _affine_of(old: Normalize, norm: nn.Module) -> dict[str, Tensor]:
    """γ and β for a module of which nothing is known but that it has such."""
    found = {name: old._parameters.get(name) for name in ("weight", "bias")}
    return {
        name: value
        for name, value in found.items()
        if value is not None and getattr(getattr(norm, name, None), "shape", None) == value.shape
    }


def _share_parameters(
    old: Normalize, norm: nn.Module, values: dict[str, Tensor]
) -> list[tuple[Tensor, Tensor]]:
    """Gives the new norm the old one's parameters themselves, and lists what to write to them.

    A parameter that the old layer did not have only makes up for the new root: it does not learn.
    One of another shape is a new one, which learns if the old one did.
    """
    writes = []
    for name, value in values.items():
        ours, theirs = getattr(norm, name), old._parameters.get(name)
        if theirs is None or theirs.shape != value.shape:
            before = old.recovery.gain if name == "color" else None
            learned = before if theirs is None else theirs
            ours.requires_grad_(learned is not None and learned.requires_grad)
            with torch.no_grad():
                ours.copy_(value)
            continue
        setattr(norm, name, theirs)
        if value is not theirs:
            writes.append((theirs, value))
    return writes


_HOOKS = (
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
    "_backward_hooks",
    "_backward_pre_hooks",
)


def has_any_hooks(module: nn.Module) -> bool:
    return any(getattr(module, name, None) for name in _HOOKS)


def _take_hooks(old: nn.Module, new: nn.Module) -> None:
    """The dictionaries themselves, so that the handles people hold still remove their hooks."""
    if not has_any_hooks(old):
        return
    for name in _HOOKS:
        setattr(new, name, getattr(old, name))
    new._is_full_backward_hook = old._is_full_backward_hook
