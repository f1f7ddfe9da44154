"""Kernels that stream the activation: moments and apply, forward and backward (steps 1, 3, 4, 6).

Each program owns D features, of one example where EXAMPLES are problems of their own, and some
tiles of BM samples: every P-th, or its ``share``. The features are a group, or where groups are
small SPAN of them, side by side: products then have entries between groups, too, which nobody
reads, and maps have zeros there.

A tile is read as it lies: MERGED, where samples follow one another at one stride (channels_last, or
no positions), or in runs, where they are the positions of one image after the other (NCHW). FULL
tiles need no masks. Partial sums go to memory and are added in a fixed order: no atomics, the same
input gives the same bits. Kernels that sum walk from the first tile to the last, those that map
walk back: they find in the cache what was read last.

Tiles arrive in shared memory by themselves, several at a time. Where few bytes lie side by side
they would be slow, or could not: there a program loads the next tile AHEAD, into registers, before
it works on this one. Numbers that can only be loaded one by one are dealt out by EIGHTS.

Moments are centered in float32 before any product, and so is all else but 16-bit input where tensor
cores can read a tile as it arrives (see ``layout``). That is multiplied RAW, and the mean's share
taken off the float32 result: what this loses is less than the input's own rounding of a mean.

DIAG treats the D channels of a block one by one (standardization) instead of by a D × D matrix.
PROMOTE multiplies 16-bit input as float32: full whitening stretches the smallest directions, and
with them whatever rounding the operands of its products had.

ACT, an activation after the normalization, and a residual added before it act on tiles that are in
registers anyway. Of the activation's input s backward needs the derivative. Step 4 reads what tells
it, p_extra: for relu y, which the next layer keeps anyway, for silu a residual, with which it makes
s again from x by the forward's own products. Step 6 makes it again, too, unless step 4 has left
what went THROUGH, which is the residual's gradient.

OVERLAP: kernels begin before their predecessors end (see ``overlap``).

ALIGN and RUN divide the channels' stride and a run's samples. These numbers are passed without
them, so that the compiler sees how wide it may load, up to WIDTH samples; those of short runs are
KNOWN altogether, and leave a 1. GRAIN does the same for channels that lie side by side: it divides
their number, a group's size and the samples' stride, where 16 does not. Every kernel takes all the
constants of a layout, whether it has a use for them or not.

Names: i_ index, o_ offset, m_ mask, p_ pointer, b_ block in registers.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .mapping import activated, centered, load_map, mapped, mean_share, through_activation
from .overlap import let_next_begin, wait_for_previous
from .tile import (
    entries,
    features,
    from_the_end,
    load_tile,
    multiplied,
    sample_offsets,
    share,
    spread_samples,
    squared,
    store_tile,
    summed_apart,
    whole,
)


@triton.jit
def _store_sums(p_sums, i_group, i_part, b_first, b_second, D: tl.constexpr, DIAG: tl.constexpr):
    """One part's sums: first those of all groups, (G, D), then the second ones, (G, D[, D])."""
    b_first = tl.sum(b_first, 0)
    groups = tl.num_programs(0)
    SECOND: tl.constexpr = D if DIAG else D * D
    i_channel = tl.arange(0, D)
    p_part = p_sums + i_part.to(tl.int64) * groups * (D + SECOND)
    tl.store(p_part + i_group * D + i_channel, b_first)
    p_second = p_part + groups * D + i_group.to(tl.int64) * SECOND
    if DIAG:
        tl.store(p_second + i_channel, tl.sum(b_second, 0))
    else:
        tl.store(p_second + i_channel[:, None] * D + i_channel[None, :], b_second)


