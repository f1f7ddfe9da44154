"""Kernels on d × d matrices: statistics, the root and its derivative, one program a group (steps 2
and 5). ``iterates`` has what they iterate.

Names: i_ index, o_ offset, m_ mask, p_ pointer, b_ block in registers.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .averages import count_batch, move
from .iterates import derivative_of_inverse_root, derivative_of_newton, newton, polar
from .overlap import take_turn


@triton.jit
def _matrix_offsets(i_group, size, D: tl.constexpr):
    i_row, i_column = tl.arange(0, D)[:, None], tl.arange(0, D)[None, :]
    o = i_group.to(tl.int64) * size * size + i_row * size + i_column
    return o, (i_row < size) & (i_column < size), i_row == i_column


@triton.jit
def _features(i_group, channels, size, m, D: tl.constexpr, RAGGED: tl.constexpr):
    """The places of a group's features among all, and the masks of those that it has: of its
    vectors and of its matrix. RAGGED: the last group has fewer than ``size``.
    """
    i_channel = tl.arange(0, D)
    i_global = i_group * size + i_channel
    m_channel = (i_channel < size) & (i_global < channels)
    if RAGGED:
        m = m_channel[:, None] & m_channel[None, :]
    return i_global, m_channel, m


@triton.jit
def _with_identity(b, m_own, diagonal, RAGGED: tl.constexpr):
    """A matrix with the identity's entries where a group has no features."""
    if RAGGED:
        b = tl.where(m_own, b, tl.where(diagonal, 1.0, 0.0))
    return b


@triton.jit
def _normalized(b_cov, b_variance, diagonal, m_channel, eps, FROBENIUS: tl.constexpr):
    """Σ_N = (Σ + εI)/s and s, given Σ's diagonal, too: a few numbers are quickly added."""
    b_sigma = b_cov + tl.where(diagonal, eps, 0.0)
    s = tl.sum(tl.where(m_channel, b_variance + eps, 0.0), 0)
    if FROBENIUS:
        b_unit = b_sigma * (1.0 / s)
        s = s * tl.sqrt(tl.sum(tl.sum(b_unit * b_unit, 1), 0))
    return b_sigma * (1.0 / s), s


