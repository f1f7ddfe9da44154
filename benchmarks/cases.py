"""What is measured: shapes, group sizes, the layers that compete, and the training step of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

import isonorm
from isonorm.kernels import Choice, choose

from . import plain

SHAPES = ((32, 64, 56, 56), (32, 256, 14, 14), (256, 512), (8, 48, 17, 17))
GROUP_SIZES = (16, 64, None)  # None: all channels together
NUM_ITERS = 5

ITERNORM, IN_TORCH, LOOPED, BATCHED, BATCHNORM, DBN = (
    "isonorm.IterNorm",
    "the same in torch",
    "plain looped",
    "plain batched",
    "BatchNorm",
    "isonorm.DBN",
)


class Case(NamedTuple):
    shape: tuple[int, ...]
    group_size: int

    @property
    def channels(self) -> int:
        return self.shape[1]

    @property
    def samples(self) -> int:
        return torch.Size(self.shape).numel() // self.channels

    def __str__(self) -> str:
        full = " (full)" if self.group_size == self.channels else ""
        return f"{'x'.join(map(str, self.shape))} group {self.group_size}{full}"


def all_cases(shapes: Sequence[tuple[int, ...]], group_sizes: Sequence[int | None]) -> list[Case]:
    """Every shape with every group size, once: no group is larger than the channels there are.

    >>> [case.group_size for case in all_cases([(8, 48, 17, 17)], [16, 64, None])]
    [16, 48]
    """
    pairs = [(shape, min(size or shape[1], shape[1])) for shape in shapes for size in group_sizes]
    return [Case(*pair) for pair in dict.fromkeys(pairs)]


@dataclass(frozen=True)
class Candidate:
    """A layer that competes, and the plain algorithm it has to agree with."""

    name: str
    layer: Callable[[Case], nn.Module]
    reference: Callable[[Case], nn.Module]
    checked_in: torch.dtype = torch.float32


def _looped(case: Case) -> nn.Module:
    return plain.PlainIterNorm(case.channels, case.group_size, plain.looped, num_iters=NUM_ITERS)


def _batched(case: Case) -> nn.Module:
    return plain.PlainIterNorm(case.channels, case.group_size, plain.batched, num_iters=NUM_ITERS)


def _iternorm(case: Case) -> nn.Module:
    return isonorm.IterNorm(case.channels, group_size=case.group_size, num_iters=NUM_ITERS)


class _InTorch(isonorm.IterNorm):
    """As where there is no compiler for native code."""

    def forward(self, x: Tensor) -> Tensor:
        with isonorm.backend("torch"):
            return super().forward(x)


def _iternorm_in_torch(case: Case) -> nn.Module:
    return _InTorch(case.channels, group_size=case.group_size, num_iters=NUM_ITERS)


def _dbn(case: Case) -> nn.Module:
    return isonorm.DBN(case.channels, group_size=case.group_size, method="zca")


def _batchnorm(case: Case) -> nn.Module:
    kind = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}[
        len(case.shape)
    ]
    return kind(case.channels)


def _single(case: Case) -> nn.Module:
    """Whitening one channel at a time is BatchNorm: Eq. 4 divides Σ by itself."""
    return plain.PlainIterNorm(case.channels, 1, plain.batched, num_iters=0)


def _zca(case: Case) -> nn.Module:
    return plain.PlainIterNorm(case.channels, case.group_size, plain.batched, whiten=plain.zca)


CANDIDATES = (
    Candidate(ITERNORM, _iternorm, _looped),
    Candidate(LOOPED, _looped, _looped),
    Candidate(BATCHED, _batched, _looped),
    Candidate(BATCHNORM, _batchnorm, _single),
)
FALLBACK = Candidate(IN_TORCH, _iternorm_in_torch, _looped)
# Exact whitening multiplies rounding by the condition of Σ, so in float32 its error says nothing
# about the algorithm.
EXACT = Candidate(DBN, _dbn, _zca, checked_in=torch.float64)


def candidates(case: Case, with_dbn: bool = False) -> list[Candidate]:
    """Who competes in a case: IterNorm in plain torch, too, where that is not what runs by itself,
    and DBN where its reference has a gradient: with more samples than features.
    """
    competing = list(CANDIDATES)
    if implementation(case).backend == "native":
        competing.append(FALLBACK)
    if with_dbn and case.samples > case.group_size:
        competing.append(EXACT)
    return competing


def implementation(case: Case) -> Choice:
    """What runs IterNorm in a case, and why."""
    operation, area = isonorm.operation.whiten(), isonorm.area.batch(case.group_size)
    return choose(torch.empty(case.shape), area=area, operation=operation)


class Inputs(NamedTuple):
    """What every layer of a case is given."""

    x: Tensor
    cotangent: Tensor
    weight: Tensor
    bias: Tensor


def make_inputs(case: Case, seed: int = 0) -> Inputs:
    """Correlated activations away from zero, and parameters away from their initial values."""
    generator = torch.Generator().manual_seed(seed)
    randn = lambda *size: torch.randn(*size, generator=generator)  # noqa: E731
    n, c, *positions = case.shape
    mix = torch.eye(c) + 0.5 * randn(c, c) / c**0.5
    x = (mix @ randn(n, c, torch.Size(positions).numel())).view(case.shape)
    x = x + randn(c).view(1, c, *[1] * len(positions))
    return Inputs(x, randn(*case.shape), 1 + 0.1 * randn(c), 0.1 * randn(c))


class Gradients(NamedTuple):
    """What one training step makes."""

    y: Tensor
    dx: Tensor
    dweight: Tensor
    dbias: Tensor


def training_step(
    layer: nn.Module, inputs: Inputs, dtype: torch.dtype = torch.float32
) -> Callable[[], Gradients]:
    """Forward and backward of a layer, as a call without arguments."""
    layer = layer.to(dtype).train()
    with torch.no_grad():
        layer.weight.copy_(inputs.weight)
        layer.bias.copy_(inputs.bias)
    x = inputs.x.to(dtype, copy=True).requires_grad_()
    cotangent = inputs.cotangent.to(dtype)

    def step() -> Gradients:
        y = layer(x)
        return Gradients(
            y.detach(), *torch.autograd.grad(y, (x, layer.weight, layer.bias), cotangent)
        )

    return step
