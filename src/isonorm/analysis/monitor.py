"""The analysis' numbers while a model trains: every k steps, at a bounded cost.

Hooks stand only during the steps that are measured. In between nothing of the model differs from
an unwatched one, and a step costs a few comparisons.
"""

from __future__ import annotations

import warnings
import weakref
from math import ceil, isfinite, nan
from os import PathLike
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor, nn

from ..layers.kinds import is_norm
from ..statistics import Statistics, measure
from ._eager import compiler_is_loaded, force_eager
from ._layers import (
    Layers,
    channels_first,
    first_tensor,
    input_of,
    is_weighted,
    learned_weight,
    select_layers,
)
from ._sinks import JsonLines, Sink, TensorBoard
from .conditioning import features_of, rounding_of, summary_of
from .covariate_drift import drift_of
from .disturbance import snd
from .invariance import effective_learning_rate

if TYPE_CHECKING:
    from rich.table import Table


class Monitor:
    """Per-layer conditioning, drift, weights and disturbance while a model trains.

    >>> import isonorm
    >>> model = nn.Sequential(nn.Linear(4, 8), isonorm.IterNorm(8), nn.ReLU(), nn.Linear(8, 2))
    >>> with Monitor(model, every=10) as monitor:
    ...     for _ in range(20):
    ...         _ = model(torch.randn(32, 4))  # a step of training
    ...         monitor.step()
    >>> sorted({record["step"] for record in monitor.history}), monitor.latest[1]["layer"]
    ([0, 10], '1')

    Each record holds a step, a layer and its numbers: ``condition_number``, ``effective_rank``,
    ``off_diagonal_energy``, ``largest`` and ``smallest`` eigenvalue of the output's covariance; its
    drift since the last measurement (``mean_drift``, ``scale_drift``, ``covariance_drift``);
    ``weight_norm``, ``gradient_norm`` and, with an optimizer, ``effective_lr``; for norms, where
    asked for, ``snd``. A number that is infinite or does not exist is None.

    Args:
        model: only modules in training mode are measured, so validation passes do not count. One
            for ``torch.compile`` is compiled first; steps that are measured run uncompiled.
        every: steps from one measurement to the next; None turns the monitor off.
        layers: names, a pattern, or a function of name and module; None: all linear, convolution
            and normalization layers.
        of: "output" or "input".
        max_samples, max_channels: what one measurement takes of an activation at most, evenly
            over examples and positions, and the first channels: this bounds its cost. A condition
            number from few samples comes out too large.
        disturbance: measures each norm's SND, too, on the step's batch: half of it at a time, 4
            samples in 4 batches, which is the dearest of the numbers.
        optimizer: for the effective learning rates, η/‖W‖².
        jsonl: a file to which every record is appended as a line.
        tensorboard: a ``SummaryWriter`` to use, or a folder to write to.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        every: int | None = 100,
        layers: Layers = None,
        of: str = "output",
        max_samples: int = 4096,
        max_channels: int = 256,
        disturbance: bool = False,
        optimizer: torch.optim.Optimizer | None = None,
        jsonl: str | PathLike[str] | None = None,
        tensorboard: Any = None,
    ) -> None:
        limits = {"every": every, "max_samples": max_samples, "max_channels": max_channels}
        for name, value in limits.items():
            if value is None and name == "every":
                continue
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} must be at least 1, in whole numbers; got {value}.")
        if of not in ("input", "output"):
            raise ValueError(f"of must be 'input' or 'output'; got {of!r}.")
        self.model, self.every, self.of = model, every, of
        self.layers = select_layers(model, layers)
        self.max_samples, self.max_channels = max_samples, max_channels
        self.disturbance, self.optimizer = disturbance, optimizer
        self.history: list[dict[str, Any]] = []
        self.latest: list[dict[str, Any]] = []
        self._sinks: list[Sink] = []
        try:
            if jsonl is not None:
                self._sinks.append(JsonLines(jsonl))
            if tensorboard is not None:
                self._sinks.append(TensorBoard(tensorboard))
        except BaseException:
            self._close_sinks()
            raise
        self._steps = 0
        self._handles: list[Any] = []
        self._uncompiled: weakref.finalize | None = None
        self._seen: dict[str, Tensor] = {}
        self._batches: dict[str, Tensor] = {}
        self._before: dict[str, Statistics] = {}
        self._generator = torch.Generator().manual_seed(0)  # the training's own stays as it is
        self._attach_if_due()

    def step(self) -> None:
        """To be called once after every training step, before or after ``optimizer.step()`` but
        while gradients are there, if their norms are wanted.
        """
        if self._handles:
            self._detach()
            if self._seen:  # a step without a forward pass in training mode has nothing to show
                self._measure()
        force_eager.settle()  # a block that ended since may have brought it back
        self._steps += 1
        self._attach_if_due()

    def close(self) -> None:
        """Removes the hooks and closes the files. Calling it again does nothing."""
        self._detach()
        force_eager.settle()
        self.every = None
        self._close_sinks()

    def table(self) -> Table:
        """The latest measurement as a rich table."""
        from ._sinks import as_table

        return as_table(self.latest)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _close_sinks(self) -> None:
        while self._sinks:
            self._sinks.pop().close()

    # --- hooks ------------------------------------------------------------------------------------

    def _attach_if_due(self) -> None:
        if self.every is not None and self._steps % self.every == 0:
            self._handles = [
                module.register_forward_hook(_Hook(self, name), with_kwargs=True)
                for name, module in self.layers.items()
            ]
            # Compiled code would not see the hooks, or keep them for good.
            if compiler_is_loaded():
                force_eager.hold()
                # Whoever drops a monitor without closing it must not be left without compiled code.
                self._uncompiled = weakref.finalize(self, force_eager.release)
                self._uncompiled.atexit = False

    def _detach(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []
        if self._uncompiled is not None:
            self._uncompiled()
            self._uncompiled = None

    @torch.no_grad()
    def _see(self, name: str, module: nn.Module, batch: Tensor | None, output: Any) -> None:
        if not module.training:
            return
        activation = batch if self.of == "input" else first_tensor(output)
        if activation is None or activation.numel() == 0 or activation.dim() < 2:
            return  # nothing that has channels
        self._seen[name] = self._part_of(channels_first(module, activation))
        if self.disturbance and is_norm(module) and batch is not None:
            self._batches[name] = batch.detach()

    def _part_of(self, x: Tensor) -> Tensor:
        """At most max_samples × max_channels of (N, C, *), evenly spread; a copy."""
        x = x.detach()[:: ceil(len(x) / self.max_samples), : self.max_channels]
        if x.dim() > 2:
            x = x.flatten(2)
            wanted = max(1, self.max_samples // len(x))
            x = x[:, :, :: ceil(x.shape[2] / wanted)]
        return x.clone()

    # --- a measurement ----------------------------------------------------------------------------

    @torch.no_grad()
    def _measure(self) -> None:
        self.latest = []
        for name, module in self.layers.items():
            if name in self._seen:
                numbers = self._numbers(name, module, self._seen[name])
                finite = {k: v if isfinite(v) else None for k, v in numbers.items()}
                self.latest.append({"step": self._steps, "layer": name, **finite})
        self._seen.clear()
        self._batches.clear()
        self.history += self.latest
        for sink in self._sinks:
            sink.write(self.latest)

    def _numbers(self, name: str, module: nn.Module, x: Tensor) -> dict[str, float]:
        statistics = measure(features_of(x))
        numbers = summary_of(statistics.cov[0], rounding_of(x, statistics.mean))._asdict()
        before = self._before.get(name)
        if before is not None and before.cov.shape == statistics.cov.shape:
            moved = drift_of(before, statistics)._asdict()
            numbers |= {f"{key}_drift": value for key, value in moved.items()}
        self._before[name] = statistics
        if isinstance(getattr(module, "weight", None), Tensor):
            weight = learned_weight(name, module)
            numbers["weight_norm"] = weight.norm().item()
            if weight.grad is not None:
                numbers["gradient_norm"] = weight.grad.norm().item()
        if self.optimizer is not None and is_weighted(module):
            rates = effective_learning_rate(module, self.optimizer, layers=[""])
            numbers["effective_lr"] = rates[""]
        batch = self._batches.get(name)
        if batch is not None and len(batch) >= 4:
            numbers["snd"] = self._disturbance_of(name, module, batch)
        return numbers

    def _disturbance_of(self, name: str, norm: nn.Module, batch: Tensor) -> float:
        """NaN where a norm cannot be called by itself, which is no reason to stop the training."""
        try:
            values = snd(norm, batch, batch_size=len(batch) // 2, num_samples=4, num_batches=4,
                         generator=self._generator)  # fmt: skip
        except Exception as error:
            warnings.warn(
                f"the disturbance of layer {name!r} could not be measured and is None: "
                f"{type(error).__name__}: {error}",
                stacklevel=2,
            )
            return nan
        return values.mean().item()


class _Hook:
    """Stands on a layer for a step. A layer's copies and pickles are not the layer that is watched:
    theirs does nothing.
    """

    def __init__(self, monitor: Monitor | None, name: str) -> None:
        self._monitor, self._name = monitor, name

    def __call__(self, module: nn.Module, args: Any, keywords: Any, output: Any) -> None:
        if self._monitor is not None:
            self._monitor._see(self._name, module, input_of(module, args, keywords), output)

    def __reduce__(self) -> tuple[type[_Hook], tuple[None, str]]:
        return _Hook, (None, self._name)
