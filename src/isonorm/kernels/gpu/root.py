"""Kernels on d × d matrices: the recurrence and its derivative, one program a group (steps 2 and
5).

The mathematics is that of ``roots.recurrence``. All iterates of a group stay in registers and
shared memory. What the backward pass needs of Newton's goes to the memo: Z_k, then P_k, from k = 1
to T − 1. Where the quintic steps of ``roots.polar`` have arrived at Σ^(-1/2), its derivative
needs none of them.

A product has three terms of the operands' high and low halves, which is float32's accuracy to a few
units in the last place: the iteration amplifies what it is given. TF32 has float32's range, which
full whitening and many steps need. Float16 takes half the instructions, as long as nothing is
beyond its range: all iterates of a few Newton steps are of size 1 at most, or little more, and
gradients are scaled to be, since the derivative is linear in them. Low halves are kept 2048 times
as large, so that they have all their bits, too. For bfloat16 input one term of float16 is enough:
W and slope are rounded to bfloat16 before they meet it, which loses more. The memo is in float16
then, too, HALF_MEMO: it takes half of the room that float32 would.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def sum_parts_kernel(p_parts, parts, row, PARTS: tl.constexpr, COLUMNS: tl.constexpr):
    """Adds the rows of a (parts, row) matrix into its first one, in a fixed order."""
    i_column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    b_sum = tl.zeros((PARTS, COLUMNS), tl.float32)
    for i_first in range(0, parts, PARTS):
        i_part = i_first + tl.arange(0, PARTS)
        m = (i_part < parts)[:, None] & (i_column < row)[None, :]
        o = i_part[:, None].to(tl.int64) * row + i_column[None, :]
        b_sum += tl.load(p_parts + o, mask=m, other=0.0)
    tl.store(p_parts + i_column, tl.sum(b_sum, 0), mask=i_column < row)


@triton.jit
def _matrix_offsets(i_group, size, D: tl.constexpr):
    i_row, i_column = tl.arange(0, D)[:, None], tl.arange(0, D)[None, :]
    o = i_group.to(tl.int64) * size * size + i_row * size + i_column
    return o, (i_row < size) & (i_column < size), i_row == i_column


@triton.jit
def _product(b_left, b_right, PRECISION: tl.constexpr):
    """left·right in float32."""
    LOW: tl.constexpr = 2048.0  # float16 has 11 bits
    if PRECISION == "float16":
        b_out = tl.dot(b_left.to(tl.float16), b_right.to(tl.float16))
    elif PRECISION == "float16x3":
        b_left_high, b_right_high = b_left.to(tl.float16), b_right.to(tl.float16)
        b_left_low = ((b_left - b_left_high.to(tl.float32)) * LOW).to(tl.float16)
        b_right_low = ((b_right - b_right_high.to(tl.float32)) * LOW).to(tl.float16)
        b_out = tl.dot(b_left_low, b_right_high)
        b_out = tl.dot(b_left_high, b_right_low, b_out) * (1.0 / LOW)
        b_out = tl.dot(b_left_high, b_right_high, b_out)
    else:
        b_out = tl.dot(b_left, b_right, input_precision=PRECISION)
    return b_out


@triton.jit
def _coefficient(k, POWER: tl.constexpr, STEPS: tl.constexpr):
    """Of Z^POWER in step k; STEPS has three numbers for each step."""
    found = tl.zeros((), tl.float32)
    for i in tl.static_range(len(STEPS) // 3):
        found = tl.where(k == i, STEPS[3 * i + POWER], found)
    return found


@triton.jit
def _polynomial(b_z, b_eye, k, STEPS: tl.constexpr, QUINTIC: tl.constexpr, PRECISION: tl.constexpr):
    b_q = _coefficient(k, 1, STEPS) * b_z + _coefficient(k, 0, STEPS) * b_eye
    if QUINTIC:
        b_q += _coefficient(k, 2, STEPS) * _product(b_z, b_z, PRECISION)
    return b_q


@triton.jit
def _times_step(b_left, b_z, k, STEPS: tl.constexpr, PRECISION: tl.constexpr):
    """left·Q of Newton's step k, where Q = a + b·Z: what a gives is not rounded for a product, and
    is most of it, since Z is small until it is near I.
    """
    a, b = _coefficient(k, 0, STEPS), _coefficient(k, 1, STEPS)
    return a * b_left + b * _product(b_left, b_z, PRECISION)


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
def _memo(p_memo, HALF_MEMO: tl.constexpr):
    """Where the memo lies, as a pointer to the numbers it has."""
    return p_memo.to(tl.pointer_type(tl.float16)) if HALF_MEMO else p_memo


@triton.jit
def _keep(p_memo, slot, groups, size, o, m, b):
    b = b.to(p_memo.dtype.element_ty)
    tl.store(p_memo + slot * groups.to(tl.int64) * size * size + o, b, mask=m)


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
    p_total, p_mean, p_cov, i_group, groups, count, channels, size,
    D: tl.constexpr, WIDE: tl.constexpr, SPAN: tl.constexpr, CENTER: tl.constexpr,
    ONE_SIDED: tl.constexpr,
):  # fmt: skip
    """μ and Σ of a group from its sums about the pivot, which lies where μ will; Σ and its diagonal
    are returned. Of ONE_SIDED second sums only the symmetric part counts.
    """
    i_channel = tl.arange(0, D)
    i_global = i_group * size + i_channel
    m_channel = (i_channel < size) & (i_global < channels)
    o_first, o_second, o_diagonal = _places_in_sums(i_group, groups, size, D, WIDE, SPAN)
    share = 1.0 / count
    b_delta = tl.load(p_total + o_first, mask=i_channel < size, other=0.0) * share
    b_mean = tl.load(p_mean + i_global, mask=m_channel, other=0.0) + b_delta
    if not CENTER:
        b_mean = tl.zeros_like(b_mean)
        b_delta = tl.zeros_like(b_delta)
    tl.debug_barrier()  # every thread has read the pivot before any overwrites it
    tl.store(p_mean + i_global, b_mean, mask=m_channel)
    o, m, _ = _matrix_offsets(i_group, size, D)
    b_cov = tl.load(p_total + o_second, mask=m, other=0.0) * share
    if ONE_SIDED:
        b_cov = 0.5 * (b_cov + tl.trans(b_cov))
    b_cov -= b_delta[:, None] * b_delta[None, :]
    tl.store(p_cov + o, b_cov, mask=m)
    b_variance = tl.load(p_total + o_diagonal, mask=i_channel < size, other=0.0) * share
    return tl.where(m, b_cov, 0.0), b_variance - b_delta * b_delta


@triton.jit
def statistics_kernel(
    p_total, p_mean, p_cov, count, channels, size,
    D: tl.constexpr, WIDE: tl.constexpr, SPAN: tl.constexpr, CENTER: tl.constexpr,
    ONE_SIDED: tl.constexpr,
):  # fmt: skip
    """μ and Σ of a group, for roots that have no kernel."""
    i_group, groups = tl.program_id(0), tl.num_programs(0)
    _statistics(
        p_total, p_mean, p_cov, i_group, groups, count, channels, size,
        D, WIDE, SPAN, CENTER, ONE_SIDED,
    )  # fmt: skip


@triton.jit
def _move(p_running, b_new, m, momentum):
    """A running average towards a batch's value; as torch's lerp_ from the nearer end, so that a
    momentum of 1 leaves nothing of the old.
    """
    b_old = tl.load(p_running, mask=m, other=0.0)
    b_way = b_new - b_old
    near_old, near_new = b_old + momentum * b_way, b_new - (1.0 - momentum) * b_way
    tl.store(p_running, tl.where(momentum < 0.5, near_old, near_new), mask=m)


@triton.jit
def _count_batch(p_batches, i_group):
    if i_group == 0:
        tl.store(p_batches, tl.load(p_batches) + 1)


@triton.jit
def scale_kernel(
    p_total, p_mean, p_cov, p_w, p_running_mean, p_running, p_batches,
    eps, momentum, unbiased, count, channels, groups,
    D: tl.constexpr, CENTER: tl.constexpr, SCALE: tl.constexpr, AVERAGE: tl.constexpr,
):  # fmt: skip
    """μ, σ² and (σ² + ε)^(-1/2) of D channels standardized one by one."""
    i_group, problems = tl.program_id(0), tl.num_programs(0)
    i_example = i_group // groups
    i_own = (i_group - i_example * groups) * D + tl.arange(0, D)
    m = i_own < channels
    i_global = i_example * channels + i_own
    i_padded = i_group * D + tl.arange(0, D)
    b_delta = tl.load(p_total + i_padded) / count
    b_mean = tl.load(p_mean + i_global, mask=m, other=0.0) + b_delta
    if not CENTER:
        b_mean = tl.zeros_like(b_mean)
        b_delta = tl.zeros_like(b_delta)
    tl.debug_barrier()
    tl.store(p_mean + i_global, b_mean, mask=m)
    b_cov = tl.load(p_total + problems * D + i_padded) / count - b_delta * b_delta
    tl.store(p_cov + i_global, b_cov, mask=m)
    b_w = 1.0 / tl.sqrt(b_cov + eps)
    if SCALE:
        tl.store(p_w + i_global, b_w, mask=m)
    if AVERAGE != "":
        _move(p_running_mean + i_global, b_mean, m, momentum)
        b_new = b_cov * unbiased if AVERAGE == "covariance" else b_w
        _move(p_running + i_global, b_new, m, momentum)
        _count_batch(p_batches, i_group)


@triton.jit
def root_kernel(
    p_total, p_mean, p_cov, p_w, p_memo, p_running_mean, p_running, p_batches,
    eps, momentum, unbiased, count, channels, size,
    CENTER: tl.constexpr, ONE_SIDED: tl.constexpr, STEPS: tl.constexpr, D: tl.constexpr,
    WIDE: tl.constexpr, SPAN: tl.constexpr, QUINTIC: tl.constexpr, FROBENIUS: tl.constexpr,
    PRECISION: tl.constexpr, HALF_MEMO: tl.constexpr, AVERAGE: tl.constexpr,
):  # fmt: skip
    """Step 2: W = P_T(Σ_N)/√s, and the trail; μ and Σ on the way, and their running averages."""
    i_group, groups = tl.program_id(0), tl.num_programs(0)
    p_memo = _memo(p_memo, HALF_MEMO)
    o, m, diagonal = _matrix_offsets(i_group, size, D)
    b_eye = tl.where(diagonal, 1.0, 0.0)
    b_cov, b_variance = _statistics(
        p_total, p_mean, p_cov, i_group, groups, count, channels, size,
        D, WIDE, SPAN, CENTER, ONE_SIDED,
    )  # fmt: skip
    m_own = tl.arange(0, D) < size
    b_z, s = _normalized(b_cov, b_variance, diagonal & m, m_own, eps, FROBENIUS)
    T: tl.constexpr = len(STEPS) // 3
    b_p = b_eye
    if T > 0:
        b_q = _polynomial(b_z, b_eye, 0, STEPS, QUINTIC, PRECISION)
        b_p = b_q
        if T > 1:
            for k in range(1, T):
                if QUINTIC:
                    b_b = _product(b_z, b_q, PRECISION)
                    b_z = _product(b_b, b_q, PRECISION)
                    b_q = _polynomial(b_z, b_eye, k, STEPS, QUINTIC, PRECISION)
                    b_p = _product(b_p, b_q, PRECISION)
                else:
                    b_b = _times_step(b_z, b_z, k - 1, STEPS, PRECISION)
                    b_z = _times_step(b_b, b_z, k - 1, STEPS, PRECISION)
                    _keep(p_memo, k - 1, groups, size, o, m, b_z)
                    _keep(p_memo, T + k - 2, groups, size, o, m, b_p)
                    b_p = _times_step(b_p, b_z, k, STEPS, PRECISION)
    b_w = b_p * (1.0 / tl.sqrt(s))
    tl.store(p_w + o, b_w, mask=m)
    if AVERAGE != "":
        i_channel = tl.arange(0, D)
        i_global = i_group * size + i_channel
        m_channel = (i_channel < size) & (i_global < channels)
        tl.debug_barrier()  # the mean lies where other threads have put it
        b_mean = tl.load(p_mean + i_global, mask=m_channel, other=0.0)
        _move(p_running_mean + i_global, b_mean, m_channel, momentum)
        _move(p_running + o, b_cov * unbiased if AVERAGE == "covariance" else b_w, m, momentum)
        _count_batch(p_batches, i_group)


@triton.jit
def _next_direction(b_z, b_dz, k, STEPS: tl.constexpr, PRECISION: tl.constexpr):
    """That of Z ← Q·Z·Q in step k, with Q = a + b·Z: a·U + b·(ZU + ZUᵀ + UZ), where U = dZ·Q.

    Tensor cores read operands in float16 either way, so that three products cost less than two
    matrices of float32 turned over between threads. With three terms each it is the other way, and
    large matrices have no room for so many operands: there Q·dZ·Q, being symmetric, is half of
    itself and the transpose of that.
    """
    a, b = _coefficient(k, 0, STEPS), _coefficient(k, 1, STEPS)
    b_u = _times_step(b_dz, b_z, k, STEPS, PRECISION)
    if PRECISION == "float16" and b_z.shape[0] <= 64:
        b_left, b_right = b_z.to(tl.float16), b_u.to(tl.float16)
        b_sum = tl.dot(b_left, b_right)
        b_sum = tl.dot(b_left, tl.trans(b_right), b_sum)
        b_sum = tl.dot(b_right, b_left, b_sum)
        b_next = a * b_u + b * b_sum
    else:
        b_x = 0.5 * a * b_u + b * _product(b_z, 0.5 * b_u + tl.trans(b_u), PRECISION)
        b_next = b_x + tl.trans(b_x)
    return b_next


@triton.jit
def _derivative_of_steps(
    p_memo, b_z, b_dz, groups, size, o, m,
    D: tl.constexpr, STEPS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """That of P_T at Z = Σ_N in the direction dZ, along Newton's recurrence."""
    stride = groups.to(tl.int64) * size * size
    T: tl.constexpr = len(STEPS) // 3
    b_dp = tl.zeros((D, D), tl.float32)
    if T > 0:
        b_dp = _coefficient(0, 1, STEPS) * b_dz
    if T > 1:
        b_z = b_z.to(p_memo.dtype.element_ty)
        for k in range(1, T):
            b_dz = _next_direction(b_z, b_dz, k - 1, STEPS, PRECISION)
            # dP·Q + P·dQ
            b_z = tl.load(p_memo + (k - 1) * stride + o, mask=m, other=0.0)
            b_dp = _times_step(b_dp, b_z, k, STEPS, PRECISION)
            b_p = tl.load(p_memo + (T + k - 2) * stride + o, mask=m, other=0.0)
            b_dp += _product(b_p, _coefficient(k, 1, STEPS) * b_dz, PRECISION)
    return b_dp


