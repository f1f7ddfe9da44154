"""Checkpoints: into a model from any public format, and out of it in torch's or safetensors'."""

from __future__ import annotations

import copy
import os
import reprlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from ..layers import Normalize
from . import files
from .formats import KEYS, OWN, check_statistics, format_of, read_layer
from .report import is_same, short, table
from .sources import CHANNEL_NORMS
from .tree import move_keys, unwrapped
from .warmstart import warm_start

#: Where training scripts keep a state dict among other things.
_NESTED = ("state_dict", "model_state_dict", "model", "net")
#: What wrappers put before every name.
_WRAPPERS = ("module.", "_orig_mod.")
_AVERAGED = "n_averaged"
#: What no layer of torch keeps: without one of them a layer's version may be torch's.
_OWN_STATISTICS = {"running_cov", "running_whitening"}


class Loaded(NamedTuple):
    """A norm that was loaded: from which format, and what came of it."""

    name: str
    layer: str
    format: str
    deviation: float | None
    note: str


class Loading:
    """What ``load_checkpoint`` did: ``norms``, and with ``strict=False`` also keys ``missing`` from
    the file and ``unexpected`` in it.
    """

    def __init__(self, norms: list[Loaded], missing: list[str], unexpected: list[str]) -> None:
        self.norms, self.missing, self.unexpected = norms, missing, unexpected

    def __str__(self) -> str:
        rows = [(n.name or "(model)", n.format, "→", n.layer, n.note) for n in self.norms]
        first = "no norms of isonorm among what was loaded."
        if rows:
            first = f"{len(rows)} norm{'' if len(rows) == 1 else 's'} loaded."
        lines = [first, *table(rows)]
        for what in ("missing", "unexpected"):
            if getattr(self, what):
                lines.append(f"{what}: {_listed(getattr(self, what))}")
        return "\n".join(lines)


def load_checkpoint(
    model: nn.Module, source: str | os.PathLike | Mapping[str, Any], *, strict: bool = True
) -> Loading:
    """Load a file or a state dict into a model, whichever format its norms are in.

    >>> saved = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8)).state_dict()
    >>> import isonorm
    >>> model = nn.Sequential(nn.Linear(3, 8), isonorm.IterNorm(8))
    >>> print(load_checkpoint(model, saved))
    1 norm loaded.
      1  torch's BatchNorm  →  IterNorm(8)  same in eval

    Recognizes torch's BatchNorm, IterNorm-pytorch, its DBN, Switchable Whitening and isonorm's own
    layers; a layer of another kind than the file's is started from it as ``convert`` does. Files
    are read as safetensors where they are called so, else by ``torch.load(weights_only=True)``.
    ``strict`` refuses missing and unexpected keys, and norms that would not compute in eval what
    they did in the file. Running statistics that are not finite, and covariances that are not
    symmetric and positive semi-definite, are always refused. Either everything is loaded or
    nothing.
    """
    model = unwrapped(model)
    expected = model.state_dict()
    state, versions = _state_of(source, {*expected})
    move_keys(model, state)
    _check_values(expected, state)
    norms = []
    for name, layer in model.named_modules(remove_duplicate=False):
        if isinstance(layer, Normalize | CHANNEL_NORMS):
            norms += _take_norm(name, layer, state, versions)
    missing = [key for key in expected if key not in state]
    unexpected = [key for key in state if key not in expected]
    for key in expected.keys() & state.keys():
        _check_tensor(key, state[key], expected[key])
    if strict:
        _check_strictly(missing, unexpected, norms)
    _write(model, state)
    return Loading(norms, missing, unexpected)


def save_checkpoint(model: nn.Module, path: str | os.PathLike) -> None:
    """Write a model's state dict: as safetensors to a path that ends so, else by ``torch.save``.

    All of it or nothing: an older file stays until the new one is complete. Both kinds keep the
    versions of the model's layers.
    """
    files.write(model.state_dict(), Path(path))


# --- reading --------------------------------------------------------------------------------------


