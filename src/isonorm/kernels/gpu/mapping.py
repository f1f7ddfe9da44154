"""What a program does to a tile that it has: γ·W(x − μ) + β, an activation, and its derivative.

``stream`` says what the constants mean.

Names: i_ index, o_ offset, m_ mask, p_ pointer, b_ block in registers.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .tile import entries, halves, multiplied


@triton.jit
def load_map(
    p_w, p_weight, p_bias, p_x, p_rest, i_group, size, i_global, i_own, m_channel,
    b_mean, D: tl.constexpr, SPAN: tl.constexpr, DIAG: tl.constexpr, WEIGHT: tl.constexpr,
    BIAS: tl.constexpr, RAW: tl.constexpr, PROMOTE: tl.constexpr, REST: tl.constexpr,
):  # fmt: skip
    """Wᵀ of a group, for y = x·Wᵀ with samples in rows (DIAG: its diagonal), γ, and β less γW times
    the rest of μ, where it has a REST; RAW, less γ·Wμ, too.
    """
    b_weight = tl.full((D,), 1.0, tl.float32)
    if WEIGHT:
        b_weight = tl.load(p_weight + i_own, mask=m_channel, other=0.0).to(tl.float32)
    b_bias = tl.zeros((D,), tl.float32)
    if BIAS:
        b_bias = tl.load(p_bias + i_own, mask=m_channel, other=0.0).to(tl.float32)
    if DIAG:
        b_w = tl.load(p_w + i_global, mask=m_channel, other=0.0)
    else:
        i_channel = tl.arange(0, D)
        o_w, m_w = entries(i_channel[:, None], i_channel[None, :], i_group, size, SPAN)
        # Turned here: the order in which a matrix is loaded spreads to the tile it multiplies.
        b_w = tl.trans(tl.load(p_w + o_w, mask=m_w, other=0.0))
        if REST:
            b_rest = tl.load(p_rest + i_global, mask=m_channel, other=0.0)
            b_bias -= b_weight * tl.sum(b_w * b_rest[:, None], 0)
        if not PROMOTE:
            b_w = b_w.to(p_x.dtype.element_ty)
        if RAW:
            b_bias -= b_weight * mean_share(b_w, b_mean, PROMOTE)
    return b_w, b_weight, b_bias


@triton.jit
def mean_share(b_matrix, b_mean, PROMOTE: tl.constexpr):
    """What μ adds to every sample's product with a matrix, rounded as ``multiplied`` rounds it."""
    b_rounded = b_matrix.to(tl.float32)
    if PROMOTE:
        b_high, b_low = halves(b_matrix, "")
        b_rounded = b_high.to(tl.float32) + b_low.to(tl.float32)
    return tl.sum(b_rounded * b_mean[:, None], 0)


@triton.jit
def centered(b_raw, b_mean, RAW: tl.constexpr):
    """A tile less its mean in float32; RAW, as it is."""
    if RAW:
        b_x = b_raw
    else:
        b_x = b_raw.to(tl.float32) - b_mean[None, :]
    return b_x


@triton.jit
def mapped(
    b_x, b_w, b_weight, b_bias, p_x,
    DIAG: tl.constexpr, WEIGHT: tl.constexpr, BIAS: tl.constexpr,
    RAW: tl.constexpr, PROMOTE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """γ·W(x − μ) + β of a centered tile, or of a RAW one, in float32."""
    if DIAG:
        b_y = b_x * b_w[None, :]
    else:
        b_t = b_x if PROMOTE else b_x.to(p_x.dtype.element_ty)
        b_y = multiplied(b_t, b_w, tl.zeros(b_x.shape, tl.float32), PRECISION)
    if WEIGHT:
        b_y *= b_weight[None, :]
    if BIAS or not DIAG:
        b_y += b_bias[None, :]
    return b_y


@triton.jit
def activated(b_s, ACT: tl.constexpr):
    """act(s). Comparisons are such that NaN passes."""
    if ACT == "relu":
        b_s = tl.where(b_s < 0.0, 0.0, b_s)
    if ACT == "silu":
        b_s = b_s / (1.0 + tl.exp(-b_s))
    return b_s


@triton.jit
def through_activation(b_dy, b_s, ACT: tl.constexpr):
    """act′(s)·dy."""
    if ACT == "relu":
        b_dy = tl.where(b_s <= 0.0, 0.0, b_dy)
    if ACT == "silu":
        b_sigmoid = 1.0 / (1.0 + tl.exp(-b_s))
        b_dy = b_dy * b_sigmoid * (1.0 + b_s * (1.0 - b_sigmoid))
    return b_dy