@triton.jit
def _derivative_of_inverse_root(
    b_sigma, b_w, b_dz, diagonal, STEPS: tl.constexpr, PRECISION: tl.constexpr
):
    """That of Σ_N^(-1/2) at Σ_N in the direction dZ: −W·Y·W, where SY + YS = dZ and S = Σ_N·W.

    The polynomials' own derivative would be exact, too, but inaccurate in float32: it amplifies
    twice the rounding errors of eigenvalues that the steps shrink and grow back. Steps to the
    matrix sign of (S dZ; 0 −S) give Y, since that is (I 2Y; 0 −I). Eigenvalues of S below the bound
    of ``polar`` do not get to 1: their directions' share stays finite, and smaller than it is.
    """
    b_s = _product(b_sigma, b_w, PRECISION)
    b_s = 0.5 * (b_s + tl.trans(b_s))
    for k in range(len(STEPS) // 3):
        a, b = _coefficient(k, 0, STEPS), _coefficient(k, 1, STEPS)
        b_t = _product(b_s, b_dz, PRECISION)
        b_y = 0.5 * a * b_dz + b * _product(b_s, b_t - 0.5 * tl.trans(b_t), PRECISION)
        b_dz = b_y + tl.trans(b_y)
        b_q = tl.where(diagonal, a, 0.0) + b * _product(b_s, b_s, PRECISION)
        b_s = _product(b_s, b_q, PRECISION)
    return -0.5 * _product(_product(b_w, b_dz, PRECISION), b_w, PRECISION)


@triton.jit
def root_backward_kernel(
    p_total, p_cov, p_w, p_memo, p_weight,
    p_dweight, p_dbias, p_a, p_slope, p_shift, count, eps, channels, size, groups_of_example,
    STEPS: tl.constexpr, D: tl.constexpr, WIDE: tl.constexpr, SPAN: tl.constexpr,
    QUINTIC: tl.constexpr, FROBENIUS: tl.constexpr, WEIGHT: tl.constexpr, PRECISION: tl.constexpr,
    HALF_MEMO: tl.constexpr,
):  # fmt: skip
    """Step 5: dγ, A, slope = 2·dΣ/m and shift = −Aᵀf/m. STEPS are those of the derivative."""
    i_group, groups = tl.program_id(0), tl.num_programs(0)
    o, m, diagonal = _matrix_offsets(i_group, size, D)
    i_channel = tl.arange(0, D)
    i_global = i_group * size + i_channel
    m_channel = (i_channel < size) & (i_global < channels)
    o_first, o_second, _ = _places_in_sums(i_group, groups, size, D, WIDE, SPAN)
    # Loads come first, so that one wait is enough for all.
    b_dw = tl.load(p_total + o_second, mask=m, other=0.0)
    b_w = tl.load(p_w + o, mask=m, other=0.0)
    b_cov = tl.load(p_cov + o, mask=m, other=0.0)
    o_diagonal = i_group.to(tl.int64) * size * size + i_channel * (size + 1)
    b_variance = tl.load(p_cov + o_diagonal, mask=i_channel < size, other=0.0)
    b_f = tl.load(p_total + o_first, mask=i_channel < size, other=0.0)
    if WEIGHT:
        i_own = (i_group % groups_of_example) * size + i_channel
        b_weight = tl.load(p_weight + i_own, mask=m_channel, other=0.0).to(tl.float32)

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
    tl.store(p_shift + i_global, -tl.sum(b_a * b_f[:, None], 0) * share, mask=m_channel)
    inner = 0.5 * tl.sum(b_gain, 0)

    b_sigma, s = _normalized(b_cov, b_variance, diagonal & m, i_channel < size, eps, FROBENIUS)
    b_dz = 0.5 * (b_dw + tl.trans(b_dw))
    # at least what has a reciprocal in float32
    size_of_gradient = tl.maximum(tl.max(tl.abs(b_dz)), 1e-37)
    b_dz *= 1.0 / size_of_gradient
    if QUINTIC:
        b_root = b_w * tl.sqrt(s)
        b_dp = _derivative_of_inverse_root(b_sigma, b_root, b_dz, diagonal, STEPS, PRECISION)
    else:
        p_memo = _memo(p_memo, HALF_MEMO)
        b_dp = _derivative_of_steps(p_memo, b_sigma, b_dz, groups, size, o, m, D, STEPS, PRECISION)
    tl.debug_barrier()  # so that Σ is read again here, rather than in registers all the while
    b_cov = tl.load(p_cov + o, mask=m, other=0.0)
    b_grad = 0.5 * (b_dp + tl.trans(b_dp)) * (size_of_gradient / tl.sqrt(s))
    b_sigma = (b_cov + tl.where(diagonal & m, eps, 0.0)) * (1.0 / s)
    through = tl.sum(b_grad * b_sigma) + inner
    if FROBENIUS:
        b_grad -= through * b_sigma
    else:
        b_grad -= tl.where(diagonal, through, 0.0)
    tl.store(p_slope + o, b_grad * (2.0 * share / s), mask=m)


@triton.jit
def scale_backward_kernel(
    p_total, p_w, p_weight, p_dweight, p_dbias, p_a, p_slope, p_shift,
    count, problems, channels, padded, padded_channels,
    BLOCK: tl.constexpr, WEIGHT: tl.constexpr, CENTER: tl.constexpr,
):  # fmt: skip
    """Step 5 for single channels, where W = (σ² + ε)^(-1/2) and dσ² = −½·dW·W³."""
    i_problem = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = i_problem < problems
    i_example = i_problem // channels
    i_own = i_problem - i_example * channels
    i_padded = i_example * padded_channels + i_own
    b_f = tl.load(p_total + i_padded, mask=m, other=0.0)
    tl.store(p_dbias + i_problem, b_f, mask=m)
    b_dw = tl.load(p_total + padded + i_padded, mask=m, other=0.0)
    b_w = tl.load(p_w + i_problem, mask=m, other=0.0)
    tl.store(p_dweight + i_problem, b_w * b_dw, mask=m)
    b_a = b_w
    if WEIGHT:
        b_weight = tl.load(p_weight + i_own, mask=m, other=0.0).to(tl.float32)
        b_dw *= b_weight
        b_a *= b_weight
    tl.store(p_a + i_problem, b_a, mask=m)
    tl.store(p_slope + i_problem, -b_dw * b_w * b_w * b_w / count, mask=m)
    b_shift = -b_a * b_f / count
    if not CENTER:
        b_shift = tl.zeros_like(b_shift)
    tl.store(p_shift + i_problem, b_shift, mask=m)
