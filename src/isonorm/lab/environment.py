"""Where a result was measured: without versions and hardware a number proves nothing."""

from __future__ import annotations

import os
import platform
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from .. import __version__

PACKAGES = (
    "torch",
    "triton",
    "lightning-fabric",
    "safetensors",
    "numpy",
    "scikit-learn",
    "matplotlib",
)


def describe(device: torch.device | str) -> dict[str, object]:
    """Versions and hardware as plain values. Names neither the machine nor its user."""
    return {
        "python": platform.python_version(),
        "packages": {"isonorm": __version__} | {p: _installed_version(p) for p in PACKAGES},
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cores": os.cpu_count(),
        "accelerator": torch.cuda.get_device_name(device)
        if torch.device(device).type == "cuda"
        else None,
        "cuda": torch.version.cuda,
    }


def known(description: dict[str, Any]) -> dict[str, Any]:
    """Return a description that a file holds; raise TypeError if its packages are no table."""
    if type(packages := description.get("packages", {})) is not dict:
        raise TypeError(f"packages is {packages!r}, not of type dict")
    return description


@cache  # which is looked up in files, and a run is described after every training
def _installed_version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _processor() -> str:
    """The processor's model, which on Linux ``platform.processor`` does not tell."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text("utf-8", errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()