@triton.jit
def _places_in_sums(i_group, groups, size, D: tl.constexpr, WIDE: tl.constexpr, SPAN: tl.constexpr):
    """Where the streaming kernels left a group's first and second sums, and the diagonal of these:
    as a block on the diagonal of a WIDE matrix that SPAN groups share.
    """
    i_span = (i_group // SPAN).to(tl.int64)
    i_channel = (i_group - i_span * SPAN) * size + tl.arange(0, D)
    o_second = (groups // SPAN) * WIDE + i_span * WIDE * WIDE
    return (
        i_span * WIDE + i_channel,
        o_second + i_channel[:, None] * WIDE + i_channel[None, :],
        o_second + i_channel * (WIDE + 1),
    )


@triton.jit
def _statistics(
    p_total, p_mean, p_rest, p_cov, i_group, groups, count, channels, size,
    D: tl.constexpr, WIDE: tl.constexpr, SPAN: tl.constexpr, CENTER: tl.constexpr,
    ONE_SIDED: tl.constexpr, RAGGED: tl.constexpr,
):  # fmt: skip
    """μ, its rest and Σ of a group from its sums about the pivot, which lies where μ will; Σ and
    its diagonal are returned. Of ONE_SIDED second sums only the symmetric part counts.
    """
    o, m, diagonal = _matrix_offsets(i_group, size, D)
    i_global, m_channel, m_own = _features(i_group, channels, size, m, D, RAGGED)
    m_stored = tl.arange(0, D) < size
    o_first, o_second, o_diagonal = _places_in_sums(i_group, groups, size, D, WIDE, SPAN)
    share = 1.0 / count
    b_delta = tl.load(p_total + o_first, mask=m_channel, other=0.0) * share
    b_pivot = tl.load(p_mean + i_global, mask=m_channel, other=0.0)
    b_mean = b_pivot + b_delta
    b_rest = b_delta - (b_mean - b_pivot)
    if not CENTER:
        b_mean = tl.zeros_like(b_mean)
        b_delta = tl.zeros_like(b_delta)
        b_rest = tl.zeros_like(b_delta)
    tl.debug_barrier()  # every thread has read the pivot before any overwrites it
    tl.store(p_mean + i_global, b_mean, mask=m_stored)
    tl.store(p_rest + i_global, b_rest, mask=m_stored)
    b_cov = tl.load(p_total + o_second, mask=m_own, other=0.0) * share
    if ONE_SIDED:
        b_cov = 0.5 * (b_cov + tl.trans(b_cov))
    b_cov -= b_delta[:, None] * b_delta[None, :]
    tl.store(p_cov + o, _with_identity(b_cov, m_own, diagonal, RAGGED), mask=m)
    b_variance = tl.load(p_total + o_diagonal, mask=m_channel, other=0.0) * share
    return tl.where(m_own, b_cov, 0.0), b_variance - b_delta * b_delta


@triton.jit
def statistics_kernel(
    p_total, p_mean, p_rest, p_cov, count, channels, size,
    D: tl.constexpr, WIDE: tl.constexpr, SPAN: tl.constexpr, CENTER: tl.constexpr,
    ONE_SIDED: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """μ and Σ of a group, for roots that have no kernel."""
    take_turn(OVERLAP)
    i_group, groups = tl.program_id(0), tl.num_programs(0)
    _statistics(
        p_total, p_mean, p_rest, p_cov, i_group, groups, count, channels, size,
        D, WIDE, SPAN, CENTER, ONE_SIDED, False,
    )  # fmt: skip


@triton.jit
def root_kernel(
    p_total, p_mean, p_rest, p_cov, p_w, p_memo, p_running_mean, p_running, p_batches,
    eps, momentum, unbiased, count, channels, size,
    CENTER: tl.constexpr, ONE_SIDED: tl.constexpr, STEPS: tl.constexpr, D: tl.constexpr,
    WIDE: tl.constexpr, SPAN: tl.constexpr, QUINTIC: tl.constexpr, FROBENIUS: tl.constexpr,
    PRECISION: tl.constexpr, HALF_MEMO: tl.constexpr, AVERAGE: tl.constexpr,
    WHOLE: tl.constexpr, RAGGED: tl.constexpr, GRAIN: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    """Step 2: W = P_T(Σ_N)/√s, and the memo; μ and Σ on the way, and their running averages."""
    take_turn(OVERLAP)
    size *= GRAIN  # so that the compiler sees how wide it may load
    if WHOLE:  # no masks
        size = D
    i_group, groups = tl.program_id(0), tl.num_programs(0)
    o, m, diagonal = _matrix_offsets(i_group, size, D)
    b_eye = tl.where(diagonal, 1.0, 0.0)
    b_cov, b_variance = _statistics(
        p_total, p_mean, p_rest, p_cov, i_group, groups, count, channels, size,
        D, WIDE, SPAN, CENTER, ONE_SIDED, RAGGED,
    )  # fmt: skip
    i_global, m_channel, m_own = _features(i_group, channels, size, m, D, RAGGED)
    b_z, s = _normalized(b_cov, b_variance, diagonal & m_own, m_channel, eps, FROBENIUS)
    if QUINTIC:
        b_p = polar(b_z, b_eye, STEPS, PRECISION)
    else:
        b_p = newton(p_memo, b_z, b_eye, groups, size, o, m, STEPS, PRECISION, HALF_MEMO)
    b_w = _with_identity(b_p * (1.0 / tl.sqrt(s)), m_own, diagonal, RAGGED)
    tl.store(p_w + o, b_w, mask=m)
    if AVERAGE != "":
        tl.debug_barrier()  # the mean lies where other threads have put it
        b_mean = tl.load(p_mean + i_global, mask=m_channel, other=0.0)
        move(p_running_mean + i_global, b_mean, m_channel, momentum)
        b_new = b_cov * unbiased if AVERAGE == "covariance" else b_w
        move(p_running + o, b_new, m_own, momentum)
        count_batch(p_batches, i_group)


@triton.jit
def root_backward_kernel(
    p_total, p_rest, p_cov, p_w, p_memo, p_weight,
    p_dweight, p_dbias, p_a, p_slope, p_shift, count, eps, channels, size, groups_of_example,
    STEPS: tl.constexpr, D: tl.constexpr, WIDE: tl.constexpr, SPAN: tl.constexpr,
    QUINTIC: tl.constexpr, FROBENIUS: tl.constexpr, WEIGHT: tl.constexpr, PRECISION: tl.constexpr,
    HALF_MEMO: tl.constexpr, WHOLE: tl.constexpr, RAGGED: tl.constexpr, GRAIN: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    """Step 5: dγ, A, slope = 2·dΣ/m and shift = −Aᵀf/m. STEPS are those of the derivative."""
    take_turn(OVERLAP)
    size *= GRAIN  # so that the compiler sees how wide it may load
    if WHOLE:  # no masks
        size = D
    i_group, groups = tl.program_id(0), tl.num_programs(0)
    o, m, diagonal = _matrix_offsets(i_group, size, D)
    i_channel = tl.arange(0, D)
    i_global, m_channel, m_own = _features(i_group, channels, size, m, D, RAGGED)
    o_first, o_second, _ = _places_in_sums(i_group, groups, size, D, WIDE, SPAN)
    # Loads come first, so that one wait is enough for all.
    b_dw = tl.load(p_total + o_second, mask=m_own, other=0.0)
    b_w = tl.load(p_w + o, mask=m, other=0.0)
    b_cov = tl.load(p_cov + o, mask=m_own, other=0.0)
    o_diagonal = i_group.to(tl.int64) * size * size + i_channel * (size + 1)
    b_variance = tl.load(p_cov + o_diagonal, mask=m_channel, other=0.0)
    b_f = tl.load(p_total + o_first, mask=m_channel, other=0.0)
    b_rest = tl.load(p_rest + i_global, mask=m_channel, other=0.0)
    if WEIGHT:
        i_own = (i_group % groups_of_example) * size + i_channel
        b_weight = tl.load(p_weight + i_own, mask=m_channel, other=0.0).to(tl.float32)

    b_dw -= b_f[:, None] * b_rest[None, :]  # about the mean and its rest
    tl.store(p_dbias + i_global, b_f, mask=m_channel)
    b_gain = tl.sum(b_w * b_dw, 1)
    tl.store(p_dweight + i_global, b_gain, mask=m_channel)
    b_a = b_w
    if WEIGHT:
        b_dw *= b_weight[:, None]
        b_a = b_w * b_weight[:, None]
        b_gain *= b_weight
    tl.store(p_a + o, b_a, mask=m)
    share = 1.0 / count
    b_shift = -tl.sum(b_a * b_f[:, None], 0) * share
    tl.store(p_shift + i_global, b_shift, mask=i_channel < size)
    inner = 0.5 * tl.sum(b_gain, 0)

    b_sigma, s = _normalized(b_cov, b_variance, diagonal & m_own, m_channel, eps, FROBENIUS)
    b_dz = 0.5 * (b_dw + tl.trans(b_dw))
    # at least what has a reciprocal in float32
    size_of_gradient = tl.maximum(tl.max(tl.abs(b_dz)), 1e-37)
    b_dz *= 1.0 / size_of_gradient
    if QUINTIC:
        b_root = b_w * tl.sqrt(s)
        b_dp = derivative_of_inverse_root(b_sigma, b_root, b_dz, diagonal, STEPS, PRECISION)
    else:
        b_dp = derivative_of_newton(
            p_memo, b_sigma, b_dz, groups, size, o, m, D, STEPS, PRECISION, HALF_MEMO
        )
    tl.debug_barrier()  # so that Σ is read again here, rather than in registers all the while
    b_cov = tl.load(p_cov + o, mask=m_own, other=0.0)
    b_grad = 0.5 * (b_dp + tl.trans(b_dp)) * (size_of_gradient / tl.sqrt(s))
    b_sigma = (b_cov + tl.where(diagonal & m_own, eps, 0.0)) * (1.0 / s)
    through = tl.sum(b_grad * b_sigma) + inner
    if FROBENIUS:
        b_grad -= through * b_sigma
    else:
        b_grad -= tl.where(diagonal, through, 0.0)
    tl.store(p_slope + o, b_grad * (2.0 * share / s), mask=m)
