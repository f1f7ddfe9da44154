"""Iterates of a group's d × d matrix in one program: the steps of a root, and of its derivative.

The mathematics is that of ``roots.recurrence``. All iterates stay in registers and shared memory.
What the backward pass needs of Newton's goes to the memo: H_k = b·Z_k, then P_k, from k = 1 to
T − 1. Where the quintic steps of ``roots.polar`` have arrived at Σ^(-1/2), its derivative needs
none of them.

A product has three terms of the operands' high and low halves, which is float32's accuracy to a few
units in the last place: the iteration amplifies what it is given. TF32 has float32's range, which
full whitening and many steps need. Float16 takes half the instructions, as long as nothing is
beyond its range: all iterates of a few Newton steps are of size 1 at most, or little more, and
gradients are scaled to be, since the derivative is linear in them. Low halves are kept 2048 times
as large, so that they have all their bits, too. For bfloat16 input one term of float16 is enough:
W and slope are rounded to bfloat16 before they meet it, which loses more. The memo is in float16
then, too, HALF_MEMO: it takes half of the room that float32 would.

Names: i_ index, o_ offset, m_ mask, p_ pointer, b_ block in registers.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _product(b_left, b_right, PRECISION: tl.constexpr):
    """left·right in float32."""
    return _add_product(tl.zeros(b_left.shape, tl.float32), b_left, b_right, PRECISION)


@triton.jit
def _add_product(b_sum, b_left, b_right, PRECISION: tl.constexpr):
    """sum + left·right in float32."""
    LOW: tl.constexpr = 2048.0  # float16 has 11 bits
    if PRECISION == "float16":
        b_out = tl.dot(b_left.to(tl.float16), b_right.to(tl.float16), b_sum)
    elif PRECISION == "float16x3":
        b_left_high, b_right_high = b_left.to(tl.float16), b_right.to(tl.float16)
        b_left_low = ((b_left - b_left_high.to(tl.float32)) * LOW).to(tl.float16)
        b_right_low = ((b_right - b_right_high.to(tl.float32)) * LOW).to(tl.float16)
        b_out = tl.dot(b_left_low, b_right_high)
        b_out = b_sum + tl.dot(b_left_high, b_right_low, b_out) * (1.0 / LOW)
        b_out = tl.dot(b_left_high, b_right_high, b_out)
    else:
        b_out = tl.dot(b_left, b_right, b_sum, input_precision=PRECISION)
    return b_out


@triton.jit
def _coefficient(k, POWER: tl.constexpr, STEPS: tl.constexpr):
    """Of Z^POWER in step k; STEPS has three numbers for each step."""
    found = tl.zeros((), tl.float32)
    for i in tl.static_range(len(STEPS) // 3):
        found = tl.where(k == i, STEPS[3 * i + POWER], found)
    return found


@triton.jit
def _polynomial(b_z, b_eye, k, STEPS: tl.constexpr, PRECISION: tl.constexpr):
    """Q of a quintic step."""
    b_q = _coefficient(k, 1, STEPS) * b_z + _coefficient(k, 0, STEPS) * b_eye
    return b_q + _coefficient(k, 2, STEPS) * _product(b_z, b_z, PRECISION)


@triton.jit
def _h(b_z, k, STEPS: tl.constexpr, HALF_MEMO: tl.constexpr):
    """H = b·Z of Newton's step k, as the memo keeps it: b is a power of two."""
    b_h = _coefficient(k, 1, STEPS) * b_z
    return b_h.to(tl.float16) if HALF_MEMO else b_h


@triton.jit
def _times_step(b_left, b_h, k, STEPS: tl.constexpr, PRECISION: tl.constexpr):
    """left·Q of Newton's step k, where Q = a + H and H = b·Z: what a gives is not rounded for a
    product, and is most of it, since Z is small until it is near I.
    """
    return _add_product(_coefficient(k, 0, STEPS) * b_left, b_left, b_h, PRECISION)


@triton.jit
def _memo(p_memo, HALF_MEMO: tl.constexpr):
    """Where the memo lies, as a pointer to the numbers it has."""
    return p_memo.to(tl.pointer_type(tl.float16)) if HALF_MEMO else p_memo


@triton.jit
def _keep(p_memo, slot, groups, size, o, m, b):
    b = b.to(p_memo.dtype.element_ty)
    tl.store(p_memo + slot * groups.to(tl.int64) * size * size + o, b, mask=m)


