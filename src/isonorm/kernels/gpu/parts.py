"""What programs that share a sum leave, added up.

Names: i_ index, o_ offset, m_ mask, p_ pointer, b_ block in registers.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .overlap import let_next_begin, wait_for_previous


@triton.jit
def sum_parts_kernel(
    p_parts, parts, row, PARTS: tl.constexpr, COLUMNS: tl.constexpr, OVERLAP: tl.constexpr
):
    """Adds the rows of a (parts, row) matrix into its first one, in a fixed order."""
    let_next_begin(OVERLAP)  # which waits at once, too
    wait_for_previous(OVERLAP)
    i_column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    b_sum = tl.zeros((PARTS, COLUMNS), tl.float32)
    for i_first in range(0, parts, PARTS):
        i_part = i_first + tl.arange(0, PARTS)
        m = (i_part < parts)[:, None] & (i_column < row)[None, :]
        o = i_part[:, None].to(tl.int64) * row + i_column[None, :]
        b_sum += tl.load(p_parts + o, mask=m, other=0.0)
    tl.store(p_parts + i_column, tl.sum(b_sum, 0), mask=i_column < row)
