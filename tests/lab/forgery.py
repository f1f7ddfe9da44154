"""Checkpoints of the lab with other content, and a digest that is right for it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor

Edit = Callable[[dict[str, Any], dict[str, Tensor]], None]


def parts_of(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the JSON and the tensors of a checkpoint."""
    with safetensors.safe_open(str(path), framework="pt") as file:
        rest = json.loads(file.metadata()["isonorm"])
        return rest, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def write(path: Path, rest: Any, tensors: dict[str, Tensor], **metadata: str) -> None:
    """Write a checkpoint of any content, with the digest of it."""
    zeros = "0" * 64
    told = {"isonorm": json.dumps(rest), "sha256": zeros, **metadata}
    content = safetensors.torch.save({k: v.contiguous() for k, v in tensors.items()}, told)
    digest = hashlib.sha256(content).hexdigest()
    path.write_bytes(
        content.replace(f'"sha256":"{zeros}"'.encode(), f'"sha256":"{digest}"'.encode())
    )


def edit(path: Path, change: Edit) -> None:
    """Change what a checkpoint holds."""
    rest, tensors = parts_of(path)
    change(rest, tensors)
    write(path, rest, tensors)