@triton.jit
def newton(
    p_memo, b_z, b_eye, groups, size, o, m,
    STEPS: tl.constexpr, PRECISION: tl.constexpr, HALF_MEMO: tl.constexpr,
):  # fmt: skip
    """P_T of Newton's recurrence from Z = Σ_N, and the memo. So few steps as UNSYMMETRIC can do
    without what ``roots.recurrence`` does to keep Z symmetric.
    """
    UNSYMMETRIC: tl.constexpr = 7
    p_memo = _memo(p_memo, HALF_MEMO)
    T: tl.constexpr = len(STEPS) // 3
    b_p = b_eye
    if T > 0:
        # P_1 = Q_0, which meets no product: not rounded, as H is for one
        b_p = _coefficient(0, 0, STEPS) * b_eye + _coefficient(0, 1, STEPS) * b_z
    if T > 1:
        b_h = _h(b_z, 0, STEPS, HALF_MEMO)
        for k in range(1, T):
            b_b = _times_step(b_z, b_h, k - 1, STEPS, PRECISION)
            b_z = _times_step(b_b, b_h, k - 1, STEPS, PRECISION)
            if T > UNSYMMETRIC:
                b_z = 0.5 * (b_z + tl.trans(b_z))
            b_h = _h(b_z, k, STEPS, HALF_MEMO)
            _keep(p_memo, k - 1, groups, size, o, m, b_h)
            _keep(p_memo, T + k - 2, groups, size, o, m, b_p)
            b_p = _times_step(b_p, b_h, k, STEPS, PRECISION)
    return b_p


@triton.jit
def polar(b_z, b_eye, STEPS: tl.constexpr, PRECISION: tl.constexpr):
    """Z^(-1/2) by quintic steps."""
    b_q = _polynomial(b_z, b_eye, 0, STEPS, PRECISION)
    b_p = b_q
    for k in range(1, len(STEPS) // 3):
        b_b = _product(b_z, b_q, PRECISION)
        b_z = _product(b_b, b_q, PRECISION)
        b_z = 0.5 * (b_z + tl.trans(b_z))  # as in ``roots.recurrence``
        b_q = _polynomial(b_z, b_eye, k, STEPS, PRECISION)
        b_p = _product(b_p, b_q, PRECISION)
    return b_p


@triton.jit
def _next_direction(b_h, b_dz, k, STEPS: tl.constexpr, PRECISION: tl.constexpr):
    """That of Z ← Q·Z·Q in step k, with Q = a + H and H = b·Z: a·U + HU + HUᵀ + UH, where U = dZ·Q.

    Tensor cores read operands in float16 either way, so that three products cost less than two
    matrices of float32 turned over between threads. With three terms each it is the other way, and
    large matrices have no room for so many operands: there Q·dZ·Q, being symmetric, is half of
    itself and the transpose of that.
    """
    a = _coefficient(k, 0, STEPS)
    b_u = _times_step(b_dz, b_h, k, STEPS, PRECISION)
    if PRECISION == "float16" and b_h.shape[0] <= 64:
        b_left, b_right = b_h.to(tl.float16), b_u.to(tl.float16)
        b_next = tl.dot(b_left, b_right, a * b_u)
        b_next = tl.dot(b_left, tl.trans(b_right), b_next)
        b_next = tl.dot(b_right, b_left, b_next)
    else:
        b_x = _add_product(0.5 * a * b_u, b_h, 0.5 * b_u + tl.trans(b_u), PRECISION)
        b_next = b_x + tl.trans(b_x)
    return b_next


@triton.jit
def derivative_of_newton(
    p_memo, b_z, b_dz, groups, size, o, m,
    D: tl.constexpr, STEPS: tl.constexpr, PRECISION: tl.constexpr, HALF_MEMO: tl.constexpr,
):  # fmt: skip
    """That of P_T at Z = Σ_N in the direction dZ, along Newton's recurrence."""
    p_memo = _memo(p_memo, HALF_MEMO)
    stride = groups.to(tl.int64) * size * size
    T: tl.constexpr = len(STEPS) // 3
    b_dp = tl.zeros((D, D), tl.float32)
    if T > 0:
        b_dp = _coefficient(0, 1, STEPS) * b_dz
    if T > 1:
        b_h = _h(b_z, 0, STEPS, HALF_MEMO)
        for k in range(1, T):
            b_dz = _next_direction(b_h, b_dz, k - 1, STEPS, PRECISION)
            # dP·Q + P·dQ
            b_h = tl.load(p_memo + (k - 1) * stride + o, mask=m, other=0.0)
            b_dp = _times_step(b_dp, b_h, k, STEPS, PRECISION)
            b_p = tl.load(p_memo + (T + k - 2) * stride + o, mask=m, other=0.0)
            b_dp = _add_product(b_dp, b_p, _coefficient(k, 1, STEPS) * b_dz, PRECISION)
    return b_dp


@triton.jit
def derivative_of_inverse_root(
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
