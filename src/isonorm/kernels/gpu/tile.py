"""What kernels do with one tile of an activation: find, load, store, multiply it, and add it up.

A tile is BM samples of D features, samples in rows. ``stream`` says what its constants mean.

Names: i_ index, o_ offset, m_ mask, p_ pointer, b_ block in registers.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def whole(number, FACTOR: tl.constexpr, I64: tl.constexpr):
    """A number that is passed without a factor the compiler knows."""
    if I64:
        number += tl.zeros((), tl.int64)  # a 1 is no tensor, and has no .to
    return number * FACTOR


@triton.jit
def features(
    i_group, size, channels, groups, sc, se, D: tl.constexpr, I64: tl.constexpr,
    EXAMPLES: tl.constexpr, KNOWN: tl.constexpr,
):  # fmt: skip
    """The D features of a group: their places among all statistics, and among an example's
    channels, their mask, and their offsets.
    """
    i_example = i_group // groups if EXAMPLES else 0
    i_first = (i_group - i_example * groups) * size
    i_channel = tl.arange(0, D)
    i_own = i_first + i_channel
    m_channel = (i_channel < size) & (i_own < channels)
    if KNOWN:  # apart, and in 64 bits as addresses are: one address is enough for all channels
        o_channel = i_first.to(tl.int64) * sc + i_channel.to(tl.int64) * sc
    else:
        o_channel = i_own.to(tl.int64) * sc if I64 else i_own * sc
    i_global = i_own
    if EXAMPLES:
        i_global = i_example * channels + i_own
        o_channel += i_example.to(tl.int64) * se if I64 else i_example * se
    return i_global, i_own, m_channel, o_channel


@triton.jit
def sample_offsets(
    i_tile, n, s, sn, ss, BM: tl.constexpr, MERGED: tl.constexpr, I64: tl.constexpr,
    WIDTH: tl.constexpr,
):  # fmt: skip
    """Offsets and mask of the BM samples of a tile. Where they are n runs of s at another stride,
    WIDTH of them at a time follow each other in memory.
    """
    if I64:
        i_tile += tl.zeros((), tl.int64)
        n += tl.zeros((), tl.int64)  # n·s counts the samples of one channel
    i_sample = i_tile * BM + tl.arange(0, BM)
    if MERGED:
        o_sample = i_sample * ss
    else:
        i_run = i_sample // s
        o_sample = i_run * sn + (i_sample - i_run * s) * ss
        o_sample = tl.max_contiguous(tl.multiple_of(o_sample, WIDTH), WIDTH)
    return o_sample, i_sample < n * s


@triton.jit
def spread_samples(COUNT: tl.constexpr, n, s, ss, I64: tl.constexpr):
    """Offsets and mask of COUNT samples at equal distances, of all that follow at one stride."""
    if I64:
        n += tl.zeros((), tl.int64)
    i_sample = tl.arange(0, COUNT) * tl.maximum(n * s // COUNT, 1)
    return i_sample * ss, i_sample < n * s


@triton.jit
def share(i_part, parts, tiles, front, front_tiles):
    """The steps of a walk that a program takes: the first, where to stop, and how many at a time.
    Programs of the ``front``, which start first, share the first steps, all others the rest.
    """
    in_front = i_part < front
    i_first = tl.where(in_front, i_part, front_tiles + i_part - front)
    i_stop = tl.where(in_front, front_tiles, tiles)
    return i_first, i_stop, tl.where(in_front, front, parts - front)


@triton.jit
def from_the_end(i_step, i_stop, tiles):
    """The tile that a walk back comes to at a step; from where it stops, one that is not there."""
    return tl.where(i_step < i_stop, tiles - 1 - i_step, tiles)


@triton.jit
def load_tile(
    p_x, o_sample, m_sample, o_channel, m_channel, WHOLE: tl.constexpr, FULL: tl.constexpr,
    EIGHTS: tl.constexpr,
):  # fmt: skip
    """A tile as it lies; or by EIGHTS of channels, which that many warps share."""
    if EIGHTS:
        return _load_by_eights(p_x, o_sample, m_sample, o_channel, m_channel, WHOLE, EIGHTS)
    p_tile = p_x + o_sample[:, None] + o_channel[None, :]
    if WHOLE and FULL:
        return tl.load(p_tile)
    if WHOLE:
        return tl.load(p_tile, mask=m_sample[:, None], other=0.0)
    return tl.load(p_tile, mask=m_sample[:, None] & m_channel[None, :], other=0.0)


@triton.jit
def _load_by_eights(
    p_x, o_sample, m_sample, o_channel, m_channel, WHOLE: tl.constexpr, EIGHTS: tl.constexpr
):
    """A tile of which each thread has eight channels of a sample, side by side: what it loads one
    by one it can then write to shared memory at once.

    The axes are in the order in which Triton deals out what it loads: samples that lie side by side
    to a warp's lanes, eights of channels to warps, and the rest to each thread.
    """
    BM: tl.constexpr = o_sample.shape[0]
    D: tl.constexpr = o_channel.shape[0]
    LANES: tl.constexpr = BM if BM < 32 else 32
    o = _dealt_samples(o_sample, LANES) + _dealt_channels(o_channel, EIGHTS)
    m = _dealt_samples(m_sample, LANES)
    if not WHOLE:
        m &= _dealt_channels(m_channel, EIGHTS)
    b_tile = tl.load(p_x + o, mask=m, other=0.0)
    return tl.reshape(tl.permute(b_tile, (4, 0, 3, 1, 2)), (BM, D))


@triton.jit
def _dealt_samples(b, LANES: tl.constexpr):
    b = tl.permute(tl.reshape(b, (b.shape[0] // LANES, LANES)), (1, 0))
    return b[:, None, None, None, :]


@triton.jit
def _dealt_channels(b, EIGHTS: tl.constexpr):
    b = tl.permute(tl.reshape(b, (b.shape[0] // 8 // EIGHTS, EIGHTS, 8)), (1, 2, 0))
    return b[None, :, :, :, None]


@triton.jit
def store_tile(
    p_y, b_y, o_sample, m_sample, o_channel, m_channel, WHOLE: tl.constexpr, FULL: tl.constexpr
):
    p_tile = p_y + o_sample[:, None] + o_channel[None, :]
    b_y = b_y.to(p_y.dtype.element_ty)
    if WHOLE and FULL:
        tl.store(p_tile, b_y)
    else:
        tl.store(p_tile, b_y, mask=m_sample[:, None] & m_channel[None, :])


@triton.jit
def entries(i_row, i_column, i_group, size, SPAN: tl.constexpr):
    """Where a program's matrix has its entries, and which it has: SPAN blocks on its diagonal."""
    own = size // SPAN
    i_row_block, i_column_block = i_row // own, i_column // own
    o_block = (i_group * SPAN + i_row_block) * own * own
    o = o_block + (i_row - i_row_block * own) * own + i_column - i_column_block * own
    return o, (i_row_block == i_column_block) & (i_row < size) & (i_column < size)


