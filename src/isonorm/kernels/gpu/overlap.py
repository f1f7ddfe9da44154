"""Kernels that follow each other without a gap: on Hopper and later a kernel may be launched while
the one before it still runs, and wait inside for what that one leaves (CUDA's programmatic
dependent launch).

A launch takes longer than a small layer's kernel does its work. What does not depend on the kernel
before (addresses, the first tile of the input) is then done when that one ends. What keeps this
right:

- Kernels that sum are launched as any other, after all before them. So whatever a step was given is
  there for all its kernels, and a tile of it may be asked for before the wait.
- All others wait before they load anything that a kernel of the step has written, and before they
  store anything. A kernel that has waited for its predecessor has waited for all before that, since
  these have waited, too.
- The kernels on matrices say that their followers may begin after they have waited, others before:
  so the mapping kernels, which follow those, begin when the sums are done, and find the
  multiprocessors free.
"""

from __future__ import annotations

import os

import torch
import triton
import triton.language as tl

from ..choice import INTERPRETING

#: The compute capability from which on kernels can wait for each other.
LEAST_CAPABILITY = (9, 0)


def overlaps(device: torch.device) -> bool:
    """Whether kernels on a device may begin before their predecessors end: not with
    ISONORM_OVERLAP=0 in the environment, so that it can be told whether a fault is theirs.
    """
    if os.environ.get("ISONORM_OVERLAP") == "0":
        return False
    if INTERPRETING or device.type != "cuda" or torch.version.hip is not None:
        return False
    return torch.cuda.get_device_capability(device) >= LEAST_CAPABILITY


# The instructions by their names: Triton's own words for them are not the same in all versions.


@triton.jit
def let_next_begin(OVERLAP: tl.constexpr):
    if OVERLAP:
        tl.inline_asm_elementwise(
            "griddepcontrol.launch_dependents; // $0", "=r", [], tl.int32, is_pure=False, pack=1
        )


@triton.jit
def wait_for_previous(OVERLAP: tl.constexpr):
    if OVERLAP:
        tl.inline_asm_elementwise(
            "griddepcontrol.wait; // $0", "=r,~{memory}", [], tl.int32, is_pure=False, pack=1
        )


@triton.jit
def take_turn(OVERLAP: tl.constexpr):
    """What a kernel before a mapping one begins with, in this order: see above."""
    wait_for_previous(OVERLAP)
    let_next_begin(OVERLAP)
