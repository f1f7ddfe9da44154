"""Devices by name, one or many."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from lightning_fabric import Fabric

#: Our names of precisions, and Fabric's.
PRECISIONS = {"float32": "32-true", "bf16": "bf16-mixed", "float64": "64-true"}
STRATEGIES = ("auto", "ddp", "fsdp")


def resolve_device(name: str) -> str:
    """A device that works here: the one named, or for "auto" cuda if torch has it, else cpu."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        if name.startswith("cpu:"):  # torch takes any number, Fabric none
            raise RuntimeError("a CPU has no number")
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


def make_fabric(
    device: str = "cpu",
    *,
    devices: int = 1,
    nodes: int = 1,
    precision: str = "float32",
    strategy: str = "auto",
) -> Fabric:
    """Lightning Fabric on these devices, not yet launched.

    ``devices`` counts the processes of each node, on a CPU too (then with gloo). Several nodes are
    started by torchrun, SLURM or anything else whose environment Fabric knows.

    >>> make_fabric("cpu", precision="float64").device
    device(type='cpu')
    """
    choose("precision", precision, tuple(PRECISIONS))
    choose("strategy", strategy, STRATEGIES)
    for name, value in (("devices", devices), ("nodes", nodes)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1; got {value}.")
    where = torch.device(resolve_device(device))
    if where.index is not None and devices * nodes > 1:
        raise ValueError(
            f"{device} names one device and devices={devices} asks for {devices * nodes}: name "
            f"{where.type}."
        )
    if strategy == "fsdp" and where.type == "cpu":
        raise ValueError("strategy fsdp shards a model over GPUs; on a CPU choose ddp.")
    from lightning_fabric import Fabric  # takes two seconds to import, which only training needs

    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)  # what it does was asked for
    try:
        return Fabric(
            accelerator=where.type,
            devices=devices if where.index is None else [where.index],
            num_nodes=nodes,
            precision=PRECISIONS[precision],  # type: ignore[arg-type]
            strategy="ddp" if strategy == "auto" and devices * nodes > 1 else strategy,
        )
    except (RuntimeError, ValueError) as error:  # fewer GPUs than asked for, and the like
        reason = str(error).strip().partition("\n")[0].rstrip(".")
        raise ValueError(f"cannot use {devices} × {device} here ({reason}).") from error


def check_between(name: str, value: float, least: float, most: float) -> None:
    """Refuse a number outside these bounds, and NaN."""
    if not least <= value <= most:
        words = name.replace("_", " ")
        raise ValueError(f"{words} must be between {least:,} and {most:,}; got {value}.")


@contextmanager
def meeting_point(fabric: Fabric) -> Iterator[None]:
    """Hold the port at which the processes of a node meet, while ``fabric`` launches them.

    Fabric would choose a free port and let go of it. Its processes take seconds to start, and by
    then the system may have given the port to another program: they would wait in vain. The
    process group shares the store that already holds the port in its process.
    """
    from lightning_fabric.plugins.environments.lightning import LightningEnvironment

    place = getattr(fabric.strategy, "cluster_environment", None)
    if (
        not isinstance(place, LightningEnvironment)
        or place.creates_processes_externally
        or fabric.world_size == 1
        or "MASTER_PORT" in os.environ
    ):
        yield
        return
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    store = TCPStore(
        place.main_address, 0, is_master=True, wait_for_workers=False, multi_tenant=True
    )
    os.environ["MASTER_PORT"] = str(store.port)
    yield


def choose(name: str, value: str, among: tuple[str, ...]) -> None:
    """Refuses a value that is none of these."""
    if value not in among:
        raise ValueError(f"{name} must be one of {', '.join(among)}; got {value!r}.")
