"""Inputs for the fuzzers of layers: shapes, dtypes, memory formats and degenerate data; and how far
rounding may take a result.
"""

from __future__ import annotations

from contextlib import suppress
from math import inf
from typing import NamedTuple

import torch
from hypothesis import strategies as st
from torch import Tensor

import isonorm
from isonorm.kernels.choice import INTERPRETING, choose

#: Units in the last place by which an intermediate may be off: a sum of some hundred roundings.
UNITS = 8
#: The reference differentiates Σ^(-1/2) by a Lyapunov equation for W·E·W, whose rounding is that of
#: its largest entries: it loses one or two digits more than an equation for E would.
LYAPUNOVS_UNITS = 256
#: In float64 the oracle's eigenvectors are as far off as what it judges.
OWN_UNITS = 64
#: What noise of that size does, drawn a few times, is exceeded by rounding this many times over
#: at most: a lost digit, or a formula that is off, is a factor of 1e3 and more.
MARGIN, DRAWS = 12, 4
#: Polar's steps shrink eigenvalues and grow them back, which its derivative feels twice: float64,
#: for which it has no wider precision, loses up to eight of 16 digits where there is no variance.
POLARS_UNITS = 1e5


class Case(NamedTuple):
    """An input as it lies, its cotangent, and what to do with it."""

    x: Tensor
    dy: Tensor
    weight: Tensor
    bias: Tensor
    eps: float
    backend: str

    @property
    def working(self) -> torch.dtype:
        return torch.float64 if self.x.dtype == torch.float64 else torch.float32

    @property
    def unit(self) -> float:
        return torch.finfo(self.working).eps

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.x.shape[0], self.x.shape[1], self.x.shape[2:].numel()

    def runs(self, area, operation) -> bool:
        """Return whether the implementation that was drawn takes this input."""
        with isonorm.backend(self.backend), suppress(RuntimeError):
            choose(self.x, area=area, operation=operation)
            return True
        return False

    def units(self, operation) -> float:
        """Return by how much intermediates may be disturbed."""
        units = UNITS
        if self.working == torch.float64:
            units = POLARS_UNITS if operation.method == "polar" else OWN_UNITS
        elif operation.method == "zca" and self.backend == "reference":
            units = LYAPUNOVS_UNITS
        return units * self.unit


def _lying(t: Tensor, format: str) -> Tensor:
    """Return the same numbers in another memory format."""
    if format == "channels_last":
        return t.movedim(1, -1).contiguous().movedim(-1, 1)
    if format == "batch innermost":
        return t.movedim(0, -1).contiguous().movedim(-1, 0)
    if format == "with gaps":
        return torch.stack([t, torch.full_like(t, torch.nan)], -1)[..., 0]
    if format == "negated":
        return torch.complex(t.float(), -t.float()).conj().imag if t.dtype == torch.float32 else t
    return t


def _degenerate(x: Tensor, kind: str, channel: int) -> Tensor:
    """Return float64 numbers of which a channel, or everything, is special."""
    one = x[:, channel]
    if kind == "constant":
        one.fill_(3.0)
    elif kind == "dead":
        one.zero_()
    elif kind == "duplicated":
        x[:, channel] = x[:, 0].clone()
    elif kind == "large":
        one.mul_(1e3)
    elif kind == "small":
        one.mul_(1e-3)
    elif kind == "one sample":
        x = x[:1].expand_as(x)
    elif kind == "correlated":
        x = x + 3 * x.mean(1, keepdim=True)
    elif kind == "huge":
        x = x * 1e6
    elif kind == "tiny":
        x = x * 1e-6
    return x


FORMATS = ["contiguous", "channels_last", "batch innermost", "with gaps", "negated", "expanded"]
KINDS = ["", "", "constant", "dead", "duplicated", "large", "small", "one sample", "correlated",
         "huge", "tiny"]  # fmt: skip
SPATIAL = st.lists(st.integers(1, 5), max_size=3).map(tuple)
DTYPES = [torch.float32, torch.float32, torch.float64, torch.bfloat16, torch.float16]
BACKENDS = ["auto", "torch", "native", "reference"]
if INTERPRETING:  # in a process of its own: see tests/kernels/test_interpreter.py
    DTYPES, BACKENDS = [torch.float32], ["triton"]


@st.composite
def cases(draw, channels: int | None = None) -> Case:
    """Draw an input of rank 2 to 5 with what goes with it."""
    if channels is None:
        channels = draw(st.integers(1, 24))
    shape = (draw(st.integers(1, 17)), channels, *draw(SPATIAL))
    dtype, format = draw(st.sampled_from(DTYPES)), draw(st.sampled_from(FORMATS))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**16)))

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    kind = draw(st.sampled_from(KINDS))
    x = _degenerate(random(*shape), kind, draw(st.integers(0, shape[1] - 1)))
    far = draw(st.sampled_from([0.0, 0.0, 1.0, 30.0] + [1e3, 1e5] * (dtype.itemsize > 2)))
    if dtype.itemsize == 2:
        x = x.clamp(-1e3, 1e3)  # float16 ends at 65504, and has no number below 6e-8
    x = _lying((x + far).to(dtype), format)
    dy = random(*shape).to(dtype)
    dy = dy[:, :, :1].expand_as(dy) if format == "expanded" and len(shape) > 2 else dy
    dy = _lying(dy, draw(st.sampled_from(FORMATS)))
    weight, bias = random(shape[1]).to(torch.float32), random(shape[1]).to(torch.float32)
    if dtype == torch.float64:
        weight, bias = weight.double(), bias.double()
    backend = draw(st.sampled_from(BACKENDS))
    return Case(x, dy, weight, bias, draw(st.sampled_from([1e-5, 1e-3, 1e-1])), backend)


def must_be_near(
    got: Tensor, want: Tensor, noisy: list[Tensor], unit: float, stored: torch.dtype, name: str
) -> None:
    """Check a tensor against the oracle: within what noise makes of that, channel by channel, and
    the rounding of what is stored. Where noise leaves no result, rounding decides.
    """
    if not want.isfinite().all():
        return
    axes = [axis for axis in range(want.dim()) if axis != 1] if want.dim() > 1 else [0]
    spread = torch.stack([(other - want).abs() for other in noisy]).amax(0).nan_to_num(inf, inf)
    spread, size = (t.amax(axes, keepdim=True) for t in (spread, want.abs()))
    info = torch.finfo(stored)
    allowed = MARGIN * spread + 2 * max(info.eps, unit) * size + info.tiny
    error = got.double().clamp(-info.max, info.max) - want.clamp(-info.max, info.max)
    worst = (error.abs() / allowed).max().item()
    assert worst <= 1, f"{name} is off by {worst:.3g} times what rounding may do"
