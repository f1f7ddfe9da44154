"""The kernel in equilibrium and its gradients as one Triton kernel each.

A program owns an output: the (channels, positions) of its weights, in tiles of BC × BK, at the
strides sc and sk, since convolutions in channels_last have channels last. The equations are those
of ``equilibrium``, fallbacks and all, and the gradients those of ``explicit``. Gradients of v are
left for each output apart and added by torch: no atomics, the same input gives the same bits.

Names: i_ index, o_ offset, m_ mask, p_ pointer, b_ block in registers.
"""

from __future__ import annotations

from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..kernels.gpu.launch import Launcher
from .equilibrium import CANCELLED, negligible
from .explicit import Form

#: Which of its cases p = 1/s was.
ONE, POSITIVE, HALF = tl.constexpr(0.0), tl.constexpr(1.0), tl.constexpr(2.0)


@triton.jit
def _sign(b_t):
    return tl.where(b_t > 0.0, 1.0, tl.where(b_t < 0.0, -1.0, 0.0))


@triton.jit
def _survey(p_v, i_first, inputs, rate, CUT: tl.constexpr, LEAST: tl.constexpr, BC: tl.constexpr):
    """Σ u and Σ |u| of the usable u of a group, and what was made of v: magnitudes, or ones."""
    b_sum = tl.zeros((BC,), tl.float32)
    b_magnitude = tl.zeros((BC,), tl.float32)
    for start in range(0, inputs, BC):
        i_channel = start + tl.arange(0, BC)
        b_v = tl.load(p_v + i_first + i_channel, mask=i_channel < inputs, other=0.0) * rate
        b_sum += b_v
        b_magnitude += tl.abs(b_v)
    total = tl.sum(b_sum, 0)
    magnitude = tl.sum(b_magnitude, 0)
    flipped = total <= CUT * magnitude
    empty = magnitude <= LEAST
    total = tl.where(flipped, magnitude, total)
    total = tl.where(empty, inputs * 1.0, total)
    magnitude = tl.where(empty, inputs * 1.0, magnitude)
    return total, magnitude, flipped, empty


@triton.jit
def _load_u(p_v, i_first, i_channel, m_channel, rate, flipped, empty):
    """The usable v_c/r of some channels; zero beyond the last."""
    b_u = tl.load(p_v + i_first + i_channel, mask=m_channel, other=0.0) * rate
    b_u = tl.where(flipped, tl.abs(b_u), b_u)
    return tl.where(m_channel, tl.where(empty, 1.0, b_u), 0.0)


@triton.jit
def _tile(
    start, o_output, inputs, positions, sc, sk, BC: tl.constexpr, BK: tl.constexpr
):  # fmt: skip
    """Some channels of an output's weights: index and mask, and mask and offsets of the tile."""
    i_channel = start + tl.arange(0, BC)
    i_position = tl.arange(0, BK)
    m_channel = i_channel < inputs
    m_tile = m_channel[:, None] & (i_position < positions)[None, :]
    o_tile = o_output + i_channel[:, None] * sc + i_position[None, :] * sk
    return i_channel, m_channel, m_tile, o_tile


