"""What a rank does in a drawn example, and what it has to say of it."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

import isonorm
from isonorm import area, operation

CHANNELS = 6


class Make(NamedTuple):
    """How a rank's layer is made."""

    kind: str = "newton"  # a root of whitening, "standardize", "scale" or "equilibrium"
    group_size: int = 4
    channels: int = CHANNELS
    recovery: str | None = "affine"
    eps: float = 1e-2

    def layer(self, process_group: str | None, dtype: torch.dtype) -> torch.nn.Module:
        """The layer, whose parameters are not at their start, the same on every rank."""
        if self.kind == "equilibrium":
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(6)
                return isonorm.EquiConv1d(self.channels, 4, 1, process_group=process_group).to(
                    dtype
                )
        plain = {"standardize": operation.standardize(), "scale": operation.scale()}
        layer = isonorm.Normalize(
            self.channels,
            area=area.batch(self.group_size),
            operation=plain.get(self.kind) or operation.whiten(self.kind),
            recovery=self.recovery,
            eps=self.eps,
            process_group=process_group,
            dtype=dtype,
        )
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for parameter in layer.parameters():
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
        return layer


class Part(NamedTuple):
    """A rank's part: its layer, its batches with their cotangents, and what is done with them."""

    make: Make
    batches: list[tuple[Tensor, Tensor]]
    backend: str = "auto"
    training: bool = True
    parallel: str = ""  # "ddp", or "no_sync" inside of that
    backward: bool = True
    twice: bool = False  # a graph of the backward
    forwards: int = 1  # of each batch


class Done(NamedTuple):
    """What came of a part, up to what it said in the end, if anything."""

    said: str
    y: list[Tensor]
    dx: list[Tensor]
    parameters: dict[str, Tensor]
    buffers: dict[str, Tensor]
    as_before: bool


def do(part: Part, process_group: str | None = "world") -> Done:
    """Run a part, alone where there is no process group."""
    dtype = part.batches[0][0].dtype if part.batches else torch.float64
    layer = part.make.layer(process_group, dtype if dtype.is_floating_point else torch.float64)
    layer.train(part.training)
    before = {name: buffer.clone() for name, buffer in layer.named_buffers()}
    call: Any = layer
    if part.parallel and process_group:
        call = DistributedDataParallel(layer)
    context = call.no_sync() if part.parallel == "no_sync" and process_group else nullcontext()
    done = Done("", [], [], {}, {}, False)
    try:
        with isonorm.backend(part.backend), context:
            for x, cotangent in part.batches:
                one_step(part, call, x, cotangent, done)
    except (RuntimeError, ValueError) as error:
        done = done._replace(said=f"{type(error).__name__}: {error}")
    after = dict(layer.named_buffers())
    return done._replace(
        parameters={n: p.grad for n, p in layer.named_parameters() if p.grad is not None},
        buffers={name: buffer.clone() for name, buffer in after.items()},
        as_before=all(torch.equal(after[name], buffer) for name, buffer in before.items()),
    )


def one_step(part: Part, call: Any, x: Tensor, cotangent: Tensor, done: Done) -> None:
    x = x.clone().requires_grad_(x.is_floating_point())
    for _ in range(part.forwards):
        y = call(x)
    done.y.append(y.detach())
    if part.twice:
        torch.autograd.grad(y, x, cotangent, create_graph=True)
    elif part.backward:
        y.backward(cotangent)
        assert x.grad is not None
        done.dx.append(x.grad)
