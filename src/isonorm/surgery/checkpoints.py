"""Checkpoints: into a model from any public format, and out of it in torch's or safetensors'."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor, nn

from ..layers import Normalize
from . import files
from .formats import KEYS, OWN, format_of, read_layer
from .report import is_same, short, table
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
                lines.append(f"{what}: {', '.join(getattr(self, what))}")
        return "\n".join(lines)


def load_checkpoint(
    model: nn.Module, source: str | os.PathLike | Mapping[str, Any], *, strict: bool = True
) -> Loading:
    """Loads a file or a state dict into a model, whichever format its norms are in.

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
    they did in the file. Either everything is loaded or nothing.
    """
    model = unwrapped(model)
    state, versions = _state_of(source, {*model.state_dict()})
    move_keys(model, state)
    _check_values(model.state_dict(), state)
    norms, inexact = [], []
    for name, layer in model.named_modules(remove_duplicate=False):
        if not isinstance(layer, Normalize):
            continue
        prefix = f"{name}." if name else ""
        part = {key.removeprefix(prefix): state[key] for key in state if key.startswith(prefix)}
        if not part:
            continue
        if format_of(part) == OWN and part.keys() & _OWN_STATISTICS:
            _check_version(name, layer, versions)
        try:
            loaded, own = _translate(name, layer, part, versions.get(name, {}))
        except (ValueError, RuntimeError) as error:
            raise ValueError(f"cannot load {name!r} from the checkpoint: {error}.") from error
        for key in KEYS & part.keys() - own.keys():
            del state[prefix + key]
        state |= {prefix + key: value for key, value in own.items()}
        norms.append(loaded)
        if not is_same(loaded.deviation):
            inexact.append(loaded)
    expected = model.state_dict()
    missing = [key for key in expected if key not in state]
    unexpected = [key for key in state if key not in expected]
    _check(expected, state, missing, unexpected, inexact, strict)
    model.load_state_dict(state, strict=False)
    return Loading(norms, missing, unexpected)


def save_checkpoint(model: nn.Module, path: str | os.PathLike) -> None:
    """Writes a model's state dict: as safetensors to a path that ends so, else by ``torch.save``.

    All of it or nothing: an older file stays until the new one is complete. Both kinds keep the
    versions of the model's layers.
    """
    files.write(model.state_dict(), Path(path))


# --- reading --------------------------------------------------------------------------------------


def _state_of(
    source: str | os.PathLike | Mapping, expected: set[str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The tensors by name, as a dict of its own, and the versions of the layers, as far as told."""
    if not isinstance(source, Mapping | str | os.PathLike):
        raise TypeError(f"a checkpoint is a path or a state dict; got {type(source).__name__}.")
    found = source if isinstance(source, Mapping) else files.read(Path(source))
    versions = getattr(found, "_metadata", {})
    for key in _NESTED:
        if isinstance(found.get(key), Mapping):
            found = found[key]
            versions = getattr(found, "_metadata", {})
            break
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
            f"the checkpoint holds no tensors by name; its keys are {', '.join(map(str, found))}: "
            "pass the state dict inside it."
        )
    return state, versions


# --- translating ----------------------------------------------------------------------------------


def _translate(
    name: str, layer: Normalize, part: dict[str, Tensor], told: Mapping[str, Any]
) -> tuple[Loaded, dict[str, Tensor]]:
    """A layer's state in the layer's own terms."""
    if format_of(part) == OWN:
        was = told.get("root_in_eval")
        if was in (None, layer.root_in_eval) or layer.root_in_eval is None:
            return Loaded(name, short(layer), OWN, 0.0, ""), part
        note = f"differs in eval: its root was {was} and is {layer.root_in_eval}"
        return Loaded(name, short(layer), OWN, None, note), part
    found = read_layer(part, layer.num_features, layer.eps)
    new = copy.deepcopy(layer).to("cpu")
    start = warm_start(found.layer, new)
    own = new.state_dict() | {key: value.detach() for key, value in start.values.items()}
    same = is_same(start.deviation)
    note = "same in eval" if same else f"differs in eval: {start.note}"
    note = "; ".join(filter(None, (note, found.note)))
    return Loaded(name, short(layer), found.format, start.deviation, note), own


def _check_version(name: str, layer: Normalize, versions: dict[str, Any]) -> None:
    version = versions.get(name, {}).get("version") or 0
    if version > layer._version:
        raise ValueError(
            f"{name!r} was saved in version {version} of its layer's format, which is newer than "
            f"{layer._version}, the one this isonorm reads: update isonorm."
        )


def _check_values(expected: dict[str, Any], state: dict[str, Any]) -> None:
    """Raises where a tensor is not one, or has no values, on either side."""
    for key, value in state.items():
        wanted = isinstance(expected.get(key), Tensor) or key.rpartition(".")[2] in KEYS
        if wanted and not isinstance(value, Tensor):
            raise ValueError(f"{key!r} in the checkpoint is not a tensor but {value!r}.")
        if wanted and value.is_meta:
            raise ValueError(f"{key!r} is on the meta device in the checkpoint: it has no values.")
    if key := next((k for k, v in expected.items() if isinstance(v, Tensor) and v.is_meta), None):
        raise ValueError(
            f"{key!r} of the model is on the meta device, where values get lost: give it memory "
            "first, model.to_empty(device=…)."
        )


def _check(
    expected: dict[str, Tensor],
    state: dict[str, Any],
    missing: list[str],
    unexpected: list[str],
    inexact: list[Loaded],
    strict: bool,
) -> None:
    """Raises before anything is written."""
    for key, value in state.items():
        if key in expected and isinstance(value, Tensor) and value.shape != expected[key].shape:
            raise ValueError(
                f"{key!r} has shape {tuple(value.shape)} in the checkpoint and "
                f"{tuple(expected[key].shape)} in the model: build the model as it was."
            )
    if not strict:
        return
    for what, keys in (("lacks", missing), ("has keys unknown to the model,", unexpected)):
        if keys:
            more = f" and {len(keys) - 5} more" if len(keys) > 5 else ""
            raise ValueError(
                f"the checkpoint {what} {', '.join(keys[:5])}{more}: build the model as it was, or "
                "pass strict=False to load the rest."
            )
    if inexact:
        row = inexact[0]
        raise ValueError(
            f"{row.name!r} was {row.format}, and as {row.layer} it {row.note}: make the layer as "
            "it was (method, eps, group_size, running), or pass strict=False to start from it "
            "anyway."
        )
