"""Layers by name, and what is asked of them: the right result first, then time and operations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from copy import deepcopy
from itertools import pairwise
from statistics import median
from time import perf_counter
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import isonorm

from ..machine import Machine
from ..norms import norm_factory
from ..replay import replay_seconds, waits_for_device
from .words import Formula, Layer, Measured

#: Largest relative error, against float64, of an output or a gradient worth a number. Rounding in
#: float32 leaves a tenth of it at the papers' shapes; a wrong term, far more.
TOLERANCE = 2e-4

_WARM_UP = 3
#: Of replays: many of a small layer, so that the clock's ticks do not count.
SECONDS_OF_A_ROUND = 0.005


class UnfoldConv2d(nn.Conv2d):
    """A convolution as Torch7's 'nn' has it: patches unfolded into columns, then one product."""

    def forward(self, input: Tensor) -> Tensor:
        (stride, _), (padding, _), (kernel, _) = self.stride, self.padding, self.kernel_size
        columns = F.unfold(input, kernel, padding=int(padding), stride=stride)
        height, width = ((s + 2 * int(padding) - kernel) // stride + 1 for s in input.shape[2:])
        return (self.weight.flatten(1) @ columns).unflatten(-1, (height, width))


class Bench(NamedTuple):
    """A layer with its input and a cotangent, and the layer it must agree with, in float64."""

    layer: nn.Module
    reference: nn.Module
    x: Tensor
    cotangent: Tensor

    def step(self) -> list[Tensor]:
        """What is timed."""
        return _step(self.layer, self.x, self.cotangent)


def build(layer: Layer, seed: int, device: str = "cpu") -> Bench:
    """The layer under its name: ``conv`` (3 × 3), ``unfold`` (the same by unfolding), a norm as the
    command line writes it, or ``folded:NORM``: a convolution with the norm behind it merged into
    it.

    >>> build(Layer("BN", "batchnorm", (2, 4, 8, 8)), seed=0).layer
    BatchNorm(4, affine=True, eps=1e-05, momentum=0.1)
    """
    channels = layer.shape[1]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        x, cotangent = _correlated(layer.shape), torch.randn(layer.shape)
        kind, _, norm = layer.layer.partition(":")
        conv = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        if kind == "conv":
            made, reference = conv, conv
        elif kind == "unfold":
            made = UnfoldConv2d(channels, channels, 3, padding=1, bias=False)
            made.load_state_dict(conv.state_dict())
            reference = conv
        elif kind == "folded":
            reference = nn.Sequential(conv, _norm(norm, channels)).train()
            reference(x)  # running statistics that are not the initial ones
            made = isonorm.fold(reference.eval())
        else:
            made = reference = _norm(layer.layer, channels)
    made, reference = made.to(device), deepcopy(reference).double().to(device)
    return Bench(made, reference, x.to(device).requires_grad_(), cotangent.to(device))


def measure(
    layer: Layer, measures: tuple[str, ...], seed: int, calls: int, on: Machine
) -> Measured:
    """The numbers asked for, if the layer computes what it should on this very input."""
    # Convolutions in float32 as norms have it, not in TF32, by the fastest algorithm there is.
    fastest = torch.backends.cudnn.flags(
        enabled=True, benchmark=True, deterministic=False, allow_tf32=False
    )
    gpu = torch.cuda.device(on.device) if on.device.startswith("cuda") else nullcontext()
    with fastest, gpu:  # streams and events are those of the current GPU
        bench = build(layer, seed, on.device)
        values: dict[str, float] = {}
        if any("operations" in key for key in measures):
            values |= count(bench.layer, layer.shape, layer.formula)
        if on.compile_mode is not None:
            bench.layer.compile(mode=on.compile_mode)
        error = check(layer.name, bench)
        values |= times(layer.name, bench, measures, calls)
    return Measured({key: values[key] for key in measures}, error)


def times(name: str, bench: Bench, measures: Sequence[str], calls: int) -> dict[str, float]:
    """Those that are asked for. On a CPU, which is host and device, they are one."""
    asked = {"milliseconds", "device_milliseconds"} & set(measures)
    if not bench.x.is_cuda:
        return dict.fromkeys(asked, milliseconds(bench, calls)) if asked else {}
    found: dict[str, float] = {}
    if "milliseconds" in asked:
        found["milliseconds"] = milliseconds(bench, calls)
    if "device_milliseconds" in asked:
        found["device_milliseconds"] = device_milliseconds(name, bench, calls)
    return found


def check(name: str, bench: Bench) -> float:
    """The largest relative error of the output and the gradients; too large a one is refused."""
    found = bench.step()
    with isonorm.backend("reference"):
        x = bench.x.detach().double().requires_grad_()
        expected = _step(bench.reference, x, bench.cotangent.double())
    if not bench.layer.training:  # merged: it has other parameters
        found, expected = found[:2], expected[:2]
    errors = [
        ((value.double() - exact).norm() / exact.norm()).item()
        for value, exact in zip(found, expected, strict=True)
    ]
    if not all(error <= TOLERANCE for error in errors):  # NaN, too
        raise ValueError(
            f"{name} does not compute what its reference does in float64 (relative error "
            f"{max(errors, key=lambda e: (e != e, e)):.1e}, at most {TOLERANCE:g} is allowed): "
            "nothing was measured."
        )
    return max(errors)


def milliseconds(bench: Bench, calls: int) -> float:
    """The median of so many forward and backward passes, after a warm-up."""
    step = bench.step
    for _ in range(_WARM_UP):
        step()
    clock = _on_gpu if bench.x.is_cuda else _on_cpu
    return median(clock(step, calls))


def device_milliseconds(name: str, bench: Bench, rounds: int) -> float:
    """The same on a GPU alone: of a CUDA graph that is replayed, the median of so many rounds."""
    if waits_for_device(bench.step):
        raise ValueError(
            f"{name} waits for the GPU in every pass, so that no CUDA graph holds it: measure its "
            "milliseconds, not its device_milliseconds."
        )
    return 1e3 * replay_seconds(bench.step, rounds, least=SECONDS_OF_A_ROUND)


def count(
    layer: nn.Module, shape: tuple[int, int, int, int], formula: Formula | None = None
) -> dict[str, float]:
    """Multiplications of the matrix products, counted while torch runs without memory."""
    m, d, h, w = shape
    forward = _products(layer, shape)
    twice = _products(layer, (2 * m, d, h, w))
    expected = formula.at(shape) if formula else None
    return {
        "operations": forward,
        "training_operations": _products(layer, shape, backward=True),
        "root_operations": 2 * forward - twice,  # a line through both, at no samples
        "operations_per_convolution": forward / (9 * h * w * m * d**2),
        "operations_per_formula": forward / expected if expected else float("nan"),
    }


def _products(layer: nn.Module, shape: Sequence[int], *, backward: bool = False) -> float:
    from torch.utils.flop_counter import FlopCounterMode  # which imports triton, where it is

    layer, x = deepcopy(layer).to("meta"), torch.empty(shape, device="meta", requires_grad=True)
    eigh = {torch.ops.aten._linalg_eigh: lambda shape, *rest, **options: _eigh_flops(shape)}
    counter = FlopCounterMode(display=False, custom_mapping=eigh)
    with isonorm.backend("torch"), counter:
        y = layer(x)
        if backward:
            y.backward(torch.empty_like(y))
    return counter.get_total_flops() / 2


def _norm(name: str, channels: int) -> nn.Module:
    factory = norm_factory(name)
    if factory is None:
        raise ValueError("no norm at all cannot be measured: name one.")
    norm = factory(channels)
    for parameter in norm.parameters():  # away from their initial values
        nn.init.normal_(parameter, 1.0, 0.1)
    return norm


def _correlated(shape: tuple[int, int, int, int]) -> Tensor:
    """Activations with correlated channels, away from zero."""
    m, d, h, w = shape
    mix = torch.eye(d) + 0.5 * torch.randn(d, d) / d**0.5
    x = (mix @ torch.randn(m, d, h * w)).view(shape)
    return x + torch.randn(d).view(1, d, 1, 1)


def _step(layer: nn.Module, x: Tensor, cotangent: Tensor) -> list[Tensor]:
    """Forward and backward: the output, and the gradients of input and parameters."""
    y = layer(x)
    parameters = [p for p in layer.parameters() if p.requires_grad]
    return [y.detach(), *torch.autograd.grad(y, [x, *parameters], cotangent)]


def _on_cpu(step: Callable[[], object], calls: int) -> Iterator[float]:
    for _ in range(calls):
        start = perf_counter()
        step()
        yield 1e3 * (perf_counter() - start)


def _on_gpu(step: Callable[[], object], calls: int) -> Iterator[float]:
    """By events on the device's own clock, which is asked for the times when all is done."""
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(calls + 1)]
    marks[0].record()
    for mark in marks[1:]:
        step()
        mark.record()
    torch.cuda.synchronize()
    return (start.elapsed_time(end) for start, end in pairwise(marks))


def _eigh_flops(shape: tuple[int, ...]) -> int:
    """Of the symmetric QR algorithm with eigenvectors, 9·K³ (Golub & Van Loan, Section 8.3)."""
    return 9 * shape[-1] ** 3 * torch.Size(shape[:-2]).numel()
