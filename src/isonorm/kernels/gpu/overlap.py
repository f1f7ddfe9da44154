"""Kernels that follow each other without a gap: on Hopper and later a kernel may be launched while
the one before it still runs, and wait inside for what that one leaves.

A launch takes longer than a small layer's kernel does its work. What does not depend on the kernel
before (addresses, the first tile of the input) is then done when that one ends.

Kernels that sum start when all before them is done, and say that their followers may begin when
they have sums to store. Followers wait at once, or, the mapping ones, after they have asked for a
first tile of their input: no kernel in between writes that. Those on matrices say that theirs may
begin when they have waited themselves, so that no kernel begins before the last but one has ended.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from .. import INTERPRETING

#: The compute capability from which on kernels can wait for each other.
LEAST_CAPABILITY = (9, 0)


def overlaps(device: torch.device) -> bool:
    """Whether kernels on a device may begin before their predecessors end."""
    if INTERPRETING or device.type != "cuda" or torch.version.hip is not None:
        return False
    return torch.cuda.get_device_capability(device) >= LEAST_CAPABILITY


@triton.jit
def let_next_begin(OVERLAP: tl.constexpr):
    if OVERLAP:
        gdc_launch_dependents()


@triton.jit
def wait_for_previous(OVERLAP: tl.constexpr):
    if OVERLAP:
        gdc_wait()
