"""The six steps in native code: the same functions as ``kernels.plain``.

The d × d work of step 2 is the root's, whichever ``Plan.root`` chooses, and that of step 5 is
``plain``'s.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ...area import Block
from ...recovery import Recovery
from ...statistics import Measured
from .. import plain
from ..plain import root as root
from ..plan import Gradients, Plan, Problem, Sums
from .library import Pass


class Work(NamedTuple):
    """A block of an (N, C, S) input, and the passes over it."""

    block: Block
    run: Pass


def prepare(
    x: Tensor,
    block: Block,
    plan: Plan,
    recovery: Recovery,
    extra: Tensor | None = None,
    g: Tensor | None = None,
) -> Work:
    assert extra is None and g is None and not plan.act, "only kernels fuse what follows"
    return Work(block, Pass(plan.area, block.view(x)))


def moments(work: Work, plan: Plan) -> Measured:
    """Step 1."""
    return Measured(work.run.m, *work.run.moments())


def analyze(work: Work, plan: Plan) -> tuple[Measured, tuple[Tensor, Tensor]]:
    """Steps 1 and 2, where no other rank has a part in them."""
    statistics = moments(work, plan)
    return statistics, root(statistics.cov, plan)


def apply(
    work: Work, y: Tensor, statistics: Measured, w: Tensor, recovery: Recovery, plan: Plan
) -> None:
    """Step 3: y = A(x − μ) + β."""
    block, run = work
    mean, rest, shift = statistics.mean, statistics.rest, plain.shift_of(recovery, block, w)
    assert rest is not None, "what is whitened is centered"
    shift = torch.zeros_like(mean) if shift is None else shift.squeeze(-1)
    run.apply(block.view(y), mean, rest, plain.folded(recovery, w, block), shift)


def sums(work: Work, dy: Tensor, p: Problem, recovery: Recovery, plan: Plan) -> Sums:
    """Step 4."""
    assert p.rest is not None
    return Sums(*work.run.sums(work.block.view(dy), p.mean, p.rest))


def differentiate(
    work: Work, dy: Tensor, p: Problem, recovery: Recovery, plan: Plan, m: int
) -> Gradients:
    """Steps 4 and 5, where no other rank has a part in them."""
    return plain.gradients(p, sums(work, dy, p, recovery, plan), recovery, plan, m)


def backward_apply(
    work: Work, dy: Tensor, dx: Tensor, p: Problem, grads: Gradients, recovery: Recovery, plan: Plan
) -> None:
    """Step 6: dx = Aᵀ·dy + slope·(x − μ) + shift."""
    block, run = work
    assert p.rest is not None
    run.apply(block.view(dx), p.mean, p.rest, grads.a, grads.shift, block.view(dy), grads.slope)
