"""What a run runs on, as the command line says it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import torch
from torch import nn

from ..surgery import convert_sync
from .devices import check_between, choose, make_fabric, meeting_point
from .objective import CUDA_GRAPHS
from .settings import float32_products, torch_threads, without_advice_on_tf32

if TYPE_CHECKING:
    from lightning_fabric import Fabric

#: How networks are compiled: not at all, by torch.compile, or by it into CUDA graphs.
COMPILE_MODES = {"no": None, "yes": "default", "graphs": CUDA_GRAPHS}

#: Devices, nodes, threads and jobs: more would exhaust the machine before anything is trained.
MOST = 1024


@dataclass(frozen=True)
class Machine:
    """Devices, precision and compilation: what may change the speed of a run, and its last digits,
    but not what is computed. ``sync_statistics`` makes it so for several processes, too.
    """

    device: str = "cpu"
    devices: int = 1
    nodes: int = 1
    strategy: str = "auto"
    precision: str = "float32"
    compile: str = "no"
    sync_statistics: bool = False
    threads: int = 1  # of torch on a CPU
    jobs: int = 1  # trainings at once, each in a process of its own

    def __post_init__(self) -> None:
        try:
            torch.device(self.device)
        except RuntimeError as error:
            raise ValueError(
                f"there is no device called {self.device!r}: choose cpu or cuda."
            ) from error
        for name in ("devices", "nodes", "threads", "jobs"):
            check_between(name, getattr(self, name), 1, MOST)
        if self.jobs > 1 and self.devices * self.nodes > 1:
            raise ValueError(
                f"jobs {self.jobs} shares one device, and devices {self.devices} on nodes "
                f"{self.nodes} asks for several: choose one of the two."
            )
        choose("compile", self.compile, tuple(COMPILE_MODES))
        if self.compile == "graphs" and not self.device.startswith("cuda"):
            raise ValueError(
                f"compile graphs records CUDA graphs, and the device is {self.device}: choose yes, "
                "or no."
            )

    def words(self) -> list[str]:
        """The options of a command line that say the same: the device, and what is not plain."""
        words, plain = [], Machine()
        for name, value in asdict(self).items():
            if name == "device" or value != getattr(plain, name):
                option = "--" + name.replace("_", "-")
                words += [option] if value is True else [option, str(value)]
        return words

    @property
    def compile_mode(self) -> str | None:
        return COMPILE_MODES[self.compile]

    def launch(self) -> Fabric:
        """Fabric with all its processes: with several devices this program is started once more
        for each of them, and they meet here.
        """
        fabric = make_fabric(
            self.device,
            devices=self.devices,
            nodes=self.nodes,
            strategy=self.strategy,
            precision=self.precision,
        )
        with meeting_point(fabric):
            fabric.launch()
        return fabric

    @contextmanager
    def settings(self) -> Iterator[None]:
        """torch as it is while this machine works: its threads, and beside activations in bfloat16
        the products that stay in float32, those of large groups' roots, by TF32.
        """
        mixed = self.precision == "bf16" and self.device.startswith("cuda")
        products = float32_products("high") if mixed else without_advice_on_tf32()
        with torch_threads(self.threads), products:
            yield

    def prepare(self, model: nn.Module) -> nn.Module:
        """The model as it is to be trained here."""
        if self.sync_statistics:
            convert_sync(model)
        if self.device.startswith("cuda"):
            model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return model
