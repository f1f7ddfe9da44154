"""Devices by name."""

from __future__ import annotations

import torch


def resolve_device(name: str) -> str:
    """A device that works here: the one named, or for "auto" cuda if torch has it, else cpu."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.zeros((), device=name).item()
    except (
        RuntimeError,
        AssertionError,
    ) as error:  # AssertionError: a torch built without this kind of device
        reason = str(error).partition("\n")[0].rstrip(".")
        raise ValueError(
            f"device {name!r} cannot be used here ({reason}): choose cpu or auto."
        ) from error
    return name
