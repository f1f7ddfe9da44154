"""A training in the middle, as one file: tensors as safetensors, everything else as the JSON in
its header. One file is whole or absent, so that a checkpoint never mixes two moments. A digest in
the header covers every byte of the file: one flipped bit and it is refused.

torch's gathering of state is imported where it is used: that takes a second, and most commands
train nothing.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from .records import whole_file

if TYPE_CHECKING:
    from torch.distributed.checkpoint.state_dict import StateDictOptions

_HEADER, _TENSOR, _DIGEST = "isonorm", "__tensor__", "sha256"
#: The digest's place in the header, as it is hashed.
_BLANK = f'"{_DIGEST}":"{"0" * 64}"'.encode()
_MOST_OF_A_HEADER = 100 << 20  # safetensors' own limit
#: What the schedule sets anew in every step.
_SCHEDULED = ("lr", "momentum", "betas")


def save(
    path: Path,
    model: nn.Module,
    optimizer: Optimizer,
    notes: Mapping[str, Any],
    *,
    writes: bool = True,
) -> None:
    """Write the state of both with ``notes``: tensors, and values that JSON holds.

    Every process takes part, as sharded parameters must be gathered; one ``writes``.
    """
    from torch.distributed.checkpoint.state_dict import get_state_dict

    weights, steps = get_state_dict(model, optimizer, options=_options(model))
    if not writes:
        return
    tensors: dict[str, Tensor] = {}
    rest = {
        "notes": _take_out(notes, "notes", tensors),
        "model": _take_out(weights, "model", tensors),
        "optimizer": _take_out(steps, "optimizer", tensors),
    }
    content = safetensors.torch.save(tensors, {_HEADER: json.dumps(rest), _DIGEST: "0" * 64})
    digest = hashlib.sha256(content).hexdigest().encode()
    start = content.index(_BLANK)  # JSON within JSON has its quotes escaped: nothing else reads so
    whole = memoryview(content)
    with whole_file(path) as temporary, temporary.open("wb") as file:
        file.writelines((whole[:start], _BLANK.replace(b"0" * 64, digest)))
        file.write(whole[start + len(_BLANK) :])


def save_weights(path: Path, model: nn.Module, notes: Mapping[str, str]) -> None:
    """Write the model's state alone, to be read with ``safetensors.torch.load_file``; the notes are
    the file's metadata.
    """
    tensors: dict[str, Tensor] = {}
    _take_out(model.state_dict(), "", tensors)
    with whole_file(path) as temporary:
        temporary.write_bytes(safetensors.torch.save(tensors, {"format": "pt", **notes}))


class Checkpoint:
    """A file that was read and is whole; ``notes`` is what was saved beside model and optimizer."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with self.reading():
            rest, tensors = _open(path)
            parts = _put_back(rest, tensors)
            self.notes, self._model, self._optimizer = (
                _table(parts.get(key), key) for key in ("notes", "model", "optimizer")
            )

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Answer whatever does not fit within the block in one sentence that names the file."""
        try:
            yield
        except (
            safetensors.SafetensorError, OSError, ArithmeticError, LookupError, RecursionError,
            RuntimeError, TypeError, ValueError,
        ) as error:  # fmt: skip
            reason = (str(error) or type(error).__name__).partition("\n")[0][:200].rstrip(".")
            raise ValueError(
                f"{self.path} cannot be resumed from ({reason}): it is damaged, was cut short, or "
                "is of another training or version: remove it to begin that training again."
            ) from error

    def load_into(self, model: nn.Module, optimizer: Optimizer) -> None:
        """Put both back into the state of the checkpoint; neither changes if it does not fit."""
        from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

        with self.reading():
            options, before = _options(model), deepcopy(optimizer.state_dict())
            try:
                if not options.full_state_dict:  # sharded parameters are whole on one process alone
                    _take_schedule(self._optimizer, optimizer)
                    # gives a new optimizer its state, which has then names to be compared by
                    weights, steps = get_state_dict(model, optimizer, options=options)
                    _check_alike(self._model, weights, "model")
                    _check_alike(self._optimizer, steps, "optimizer")
                set_state_dict(
                    model,
                    optimizer,
                    model_state_dict=self._model,
                    optim_state_dict=self._optimizer,
                    options=options,
                )
            except BaseException:
                optimizer.load_state_dict(before)
                raise
            _lay_out_like_parameters(optimizer)


def _take_schedule(state: Mapping[str, Any], optimizer: Optimizer) -> None:
    """Give the optimizer's groups the saved rates, on which it depends which state they have."""
    saved_groups, groups = (
        [{key: value for key, value in _table(group, "a group").items() if key != "params"}
         for group in listed]
        for listed in (state["param_groups"], optimizer.param_groups)
    )  # fmt: skip
    _check_alike(saved_groups, groups, "optimizer/param_groups")
    for group, saved in zip(optimizer.param_groups, saved_groups, strict=True):
        rates = {key: saved[key] for key in _SCHEDULED if key in saved}
        group.update({k: tuple(v) if isinstance(v, list) else v for k, v in rates.items()})