def _state_of(
    source: str | os.PathLike | Mapping, expected: set[str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the tensors by name, as a new dict, and what the file says of each layer's version."""
    if not isinstance(source, Mapping | str | os.PathLike):
        raise TypeError(f"a checkpoint is a path or a state dict; got {type(source).__name__}.")
    found = source if isinstance(source, Mapping) else files.read(Path(source))
    for key in _NESTED:
        if isinstance(found.get(key), Mapping):
            found = found[key]
            break
    versions = _versions_of(found)
    state = {str(key): value for key, value in found.items()}
    if _AVERAGED in state and _AVERAGED not in expected:  # of torch's AveragedModel
        del state[_AVERAGED]
    for wrapper in _WRAPPERS * 2:  # in either order
        if state and all(key.startswith(wrapper) for key in state):
            bare = {key.removeprefix(wrapper): value for key, value in state.items()}
            if len(expected & state.keys()) > len(expected & bare.keys()):
                continue  # the model's own child is called so
            state = bare
            versions = {key.removeprefix(wrapper): value for key, value in versions.items()}
    if not any(isinstance(value, Tensor) for value in state.values()):
        raise ValueError(
            f"the checkpoint holds no tensors by name; its keys are {_listed(found)}: pass the "
            "state dict inside it."
        )
    return state, versions


def _versions_of(found: Mapping) -> dict[str, Mapping[str, Any]]:
    """Return what a state dict says of its layers' versions, by layer."""
    versions = getattr(found, "_metadata", {})
    kinds = {"version": int | None, "root_in_eval": str | None}
    if isinstance(versions, Mapping) and all(
        isinstance(name, str)
        and isinstance(told, Mapping)
        and all(isinstance(told.get(key), kind) for key, kind in kinds.items())
        for name, told in versions.items()
    ):
        return dict(versions)
    raise ValueError(
        "the checkpoint's versions of layers are damaged: expected a table for each layer, with "
        f"its version as a number; got {_brief(versions)}: save the checkpoint again, or remove "
        "them from it."
    )


def _listed(keys: Iterable[Any], most: int = 10**6) -> str:
    """Return keys in one line that can be printed."""
    named = [str(key) if str(key).isprintable() else ascii(key) for key in keys]
    more = f" and {len(named) - most} more" if len(named) > most else ""
    return ", ".join(named[:most]) + more


def _brief(value: Any) -> str:
    """Return a value as the short end of a line, whatever it is."""
    return " ".join(reprlib.repr(value).split())


# --- translating ----------------------------------------------------------------------------------


def _translate(
    name: str, layer: Normalize, part: dict[str, Tensor], told: Mapping[str, Any]
) -> tuple[Loaded, dict[str, Tensor]]:
    """A layer's state in the layer's own terms."""
    if format_of(part) == OWN:
        was = told.get("root_in_eval")
        if was in (None, layer.root_in_eval) or layer.root_in_eval is None:
            return Loaded(name, short(layer), OWN, 0.0, ""), part
        note = f"differs in eval: its root was {_listed([was])} and is {layer.root_in_eval}"
        return Loaded(name, short(layer), OWN, None, note), part
    found = read_layer(part, layer.num_features, layer.eps)
    new = copy.deepcopy(layer).to("cpu")
    start = warm_start(found.layer, new)
    own = new.state_dict() | {key: value.detach() for key, value in start.values.items()}
    same = is_same(start.deviation)
    note = "same in eval" if same else f"differs in eval: {start.note}"
    note = "; ".join(filter(None, (note, found.note)))
    return Loaded(name, short(layer), found.format, start.deviation, note), own


def _take_norm(
    name: str, layer: Any, state: dict[str, Any], versions: Mapping[str, Mapping[str, Any]]
) -> list[Loaded]:
    """Check a norm's part of ``state`` and put it in the layer's own terms; return its row, if it
    is one of isonorm's.
    """
    prefix = f"{name}." if name else ""
    part = {key.removeprefix(prefix): state[key] for key in state if key.startswith(prefix)}
    part = {key: value for key, value in part.items() if isinstance(value, Tensor)}
    if not part:
        return []
    kind = format_of(part) if isinstance(layer, Normalize) else OWN
    if kind == OWN:
        _check_own(name, layer, prefix, part)
    if not isinstance(layer, Normalize):
        return []
    told = versions.get(name, {})
    if kind == OWN and part.keys() & _OWN_STATISTICS:
        _check_version(name, layer, told)
    try:
        loaded, own = _translate(name, layer, part, told)
    except (ValueError, RuntimeError) as error:
        raise _refusal(name, error) from error
    for key in KEYS & part.keys() - own.keys():
        del state[prefix + key]
    state |= {prefix + key: value for key, value in own.items()}
    return [loaded]


def _check_own(name: str, layer: nn.Module, prefix: str, part: Mapping[str, Tensor]) -> None:
    """Check the shapes, then the running statistics, of a layer's state in its own format."""
    buffers = {key: buffer for key, buffer in layer._buffers.items() if buffer is not None}
    known = {key: part[key] for key in part.keys() & buffers.keys()}
    for key, value in known.items():
        _check_shape(prefix + key, value, buffers[key])
    if isinstance(layer, Normalize) and layer.running_mean is not None:
        pair = ("running_mean", layer._running_name)
        if len(lacking := [key for key in pair if key not in part]) == 1:
            there = next(key for key in pair if key in part)
            raise _refusal(name, ValueError(f"it has a {there} without a {lacking[0]}"))
    try:
        check_statistics(known)
    except ValueError as error:
        raise _refusal(name, error) from error


def _refusal(name: str, error: Exception) -> ValueError:
    reason = (str(error) or type(error).__name__).partition("\n")[0].rstrip(".")
    return ValueError(f"cannot load {name!r} from the checkpoint: {reason}.")


def _check_version(name: str, layer: Normalize, told: Mapping[str, Any]) -> None:
    version = told.get("version") or 0
    if version > layer._version:
        raise ValueError(
            f"{name!r} was saved in version {version} of its layer's format, which is newer than "
            f"{layer._version}, the one this isonorm reads: update isonorm."
        )


# --- checking and writing -------------------------------------------------------------------------


def _check_values(expected: Mapping[str, Any], state: Mapping[str, Any]) -> None:
    """Raise ValueError if a tensor is not one, or has no values, on either side."""
    for key, value in expected.items():
        if isinstance(value, Tensor) and value.is_meta:
            raise ValueError(
                f"{key!r} of the model is on the meta device, where values get lost: give it "
                "memory first, model.to_empty(device=…)."
            )
        if is_lazy(value):
            raise ValueError(
                f"{key!r} of the model is lazy: pass a batch through the model first, so that it "
                "has a shape."
            )
    for key, value in state.items():
        like = expected.get(key)
        wanted = isinstance(like, Tensor) or key.rpartition(".")[2] in KEYS
        if not wanted:
            continue
        if not isinstance(value, Tensor):
            raise ValueError(f"{key!r} in the checkpoint is not a tensor but {_brief(value)}.")
        if value.is_meta:
            raise ValueError(f"{key!r} is on the meta device in the checkpoint: it has no values.")
        if (found := _layout(value)) != (needed := _layout(like)):
            raise ValueError(
                f"{key!r} is {found} in the checkpoint and {needed} in the model: convert it first."
            )
        if value.is_complex() and not (isinstance(like, Tensor) and like.is_complex()):
            raise ValueError(
                f"{key!r} is of {value.dtype} in the checkpoint, and the model's numbers are real: "
                "convert it first."
            )


def _layout(value: Any) -> str:
    """Return how a tensor keeps its numbers, in words."""
    if not isinstance(value, Tensor):
        return "a dense tensor"
    if value.is_nested:
        return "a nested tensor"
    if value.is_quantized:
        return f"a quantized tensor ({value.dtype})"
    return "a dense tensor" if value.layout == torch.strided else f"a tensor of {value.layout}"


def _check_shape(key: str, value: Tensor, like: Tensor) -> None:
    if value.shape != like.shape:
        raise ValueError(
            f"{key!r} has shape {tuple(value.shape)} in the checkpoint and "
            f"{tuple(like.shape)} in the model: build the model as it was."
        )


def _check_tensor(key: str, value: Any, like: Any) -> None:
    """Raise ValueError if a tensor of the model cannot hold this one's numbers."""
    if not isinstance(value, Tensor) or not isinstance(like, Tensor):
        return
    _check_shape(key, value, like)
    if value.dtype == like.dtype or value.is_quantized or value.layout != torch.strided:
        return
    value = value.detach()
    if torch.can_cast(value.dtype, like.dtype):
        fits = True
        if value.is_floating_point() and like.is_floating_point():
            fits = bool((value.to(like.dtype).isfinite() | ~value.double().isfinite()).all())
    else:
        cast = value.to(like.dtype) if not value.is_complex() or like.is_complex() else None
        fits = cast is not None and bool((cast.double() == value.double()).all())
    if not fits:
        raise ValueError(
            f"{key!r} is of {value.dtype} in the checkpoint, with numbers that {like.dtype} of the "
            "model cannot hold: convert it first."
        )


def _check_strictly(missing: list[str], unexpected: list[str], norms: list[Loaded]) -> None:
    """Raise ValueError if keys or norms of the file are not exactly the model's."""
    for what, keys in (("lacks", missing), ("has keys unknown to the model,", unexpected)):
        if keys:
            raise ValueError(
                f"the checkpoint {what} {_listed(keys, 5)}: build the model as it was, or pass "
                "strict=False to load the rest."
            )
    row = next((row for row in norms if not is_same(row.deviation)), None)
    if row is not None:
        raise ValueError(
            f"{row.name!r} was {row.format}, and as {row.layer} it {row.note}: make the layer as "
            "it was (method, eps, group_size, running), or pass strict=False to start from it "
            "anyway."
        )


def _write(model: nn.Module, state: Mapping[str, Any]) -> None:
    """Load a checked state. What fails even so, as a module's own ``set_extra_state``, leaves the
    model as it was.
    """
    before = {
        key: value.detach().clone() if isinstance(value, Tensor) else copy.deepcopy(value)
        for key, value in model.state_dict().items()
    }
    try:
        model.load_state_dict(state, strict=False)
    except BaseException:
        model.load_state_dict(before, strict=False)
        raise
