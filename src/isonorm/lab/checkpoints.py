"""A training in the middle, as one file: tensors as safetensors, everything else as the JSON in
its header. One file is whole or absent, so that a checkpoint never mixes two moments.

torch's gathering of state is imported where it is used: that takes a second, and most commands
train nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from .records import whole_file

if TYPE_CHECKING:
    from torch.distributed.checkpoint.state_dict import StateDictOptions

_HEADER, _TENSOR = "isonorm", "__tensor__"


def save(
    path: Path,
    model: nn.Module,
    optimizer: Optimizer,
    notes: Mapping[str, Any],
    *,
    writes: bool = True,
) -> None:
    """Writes the state of both with ``notes``: tensors, and values that JSON holds.

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
    content = safetensors.torch.save(tensors, {_HEADER: json.dumps(rest)})
    with whole_file(path) as temporary:
        temporary.write_bytes(content)


def save_weights(path: Path, model: nn.Module, notes: Mapping[str, str]) -> None:
    """The model's state alone, to be read with ``safetensors.torch.load_file``; the notes are the
    file's metadata.
    """
    tensors: dict[str, Tensor] = {}
    _take_out(model.state_dict(), "", tensors)
    with whole_file(path) as temporary:
        temporary.write_bytes(safetensors.torch.save(tensors, {"format": "pt", **notes}))


def load(path: Path, model: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
    """Puts model and optimizer back into the state of the checkpoint, and returns its notes."""
    from torch.distributed.checkpoint.state_dict import set_state_dict

    rest, tensors = _open(path)
    set_state_dict(
        model,
        optimizer,
        model_state_dict=_put_back(rest["model"], tensors),
        optim_state_dict=_put_back(rest["optimizer"], tensors),
        options=_options(model),
    )
    _lay_out_like_parameters(optimizer)
    return _put_back(rest["notes"], tensors)


def _lay_out_like_parameters(optimizer: Optimizer) -> None:
    """Gives the optimizer's state the parameters' order in memory, channels_last for one, which a
    file does not keep: a sum over a tensor in another order differs in its last bits.
    """
    for parameter, state in optimizer.state.items():
        for key, value in state.items():
            if isinstance(value, Tensor) and value.shape == parameter.shape:
                state[key] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)


def _options(model: nn.Module) -> StateDictOptions:
    """Sharded parameters are put together for the file, and shared out again from it."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions
    from torch.distributed.fsdp import FullyShardedDataParallel

    sharded = isinstance(model, FullyShardedDataParallel)
    return StateDictOptions(full_state_dict=sharded, cpu_offload=sharded)


def _open(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    try:
        with safetensors.safe_open(str(path), framework="pt") as file:
            rest = json.loads((file.metadata() or {})[_HEADER])
            return rest, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (safetensors.SafetensorError, KeyError, json.JSONDecodeError) as error:
        raise ValueError(
            f"{path} is not a checkpoint of this program, or was cut short ({error}): remove it to "
            "begin that training again."
        ) from error


def _take_out(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """The same tree with the names of its tensors, which go into ``tensors``, in their places."""
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
