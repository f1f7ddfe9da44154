"""The reference: the survey's Algorithm 1 in plain torch, differentiable in every mode.

It gathers the problems of an area into (b, d, m) matrices and does with them what the papers say,
one line a step. Everything faster is judged by it, and whatever the explicit path has no rule for
(forward mode, ``vmap``, derivatives of derivatives) comes here.

Index legend: b problems, d features, m samples.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..recovery import Recovery
from ..statistics import (
    Measured,
    Statistics,
    join_matrices,
    join_vectors,
    measure,
    no_autocast,
    rounded,
    split_statistics,
    working_dtype,
)
from ..synchronization import reduce_across
from .plan import Plan, Result, pack


def run(x: Tensor, recovery: Recovery, plan: Plan, given: Statistics | None = None) -> Result:
    """Algorithm 1 of the survey, as it stands, block by block; differentiable in every mode."""
    area, operation = plan.area, plan.operation
    with no_autocast(x):
        blocks = area.partition(x.shape[1])
        problems = [area.gather(block.view(x).to(working_dtype(x))) for block in blocks]  # Π
        if given is None:
            measured = [_measure(problem, plan) for problem in problems]
            if plan.group:
                parts = [part.exact() for part in measured]
                what = plan.shared_with(recovery)
                parts = reduce_across(plan.group, parts, operation.centers, what)
                measured = [rounded(part, plan.keeps_rest) for part in parts]
                if not operation.scales:
                    measured = [part._replace(cov=torch.ones_like(part.cov)) for part in measured]
        else:
            dtype = torch.promote_types(working_dtype(x), given.cov.dtype)
            given = Statistics(given.count, given.mean.to(dtype), given.cov.to(dtype))
            split = split_statistics(given, area, *x.shape)
            measured = [Measured(*statistics, None) for statistics in split]
        outputs, transforms = [], []
        for block, problem, stats in zip(blocks, problems, measured, strict=True):
            w = operation.transform(stats.cov, plan.eps)
            centered = problem - stats.mean.unsqueeze(-1)
            if stats.rest is not None:
                centered = centered - stats.rest.unsqueeze(-1)
            normalized = w @ centered  # Φ
            view = area.scatter(normalized, block.view(x))
            outputs.append(recovery.scale(view, block).flatten(1, 2))  # Ψ without β
            transforms.append(w)
        y = outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=1)
        if recovery.bias is not None:
            y = y + recovery.bias.to(y.dtype)[:, None]
    statistics = Statistics(
        measured[0].count,
        join_vectors([s.mean for s in measured]),
        join_matrices([s.cov for s in measured]),
    )
    return Result(y.to(x.dtype), statistics, join_matrices(transforms))


def _measure(problems: Tensor, plan: Plan) -> Measured:
    m, operation, rest = problems.shape[-1], plan.operation, None
    if m == 0:  # a rank, or a caller, without samples
        return Measured(0, problems.sum(-1), problems @ problems.transpose(-1, -2), None)
    if operation.is_quadratic:
        statistics = measure(problems, center=operation.centers)
        if plan.keeps_rest:
            rest = (problems - statistics.mean.unsqueeze(-1)).mean(-1).detach()
        return Measured(*statistics, rest)
    mean = problems.mean(-1)
    if not operation.scales:
        return Measured(m, mean, torch.ones_like(mean).unsqueeze(-1), None)
    return Measured(m, mean, operation.spread(problems - mean.unsqueeze(-1), (-1,)), None)


def run_packed(x: Tensor, recovery: Recovery, plan: Plan) -> tuple[Tensor, Tensor, Tensor]:
    """(y, mean, cov) with the statistics packed as the explicit path packs them."""
    y, statistics, _ = run(x, recovery, plan)
    parts = split_statistics(statistics, plan.area, *x.shape)
    return y, pack([p.mean for p in parts]), pack([p.cov for p in parts])
