"""Files of tensors by name: safetensors where they are called so, else torch's."""

from __future__ import annotations

import json
import os
import secrets
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

#: The key of the layers' versions in a safetensors header.
_VERSIONS = "isonorm.versions"


class States(dict):
    """A state dict with room for versions, as torch's have."""

    _metadata: dict


def read(path: Path) -> Mapping[Any, Any]:
    """What a file holds; versions, if it has them, as ``_metadata``."""
    if not path.exists():
        raise FileNotFoundError(f"there is no checkpoint at {str(path)!r}.")
    if path.is_dir():
        raise ValueError(f"{str(path)!r} is a folder: name the file in it.")
    try:
        found = _read_safetensors(path) if _is_safetensors(path) else _read_torch(path)
    except (ImportError, PermissionError):
        raise
    except Exception as error:
        if "GLOBAL" in str(error) or "Unsupported global" in str(error):
            raise ValueError(
                f"{str(path)!r} holds more than tensors, which could run code when it is read: if "
                "you trust it, torch.load it yourself with weights_only=False, and pass the state "
                "dict."
            ) from error
        raise ValueError(
            f"{str(path)!r} is damaged or not a checkpoint ({type(error).__name__})."
        ) from error
    if not isinstance(found, Mapping):
        raise ValueError(
            f"{str(path)!r} holds a {type(found).__name__}, but a checkpoint holds tensors by name."
        )
    return found


def write(state: Mapping[str, Any], path: Path) -> None:
    """Write a state dict: an older file stays until the new one is complete."""
    _check_writable(state, path)
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        with temporary.open("xb") as file:
            rights = stat.S_IMODE(os.fstat(file.fileno()).st_mode)  # of any new file
        if _is_safetensors(path):
            tensors = {name: t.detach().cpu().clone().contiguous() for name, t in state.items()}
            header = {"format": "pt", _VERSIONS: json.dumps(getattr(state, "_metadata", {}))}
            _safetensors().save_file(tensors, temporary, metadata=header)
        else:
            torch.save(state, temporary)
        temporary.chmod(rights)  # safetensors' files are private
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _check_writable(state: Mapping[str, Any], path: Path) -> None:
    if path.is_dir():
        raise ValueError(f"{str(path)!r} is a folder: name the file to write in it.")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {str(path.parent)!r} to write into.")
    for name, value in state.items():
        if not isinstance(value, Tensor):
            if _is_safetensors(path):
                raise ValueError(
                    f"safetensors hold tensors alone, but {name!r} is {value!r}: write to a file "
                    "called *.pt."
                )
        elif value.is_meta:
            raise ValueError(f"{name!r} is on the meta device: it has no values to write.")


def _is_safetensors(path: Path) -> bool:
    return path.suffix == ".safetensors"


def _read_torch(path: Path) -> Any:
    return torch.load(path, map_location="cpu", weights_only=True)


def _read_safetensors(path: Path) -> States:
    state = States(_safetensors().load_file(path))
    from safetensors import safe_open

    with safe_open(path, "pt") as file:
        state._metadata = json.loads((file.metadata() or {}).get(_VERSIONS, "{}"))
    return state


def _safetensors():
    try:
        import safetensors.torch
    except ImportError as error:
        raise ImportError(
            'files called *.safetensors need the package safetensors: pip install "isonorm[lab]".'
        ) from error
    return safetensors.torch