@triton.jit
def halves(b, PRECISION: tl.constexpr):
    """Two bfloat16 whose sum has 16 of the 24 bits of float32. Triton's interpreter cannot multiply
    them: there they are float32 again.
    """
    b_high = b.to(tl.bfloat16)
    b_low = (b.to(tl.float32) - b_high.to(tl.float32)).to(tl.bfloat16)
    if PRECISION == "bf16x3 in float32":
        b_high, b_low = b_high.to(tl.float32), b_low.to(tl.float32)
    return b_high, b_low


@triton.jit
def multiplied(b_left, b_right, b_sum, PRECISION: tl.constexpr):
    """left·right + sum. "bf16x3" takes float32 as sums of two bfloat16, good for 16 bits: unlike
    TF32, tensor cores read those in either order, as products over samples need them. Operands may
    be 16-bit, too: float16 has two halves, bfloat16 no lower one.
    """
    if PRECISION == "bf16x3" or PRECISION == "bf16x3 in float32":
        b_left_high, b_left_low = halves(b_left, PRECISION)
        b_right_high, b_right_low = halves(b_right, PRECISION)
        if b_left.dtype != tl.bfloat16:
            b_sum = tl.dot(b_left_low, b_right_high, b_sum)
        if b_right.dtype != tl.bfloat16:
            b_sum = tl.dot(b_left_high, b_right_low, b_sum)
        b_sum = tl.dot(b_left_high, b_right_high, b_sum)
    else:
        b_sum = tl.dot(b_left, b_right, b_sum, input_precision=PRECISION)
    return b_sum


@triton.jit
def squared(b_t, b_sum, PRECISION: tl.constexpr):
    """tᵀ·t + sum, of which only the symmetric part counts: with two halves that is the symmetric
    part of highᵀ·high + 2·highᵀ·low, one product less than ``multiplied`` takes.
    """
    if PRECISION == "bf16x3" or PRECISION == "bf16x3 in float32":
        b_high, b_low = halves(b_t, PRECISION)
        b_sum = tl.dot(tl.trans(b_high), 2 * b_low, b_sum)
        b_sum = tl.dot(tl.trans(b_high), b_high, b_sum)
    else:
        b_sum = tl.dot(tl.trans(b_t), b_t, b_sum, input_precision=PRECISION)
    return b_sum


@triton.jit
def summed_apart(b_tile, ROWS: tl.constexpr, NEAR: tl.constexpr):
    """ROWS sums over a tile's samples for each channel: over those that one thread holds, so that
    threads need to meet only once, after the last tile. NEAR: they lie side by side.
    """
    EACH: tl.constexpr = b_tile.shape[0] // ROWS
    D: tl.constexpr = b_tile.shape[1]
    if NEAR:
        b_sum = tl.sum(tl.reshape(b_tile, (ROWS, EACH, D)), 1)
    else:
        b_sum = tl.sum(tl.reshape(b_tile, (EACH, ROWS, D)), 0)
    return b_sum
