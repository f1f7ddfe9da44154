"""Kernels on single channels, which are standardized one by one (steps 2 and 5).

Names: i_ index, o_ offset, m_ mask, p_ pointer, b_ block in registers.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .averages import count_batch, move
from .overlap import take_turn


@triton.jit
def scale_kernel(
    p_total, p_mean, p_cov, p_w, p_running_mean, p_running, p_batches,
    eps, momentum, unbiased, count, channels, groups,
    D: tl.constexpr, CENTER: tl.constexpr, SCALE: tl.constexpr, AVERAGE: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    """μ, σ² and (σ² + ε)^(-1/2) of D channels standardized one by one."""
    take_turn(OVERLAP)
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
    tl.debug_barrier()  # every thread has read the pivot before any overwrites it
    tl.store(p_mean + i_global, b_mean, mask=m)
    b_cov = tl.load(p_total + problems * D + i_padded) / count - b_delta * b_delta
    tl.store(p_cov + i_global, b_cov, mask=m)
    b_w = 1.0 / tl.sqrt(b_cov + eps)
    if SCALE:
        tl.store(p_w + i_global, b_w, mask=m)
    if AVERAGE != "":
        move(p_running_mean + i_global, b_mean, m, momentum)
        b_new = b_cov * unbiased if AVERAGE == "covariance" else b_w
        move(p_running + i_global, b_new, m, momentum)
        count_batch(p_batches, i_group)


@triton.jit
def scale_backward_kernel(
    p_total, p_w, p_weight, p_dweight, p_dbias, p_a, p_slope, p_shift,
    count, problems, channels, padded, padded_channels,
    BLOCK: tl.constexpr, WEIGHT: tl.constexpr, CENTER: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """Step 5 for single channels, where W = (σ² + ε)^(-1/2) and dσ² = −½·dW·W³."""
    take_turn(OVERLAP)
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