def _check_alike(found: Any, needed: Any, name: str) -> None:
    """Raise ValueError unless two states have the same names, kinds, shapes, dtypes and options."""
    if isinstance(needed, Mapping):
        found = _table(found, name)
        if strange := found.keys() ^ needed.keys():
            raise ValueError(f"{min(strange)!r} of {name} is on one side only")
        for key, value in needed.items():
            _check_alike(found[key], value, f"{name}/{key}")
    elif isinstance(needed, Tensor):
        if not isinstance(found, Tensor):
            raise ValueError(f"{name} is not a tensor")
        if (found.shape, found.dtype) != (needed.shape, needed.dtype):
            raise ValueError(
                f"{name} is {found.dtype} of shape {tuple(found.shape)}, but {needed.dtype} of "
                f"{tuple(needed.shape)} was expected"
            )
        if name.endswith("/step") and not (found >= 0).all():
            raise ValueError(f"{name} is negative or no number")
    elif isinstance(needed, (list, tuple)):
        if not isinstance(found, (list, tuple)) or len(found) != len(needed):
            raise ValueError(f"{name} is not a list of {len(needed)}")
        for i, (one, other) in enumerate(zip(found, needed, strict=True)):
            _check_alike(one, other, f"{name}/{i}")
    elif name.split("/")[-1] in _SCHEDULED or name.split("/")[-2] in _SCHEDULED:
        if type(found) not in (int, float) or not math.isfinite(found):
            raise ValueError(f"{name} is not a number")
    elif type(found) is not type(needed) or found != needed:
        raise ValueError(f"{name} is {found!r:.40}, but {needed!r:.40} was expected")


def _table(value: Any, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{name} is not a table")
    return value


def _lay_out_like_parameters(optimizer: Optimizer) -> None:
    """Give the optimizer's state the parameters' order in memory, channels_last for one, which a
    file does not keep: a sum over a tensor in another order differs in its last bits.
    """
    for parameter, state in optimizer.state.items():
        for key, value in state.items():
            if isinstance(value, Tensor) and value.shape == parameter.shape:
                state[key] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)


def _options(model: nn.Module) -> StateDictOptions:
    """Put sharded parameters together for the file, and share them out again from it."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions
    from torch.distributed.fsdp import FullyShardedDataParallel

    sharded = isinstance(model, FullyShardedDataParallel)
    return StateDictOptions(full_state_dict=sharded, cpu_offload=sharded)


def _open(path: Path) -> tuple[Any, dict[str, Tensor]]:
    """Return the JSON and the tensors of a file whose digest is right."""
    with path.open("rb") as file:
        _check_digest(file)
    with safetensors.safe_open(str(path), framework="pt") as file:
        rest = json.loads((file.metadata() or {})[_HEADER])
        return rest, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def _check_digest(file: BinaryIO) -> None:
    """Hash a file as it was before it had its digest."""
    length = file.read(8)
    size = int.from_bytes(length, "little")
    if size > _MOST_OF_A_HEADER:
        raise ValueError("it does not begin with a header")
    header = file.read(size)
    start, key, rest = header.partition(_BLANK[:-65])
    if not key:
        raise ValueError("it has no digest, as those of earlier versions")
    told = rest[:64]
    digest = hashlib.sha256(length + start + _BLANK[:-1] + rest[64:])
    while block := file.read(1 << 20):
        digest.update(block)
    if digest.hexdigest().encode() != told:
        raise ValueError("its content is not what was written: the digest differs")


def _take_out(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """Return the same tree with the names of its tensors, which go into ``tensors``, in their
    places.
    """
    if isinstance(value, Tensor):
        # safetensors refuses shared memory, and other orders of it than torch's own
        tensors[name] = value.detach().cpu().clone(memory_format=torch.contiguous_format)
        return {_TENSOR: name}
    if isinstance(value, Mapping):
        prefix = f"{name}/" if name else ""
        return {key: _take_out(item, f"{prefix}{key}", tensors) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_take_out(item, f"{name}/{i}", tensors) for i, item in enumerate(value)]
    return value


def _put_back(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(value, dict):
        if _TENSOR in value:
            return tensors[value[_TENSOR]]
        return {key: _put_back(item, tensors) for key, item in value.items()}
    if isinstance(value, list):
        return [_put_back(item, tensors) for item in value]
    return value
