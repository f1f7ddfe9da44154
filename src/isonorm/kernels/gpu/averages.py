"""Running averages, which kernels move towards a batch's values.

Names: i_ index, o_ offset, m_ mask, p_ pointer, b_ block in registers.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def move(p_running, b_new, m, momentum):
    """A running average towards a batch's value; as torch's lerp_ from the nearer end, so that a
    momentum of 1 leaves nothing of the old.
    """
    b_old = tl.load(p_running, mask=m, other=0.0)
    b_way = b_new - b_old
    near_old, near_new = b_old + momentum * b_way, b_new - (1.0 - momentum) * b_way
    tl.store(p_running, tl.where(momentum < 0.5, near_old, near_new), mask=m)


@triton.jit
def count_batch(p_batches, i_group):
    if i_group == 0:
        tl.store(p_batches, tl.load(p_batches) + 1)