@triton.jit
def moments_kernel(
    p_x, p_sums, p_pivot, n, s, sn, sc, ss, se, channels, tiles, size, groups,
    D: tl.constexpr, SPAN: tl.constexpr, BM: tl.constexpr, MERGED: tl.constexpr,
    WHOLE: tl.constexpr, I64: tl.constexpr, EXAMPLES: tl.constexpr, DIAG: tl.constexpr,
    RAW: tl.constexpr, CENTER: tl.constexpr, KNOWN: tl.constexpr, RUN: tl.constexpr,
    ALIGN: tl.constexpr, WIDTH: tl.constexpr, NEAR: tl.constexpr, ROWS: tl.constexpr,
    AHEAD: tl.constexpr, EIGHTS: tl.constexpr, GRAIN: tl.constexpr, OVERLAP: tl.constexpr,
    FULL: tl.constexpr, PROMOTE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Step 1: Σ(x − p) and Σ(x − p)(x − p)ᵀ about a pivot p, the mean of some of the group's
    samples: all programs wait for those, so they are few.
    """
    let_next_begin(OVERLAP)
    i_group, i_part, parts = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    s, sc = whole(s, RUN, I64), whole(sc, ALIGN, I64)
    ss, channels, size = whole(ss, GRAIN, I64), channels * GRAIN, size * GRAIN
    i_global, _, m_channel, o_channel = features(
        i_group, size, channels, groups, sc, se, D, I64, EXAMPLES, KNOWN
    )

    if AHEAD:
        o_next, m_next = sample_offsets(i_part, n, s, sn, ss, BM, MERGED, I64, WIDTH)
        b_raw_next = load_tile(p_x, o_next, m_next, o_channel, m_channel, WHOLE, False, EIGHTS)
    b_pivot = tl.zeros((D,), tl.float32)
    if CENTER:
        if MERGED and not NEAR and not AHEAD:  # each sample's channels lie together
            o_some, m_some = spread_samples(16, n, s, ss, I64)
        else:
            # As many as a tile has where tiles arrive by themselves: fewer would be laid out
            # differently, and tiles then, too.
            SOME: tl.constexpr = 16 if AHEAD else BM
            o_some, m_some = sample_offsets(0, n, s, sn, ss, SOME, MERGED, I64, WIDTH)
        b_some = load_tile(p_x, o_some, m_some, o_channel, m_channel, WHOLE, FULL, 0)
        b_pivot = tl.sum(b_some.to(tl.float32), 0) / tl.sum(m_some.to(tl.float32), 0)
    b_first = tl.zeros((ROWS, D), tl.float32)
    b_second = tl.zeros_like(b_first) if DIAG else tl.zeros((D, D), tl.float32)
    for i_tile in range(i_part, tiles, parts):
        if AHEAD:
            o_sample, m_sample = o_next, m_next
            b_raw = b_raw_next
            o_next, m_next = sample_offsets(i_tile + parts, n, s, sn, ss, BM, MERGED, I64, WIDTH)
            b_raw_next = load_tile(p_x, o_next, m_next, o_channel, m_channel, WHOLE, False, EIGHTS)
        else:
            o_sample, m_sample = sample_offsets(i_tile, n, s, sn, ss, BM, MERGED, I64, WIDTH)
            b_raw = load_tile(p_x, o_sample, m_sample, o_channel, m_channel, WHOLE, FULL, EIGHTS)
        b_x = b_raw.to(tl.float32)
        if CENTER:
            b_x -= b_pivot[None, :]
            if not FULL:
                b_x = tl.where(m_sample[:, None], b_x, 0.0)
        b_first += summed_apart(b_x, ROWS, NEAR)
        if DIAG:
            b_second += summed_apart(b_x * b_x, ROWS, NEAR)
        else:
            b_t = b_x if PROMOTE else b_x.to(b_raw.dtype)
            b_second = squared(b_t, b_second, PRECISION)

    _store_sums(p_sums, i_group, i_part, b_first, b_second, D, DIAG)
    if i_part == 0:
        tl.store(p_pivot + i_global, b_pivot, mask=m_channel)


@triton.jit
def apply_kernel(
    p_x, p_y, p_w, p_mean, p_rest, p_weight, p_bias, p_residual,
    n, s, sn, sc, ss, se, channels, tiles, size, groups, front, front_tiles,
    D: tl.constexpr, SPAN: tl.constexpr, BM: tl.constexpr, MERGED: tl.constexpr,
    WHOLE: tl.constexpr, I64: tl.constexpr, EXAMPLES: tl.constexpr, DIAG: tl.constexpr,
    RAW: tl.constexpr, WEIGHT: tl.constexpr, BIAS: tl.constexpr, RESIDUAL: tl.constexpr,
    ACT: tl.constexpr, KNOWN: tl.constexpr, RUN: tl.constexpr, ALIGN: tl.constexpr,
    WIDTH: tl.constexpr, NEAR: tl.constexpr, ROWS: tl.constexpr, AHEAD: tl.constexpr,
    EIGHTS: tl.constexpr, GRAIN: tl.constexpr, OVERLAP: tl.constexpr, FULL: tl.constexpr,
    PROMOTE: tl.constexpr, PRECISION: tl.constexpr, REST: tl.constexpr,
):  # fmt: skip
    """Step 3: y = act(γ·W(x − μ) + β + residual)."""
    i_group, i_part, parts = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    s, sc = whole(s, RUN, I64), whole(sc, ALIGN, I64)
    ss, channels, size = whole(ss, GRAIN, I64), channels * GRAIN, size * GRAIN
    i_global, i_own, m_channel, o_channel = features(
        i_group, size, channels, groups, sc, se, D, I64, EXAMPLES, KNOWN
    )
    i_first, i_stop, step = share(i_part, parts, tiles, front, front_tiles)
    if AHEAD:
        i_next = from_the_end(i_first, i_stop, tiles)
        o_next, m_next = sample_offsets(i_next, n, s, sn, ss, BM, MERGED, I64, WIDTH)
        b_raw_next = load_tile(p_x, o_next, m_next, o_channel, m_channel, WHOLE, False, EIGHTS)
    wait_for_previous(OVERLAP)
    b_mean = tl.load(p_mean + i_global, mask=m_channel, other=0.0)
    b_w, b_weight, b_bias = load_map(
        p_w, p_weight, p_bias, p_x, p_rest, i_group, size, i_global, i_own, m_channel,
        b_mean, D, SPAN, DIAG, WEIGHT, BIAS, RAW, PROMOTE, REST,
    )  # fmt: skip
    for i_step in range(i_first, i_stop, step):
        if AHEAD:
            o_sample, m_sample = o_next, m_next
            b_raw = b_raw_next
            i_next = from_the_end(i_step + step, i_stop, tiles)
            o_next, m_next = sample_offsets(i_next, n, s, sn, ss, BM, MERGED, I64, WIDTH)
            b_raw_next = load_tile(p_x, o_next, m_next, o_channel, m_channel, WHOLE, False, EIGHTS)
        else:
            i_tile = from_the_end(i_step, i_stop, tiles)
            o_sample, m_sample = sample_offsets(i_tile, n, s, sn, ss, BM, MERGED, I64, WIDTH)
            b_raw = load_tile(p_x, o_sample, m_sample, o_channel, m_channel, WHOLE, FULL, EIGHTS)
        b_x = centered(b_raw, b_mean, RAW)
        b_y = mapped(b_x, b_w, b_weight, b_bias, p_x, DIAG, WEIGHT, BIAS, RAW, PROMOTE, PRECISION)
        if RESIDUAL:
            b_residual = load_tile(
                p_residual, o_sample, m_sample, o_channel, m_channel, WHOLE, FULL, EIGHTS
            )
            b_y += b_residual.to(tl.float32)
        b_y = activated(b_y, ACT)
        store_tile(p_y, b_y, o_sample, m_sample, o_channel, m_channel, WHOLE, FULL)


@triton.jit
def backward_sums_kernel(
    p_x, p_dy, p_mean, p_rest, p_sums, p_w, p_weight, p_bias, p_extra, p_g,
    n, s, sn, sc, ss, se, channels, tiles, size, groups,
    D: tl.constexpr, SPAN: tl.constexpr, BM: tl.constexpr, MERGED: tl.constexpr,
    WHOLE: tl.constexpr, I64: tl.constexpr, EXAMPLES: tl.constexpr, DIAG: tl.constexpr,
    RAW: tl.constexpr, WEIGHT: tl.constexpr, BIAS: tl.constexpr, EXTRA: tl.constexpr,
    THROUGH: tl.constexpr, ACT: tl.constexpr, KNOWN: tl.constexpr, RUN: tl.constexpr,
    ALIGN: tl.constexpr, WIDTH: tl.constexpr, NEAR: tl.constexpr, ROWS: tl.constexpr,
    AHEAD: tl.constexpr, EIGHTS: tl.constexpr, GRAIN: tl.constexpr, OVERLAP: tl.constexpr,
    FULL: tl.constexpr, PROMOTE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Step 4: Σ g and Σ g(x − μ)ᵀ with g = act′(s)·dy, which THROUGH keeps."""
    let_next_begin(OVERLAP)
    i_group, i_part, parts = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    s, sc = whole(s, RUN, I64), whole(sc, ALIGN, I64)
    ss, channels, size = whole(ss, GRAIN, I64), channels * GRAIN, size * GRAIN
    i_global, i_own, m_channel, o_channel = features(
        i_group, size, channels, groups, sc, se, D, I64, EXAMPLES, KNOWN
    )
    b_mean = tl.load(p_mean + i_global, mask=m_channel, other=0.0)
    REMAKE: tl.constexpr = ACT == "silu" or (ACT == "relu" and not EXTRA)
    if REMAKE:
        b_w, b_weight, b_bias = load_map(
            p_w, p_weight, p_bias, p_x, p_rest, i_group, size, i_global, i_own, m_channel,
            b_mean, D, SPAN, DIAG, WEIGHT, BIAS, RAW, PROMOTE, True,
        )  # fmt: skip
    b_first = tl.zeros((ROWS, D), tl.float32)
    b_second = tl.zeros_like(b_first) if DIAG else tl.zeros((D, D), tl.float32)
    if AHEAD:
        o_next, m_next = sample_offsets(i_part, n, s, sn, ss, BM, MERGED, I64, WIDTH)
        b_raw_next = load_tile(p_x, o_next, m_next, o_channel, m_channel, WHOLE, False, EIGHTS)
        b_dy_next = load_tile(p_dy, o_next, m_next, o_channel, m_channel, WHOLE, False, EIGHTS)
    for i_tile in range(i_part, tiles, parts):
        if AHEAD:
            o_sample, m_sample = o_next, m_next
            b_raw, b_dy = b_raw_next, b_dy_next
            o_next, m_next = sample_offsets(i_tile + parts, n, s, sn, ss, BM, MERGED, I64, WIDTH)
            b_raw_next = load_tile(p_x, o_next, m_next, o_channel, m_channel, WHOLE, False, EIGHTS)
            b_dy_next = load_tile(p_dy, o_next, m_next, o_channel, m_channel, WHOLE, False, EIGHTS)
        else:
            o_sample, m_sample = sample_offsets(i_tile, n, s, sn, ss, BM, MERGED, I64, WIDTH)
            b_raw = load_tile(p_x, o_sample, m_sample, o_channel, m_channel, WHOLE, FULL, EIGHTS)
            b_dy = load_tile(p_dy, o_sample, m_sample, o_channel, m_channel, WHOLE, FULL, EIGHTS)
        b_x = centered(b_raw, b_mean, RAW)
        if ACT != "":
            if REMAKE:
                b_s = mapped(
                    b_x, b_w, b_weight, b_bias, p_x, DIAG, WEIGHT, BIAS, RAW, PROMOTE, PRECISION
                )
            if EXTRA:
                b_extra = load_tile(
                    p_extra, o_sample, m_sample, o_channel, m_channel, WHOLE, FULL, EIGHTS
                ).to(tl.float32)
                b_s = b_s + b_extra if REMAKE else b_extra
            b_dy = through_activation(b_dy.to(tl.float32), b_s, ACT).to(p_dy.dtype.element_ty)
            if THROUGH:
                store_tile(p_g, b_dy, o_sample, m_sample, o_channel, m_channel, WHOLE, FULL)
        b_first += summed_apart(b_dy.to(tl.float32), ROWS, NEAR)
        if DIAG:
            b_second += summed_apart(b_x * b_dy.to(tl.float32), ROWS, NEAR)
        else:
            # masked samples have dy = 0, so their x does not count
            b_t = b_x if PROMOTE else b_x.to(b_raw.dtype)
            b_second = multiplied(tl.trans(b_dy), b_t, b_second, PRECISION)
    if RAW:
        b_second -= tl.sum(b_first, 0)[:, None] * b_mean[None, :]
    _store_sums(p_sums, i_group, i_part, b_first, b_second, D, DIAG)


@triton.jit
def backward_apply_kernel(
    p_x, p_dy, p_dx, p_a, p_slope, p_mean, p_rest, p_shift, p_w, p_weight, p_bias,
    n, s, sn, sc, ss, se, channels, tiles, size, groups, front, front_tiles,
    D: tl.constexpr, SPAN: tl.constexpr, BM: tl.constexpr, MERGED: tl.constexpr,
    WHOLE: tl.constexpr, I64: tl.constexpr, EXAMPLES: tl.constexpr, DIAG: tl.constexpr,
    RAW: tl.constexpr, WEIGHT: tl.constexpr, BIAS: tl.constexpr, ACT: tl.constexpr,
    KNOWN: tl.constexpr, RUN: tl.constexpr, ALIGN: tl.constexpr, WIDTH: tl.constexpr,
    NEAR: tl.constexpr, ROWS: tl.constexpr, AHEAD: tl.constexpr, EIGHTS: tl.constexpr,
    GRAIN: tl.constexpr, OVERLAP: tl.constexpr, FULL: tl.constexpr, PROMOTE: tl.constexpr,
    PRECISION: tl.constexpr, TERMS: tl.constexpr, THROUGH: tl.constexpr,
):  # fmt: skip
    """Step 6: dx = Aᵀg + slope·(x − μ) + shift with g = act′(s)·dy. Where there is not room for
    both matrices, one launch writes the terms "of x" and another adds the term "of dy".
    """
    i_group, i_part, parts = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    s, sc = whole(s, RUN, I64), whole(sc, ALIGN, I64)
    ss, channels, size = whole(ss, GRAIN, I64), channels * GRAIN, size * GRAIN
    i_global, i_own, m_channel, o_channel = features(
        i_group, size, channels, groups, sc, se, D, I64, EXAMPLES, KNOWN
    )
    i_first, i_stop, step = share(i_part, parts, tiles, front, front_tiles)
    if AHEAD:  # 16-bit input, which has room for both terms
        i_next = from_the_end(i_first, i_stop, tiles)
        o_next, m_next = sample_offsets(i_next, n, s, sn, ss, BM, MERGED, I64, WIDTH)
        b_raw_next = load_tile(p_x, o_next, m_next, o_channel, m_channel, WHOLE, False, EIGHTS)
        if not THROUGH:  # or else step 4 has left it
            b_dy_next = load_tile(p_dy, o_next, m_next, o_channel, m_channel, WHOLE, False, EIGHTS)
    wait_for_previous(OVERLAP)
    if AHEAD and THROUGH:
        b_dy_next = load_tile(p_dy, o_next, m_next, o_channel, m_channel, WHOLE, False, EIGHTS)
    b_mean = tl.load(p_mean + i_global, mask=m_channel, other=0.0)
    b_shift = tl.load(p_shift + i_global, mask=m_channel, other=0.0)
    # slope grows as dy/x² does, beyond float16 in both directions: its entries are scaled to be ≤ 1
    HALF: tl.constexpr = p_x.dtype.element_ty == tl.float16 and not PROMOTE
    if ACT != "":
        b_w, b_weight, b_bias = load_map(
            p_w, p_weight, p_bias, p_x, p_rest, i_group, size, i_global, i_own, m_channel,
            b_mean, D, SPAN, DIAG, WEIGHT, BIAS, RAW, PROMOTE, True,
        )  # fmt: skip
    if DIAG:
        b_a = tl.load(p_a + i_global, mask=m_channel, other=0.0)
        b_slope = tl.load(p_slope + i_global, mask=m_channel, other=0.0)
    else:
        # dx = g·A + (x − μ)·slope with samples in rows; slope is symmetric
        i_channel = tl.arange(0, D)
        o_w, m_w = entries(i_channel[:, None], i_channel[None, :], i_group, size, SPAN)
        if TERMS != "of x":
            b_a = tl.load(p_a + o_w, mask=m_w, other=0.0)
            if not PROMOTE:
                b_a = b_a.to(p_x.dtype.element_ty)
        if TERMS != "of dy":
            b_slope = tl.load(p_slope + o_w, mask=m_w, other=0.0)
            b_rest = tl.load(p_rest + i_global, mask=m_channel, other=0.0)
            b_shift -= tl.sum(b_slope * b_rest[:, None], 0)
            if HALF:
                b_largest = tl.max(tl.abs(b_slope), 0)
                b_largest = tl.where(b_largest > 0.0, b_largest, 1.0)
                b_slope /= b_largest[None, :]
            if not PROMOTE:
                b_slope = b_slope.to(p_x.dtype.element_ty)
            if RAW:
                b_share = mean_share(b_slope, b_mean, PROMOTE)
                b_shift -= b_share * b_largest if HALF else b_share
    for i_step in range(i_first, i_stop, step):
        if AHEAD:
            o_sample, m_sample = o_next, m_next
            b_raw, b_dy = b_raw_next, b_dy_next
            i_next = from_the_end(i_step + step, i_stop, tiles)
            o_next, m_next = sample_offsets(i_next, n, s, sn, ss, BM, MERGED, I64, WIDTH)
            b_raw_next = load_tile(p_x, o_next, m_next, o_channel, m_channel, WHOLE, False, EIGHTS)
            b_dy_next = load_tile(p_dy, o_next, m_next, o_channel, m_channel, WHOLE, False, EIGHTS)
        else:
            i_tile = from_the_end(i_step, i_stop, tiles)
            o_sample, m_sample = sample_offsets(i_tile, n, s, sn, ss, BM, MERGED, I64, WIDTH)
            if TERMS != "of x":
                b_dy = load_tile(
                    p_dy, o_sample, m_sample, o_channel, m_channel, WHOLE, FULL, EIGHTS
                )
            if TERMS != "of dy":
                b_raw = load_tile(
                    p_x, o_sample, m_sample, o_channel, m_channel, WHOLE, FULL, EIGHTS
                )
        if TERMS != "of dy":
            b_x = centered(b_raw, b_mean, RAW)
        if ACT != "":
            b_s = mapped(
                b_x, b_w, b_weight, b_bias, p_x, DIAG, WEIGHT, BIAS, RAW, PROMOTE, PRECISION
            )
            b_dy = through_activation(b_dy.to(tl.float32), b_s, ACT).to(p_dy.dtype.element_ty)
        if DIAG:
            b_dx = b_dy.to(tl.float32) * b_a[None, :] + b_x * b_slope[None, :] + b_shift[None, :]
        else:
            b_dx = tl.zeros((BM, D), tl.float32)
            if TERMS != "of dy":
                b_t = b_x if PROMOTE else b_x.to(b_raw.dtype)
                b_dx = multiplied(b_t, b_slope, b_dx, PRECISION)
                if HALF:
                    b_dx *= b_largest[None, :]
            if TERMS != "of x":
                b_dx = multiplied(b_dy, b_a, b_dx, PRECISION)
            if TERMS != "of dy":  # last: products follow each other without a wait
                b_dx += b_shift[None, :]
            else:
                b_dx += load_tile(
                    p_dx, o_sample, m_sample, o_channel, m_channel, WHOLE, FULL, EIGHTS
                )
        store_tile(p_dx, b_dx, o_sample, m_sample, o_channel, m_channel, WHOLE, FULL)