@triton.jit
def balance_kernel(
    p_w, p_v, p_gamma, p_kernel, p_kept, outputs, inputs, positions, sc, sk, rate,
    BC: tl.constexpr, BK: tl.constexpr, GAMMA: tl.constexpr, SINGLE: tl.constexpr,
    CUT: tl.constexpr, LEAST: tl.constexpr,
):  # fmt: skip
    """γ·w″, and each output's b, p and p's case. ``outputs`` are those of a group."""
    i_output = tl.program_id(0)
    i_first = (i_output // outputs) * inputs
    o_output = i_output.to(tl.int64) * inputs * positions
    total, magnitude, flipped, empty = _survey(p_v, i_first, inputs, rate, CUT, LEAST, BC)

    b_terms = tl.zeros((BC, BK), tl.float32)
    b_magnitudes = tl.zeros((BC, BK), tl.float32)
    for start in range(0, inputs, BC):
        i_channel, m_channel, m_tile, o_tile = _tile(
            start, o_output, inputs, positions, sc, sk, BC, BK
        )
        b_u = _load_u(p_v, i_first, i_channel, m_channel, rate, flipped, empty)[:, None]
        b_w = tl.load(p_w + o_tile, mask=m_tile, other=0.0).to(tl.float32)
        b_terms += b_u * b_w
        b_magnitudes += tl.abs(b_u * b_w)
    b = -tl.sum(tl.sum(b_terms, 1), 0) / (positions * total)
    terms = tl.sum(tl.sum(b_magnitudes, 1), 0) + positions * tl.abs(b) * magnitude

    b_terms = tl.zeros((BC, BK), tl.float32)
    for start in range(0, inputs, BC):
        i_channel, m_channel, m_tile, o_tile = _tile(
            start, o_output, inputs, positions, sc, sk, BC, BK
        )
        b_u = _load_u(p_v, i_first, i_channel, m_channel, rate, flipped, empty)[:, None]
        b_w = tl.load(p_w + o_tile, mask=m_tile, other=0.0).to(tl.float32)
        b_z = b_w + b
        b_sign = b_w if SINGLE else b_z
        b_terms += tl.where(m_tile & (b_sign > 0.0), b_u * b_z, 0.0)
    positive = tl.sum(tl.sum(b_terms, 1), 0)
    cancelled = positive <= CUT * terms
    zero = terms <= LEAST
    p = tl.where(zero, 1.0, tl.where(cancelled, terms / 2, positive))
    case = tl.where(zero, ONE, tl.where(cancelled, HALF, POSITIVE))
    # A NaN is neither cancelled nor zero, and stays one.

    scale = 1.0 / p
    if GAMMA:
        scale = tl.load(p_gamma + i_output).to(tl.float32) / p
    for start in range(0, inputs, BC):
        i_channel, m_channel, m_tile, o_tile = _tile(
            start, o_output, inputs, positions, sc, sk, BC, BK
        )
        b_w = tl.load(p_w + o_tile, mask=m_tile, other=0.0).to(tl.float32)
        tl.store(p_kernel + o_tile, ((b_w + b) * scale).to(p_kernel.dtype.element_ty), mask=m_tile)
    tl.store(p_kept + i_output * 3, b)
    tl.store(p_kept + i_output * 3 + 1, p)
    tl.store(p_kept + i_output * 3 + 2, case)


@triton.jit
def balance_backward_kernel(
    p_grad, p_w, p_v, p_gamma, p_kept, p_dw, p_dgamma, p_dv, outputs, inputs, positions, sc, sk,
    rate,
    BC: tl.constexpr, BK: tl.constexpr, GAMMA: tl.constexpr, SINGLE: tl.constexpr,
    CUT: tl.constexpr, LEAST: tl.constexpr, THROUGH_V: tl.constexpr,
):  # fmt: skip
    """dw, dγ, and each output's part of the sums' gradients."""
    i_output = tl.program_id(0)
    i_first = (i_output // outputs) * inputs
    o_output = i_output.to(tl.int64) * inputs * positions
    total, magnitude, flipped, empty = _survey(p_v, i_first, inputs, rate, CUT, LEAST, BC)
    b = tl.load(p_kept + i_output * 3)
    p = tl.load(p_kept + i_output * 3 + 1)
    case = tl.load(p_kept + i_output * 3 + 2)
    regular = case == POSITIVE
    halved = case == HALF

    b_gz = tl.zeros((BC, BK), tl.float32)
    b_g = tl.zeros((BC, BK), tl.float32)
    b_slope = tl.zeros((BC, BK), tl.float32)
    for start in range(0, inputs, BC):
        i_channel, m_channel, m_tile, o_tile = _tile(
            start, o_output, inputs, positions, sc, sk, BC, BK
        )
        b_u = _load_u(p_v, i_first, i_channel, m_channel, rate, flipped, empty)[:, None]
        b_w = tl.load(p_w + o_tile, mask=m_tile, other=0.0).to(tl.float32)
        b_grad = tl.load(p_grad + o_tile, mask=m_tile, other=0.0).to(tl.float32)
        b_z = b_w + b
        b_sign = b_w if SINGLE else b_z
        b_gz += b_grad * b_z
        b_g += b_grad
        b_slope += tl.where(m_tile & (b_sign > 0.0), b_u, 0.0)
    gz = tl.sum(tl.sum(b_gz, 1), 0)
    scale = 1.0 / p
    if GAMMA:
        scale = tl.load(p_gamma + i_output).to(tl.float32) / p
        tl.store(p_dgamma + i_output, (gz / p).to(p_dgamma.dtype.element_ty))
    # ∂p/∂b, by p's case
    slope = tl.where(halved, 0.5 * positions * magnitude * _sign(b), 0.0)
    slope = tl.where(regular, tl.sum(tl.sum(b_slope, 1), 0), slope)
    e = -scale * gz / p
    f = -(scale * tl.sum(tl.sum(b_g, 1), 0) + e * slope) / (positions * total)

    for start in range(0, inputs, BC):
        i_channel, m_channel, m_tile, o_tile = _tile(
            start, o_output, inputs, positions, sc, sk, BC, BK
        )
        b_own = _load_u(p_v, i_first, i_channel, m_channel, rate, flipped, empty)
        b_u = b_own[:, None]
        b_w = tl.load(p_w + o_tile, mask=m_tile, other=0.0).to(tl.float32)
        b_grad = tl.load(p_grad + o_tile, mask=m_tile, other=0.0).to(tl.float32)
        b_z = b_w + b
        b_sign = b_w if SINGLE else b_z
        # ∂p/∂w = u × by_w and ∂p/∂u, by p's case
        b_half = tl.where(halved, 0.5 * _sign(b_u), 0.0)
        b_by_w = tl.where(regular, tl.where(b_sign > 0.0, 1.0, 0.0), 0.0)
        b_by_u = b_by_w * b_z + b_half * (tl.abs(b_w) + tl.abs(b))
        b_by_w += b_half * tl.where(b_w > 0.0, 1.0, -1.0)
        b_dw = scale * b_grad + (e * b_by_w + f) * b_u
        tl.store(p_dw + o_tile, b_dw.to(p_dw.dtype.element_ty), mask=m_tile)
        if THROUGH_V:
            b_du = tl.sum(tl.where(m_tile, e * b_by_u + f * b_z, 0.0), 1)
            b_v = tl.load(p_v + i_first + i_channel, mask=m_channel, other=0.0)
            b_du = tl.where(flipped, b_du * _sign(b_v), b_du)
            b_du = tl.where(empty, 0.0, b_du) * rate
            p_own = p_dv + i_output.to(tl.int64) * inputs
            tl.store(p_own + i_channel, b_du, mask=m_channel)


@triton.jit
def average_kernel(p_v, p_running, p_tracked, inputs, rate, momentum, B: tl.constexpr):
    """Moves the running v/r towards a batch's, and counts the batch."""
    i_channel = tl.program_id(0) * B + tl.arange(0, B)
    m_channel = i_channel < inputs
    b_v = tl.load(p_v + i_channel, mask=m_channel, other=0.0) * rate
    b_running = tl.load(p_running + i_channel, mask=m_channel, other=0.0)
    tl.store(p_running + i_channel, b_running + momentum * (b_v - b_running), mask=m_channel)
    if tl.program_id(0) == 0:
        tl.store(p_tracked, tl.load(p_tracked) + 1)


#: The most elements of a tile, the elements for each warp, and the largest kernel in positions.
TILE, PER_WARP, MOST_POSITIONS = 2048, 256, 1024


class Balancing:
    """Forward and backward for one kind of kernel: w, the sums v and γ always alike."""

    __slots__ = ("back", "back_without_v", "groups", "kept", "parts", "run")

    def __init__(self, shape: torch.Size, channels_last: bool, affine: bool, form: Form) -> None:
        d, c = shape[:2]
        K = shape[2:].numel()
        BK = triton.next_power_of_2(K)
        BC = min(triton.next_power_of_2(c), TILE // BK)
        sc, sk = (1, c) if channels_last else (K, 1)
        numbers = (d // form.groups, c, K, sc, sk, 1 / form.r)
        constants = {
            "BC": BC, "BK": BK, "GAMMA": affine, "SINGLE": form.single_pass,
            "CUT": CANCELLED, "LEAST": negligible(torch.float32),
            "num_warps": max(1, min(8, BC * BK // PER_WARP)),
        }  # fmt: skip
        self.groups, self.kept, self.parts = form.groups, 3 * d, (d, c)
        self.run = Launcher(balance_kernel, (d,), numbers, constants)
        self.back, self.back_without_v = (
            Launcher(balance_backward_kernel, (d,), numbers, constants | {"THROUGH_V": through_v})
            for through_v in (True, False)
        )

    def forward(self, w: Tensor, v: Tensor, gamma: Tensor | None) -> tuple[Tensor, Tensor]:
        """γ·w″ in w's dtype, and what backward needs."""
        kernel, kept = torch.empty_like(w), v.new_empty(self.kept)
        self.run(w, v, v if gamma is None else gamma, kernel, kept)
        return kernel, kept

    def backward(
        self,
        grad: Tensor,
        w: Tensor,
        v: Tensor,
        gamma: Tensor | None,
        kept: Tensor,
        through_v: bool,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """The gradients by w, by the sums v_c if they are asked for, and by γ."""
        dw = torch.empty_like(w)
        if grad.stride() != w.stride():
            grad = torch.empty_like(w).copy_(grad)
        given, dgamma = (v, kept) if gamma is None else (gamma, torch.empty_like(gamma))
        found = None if gamma is None else dgamma
        if not through_v:
            self.back_without_v(grad, w, v, given, kept, dw, dgamma, kept)
            return dw, None, found
        parts = v.new_empty(self.parts)
        self.back(grad, w, v, given, kept, dw, dgamma, parts)
        if self.groups == 1:
            return dw, parts.sum(0), found
        return dw, parts.view(self.groups, -1, parts.shape[1]).sum(1).view(-1), found


_TAKEN = (torch.float32, torch.float16, torch.bfloat16)


@lru_cache(maxsize=1024)
def settle(
    shape: torch.Size,
    strides: tuple[int, ...],
    dtype: torch.dtype,
    sums: torch.Size,
    sums_dtype: torch.dtype,
    scales_dtype: torch.dtype | None,
    form: Form,
    device: int,
) -> Balancing | None:
    """The kernels for weights, v and γ (or none) like that, on a device; None where they do not
    take them.
    """
    d, c = shape[:2]
    w = torch.empty_strided(shape, strides, device="meta")
    first, last = w.is_contiguous(), w.movedim(1, -1).is_contiguous()
    if not (first or last) or w.numel() == 0 or shape[2:].numel() > MOST_POSITIONS:
        return None
    if dtype not in _TAKEN or scales_dtype not in (None, *_TAKEN) or d % form.groups:
        return None
    if sums_dtype is not torch.float32 or sums != (form.groups * c,):
        return None
    return Balancing(shape, not first, scales_dtype is not None, form)


@lru_cache(maxsize=1024)
def _averaging(inputs: int, r: int, momentum: float, device: int) -> Launcher:
    B = 256
    grid = (triton.cdiv(inputs, B),)
    numbers = (inputs, 1 / r, float(momentum))
    return Launcher(average_kernel, grid, numbers, {"B": B, "num_warps": 4})


def average(v: Tensor, r: int, momentum: float, running: Tensor, tracked: Tensor) -> None:
    """Moves a running v/r towards that of a batch with the sums v, and counts the batch."""
    _averaging(v.numel(), r, momentum, v.get_device())(v, running, tracked)
    torch.autograd.graph.increment_version((running, tracked))
