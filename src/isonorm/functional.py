"""Normalization as functions: tensors in, (y, statistics) out, nothing remembered.

``normalize`` is the survey's Algorithm 1, X̃ = Π⁻¹(Ψ(Φ(Π(X)))), with Φ in its three steps;
everything else in the package composes it, adds state to it, or makes it faster.

Index legend: b problems, d features, m samples.
"""

from __future__ import annotations

import torch
from torch import Tensor

from . import area as areas
from . import operation as operations
from .activation import check_act, effective, finish
from .area import Area
from .checks import (
    check_composition,
    check_count,
    check_input,
    check_options,
    check_recovery,
    check_shrinkage,
    check_statistics,
    check_synchronizable,
)
from .kernels import autograd, choose, explicit, reference
from .kernels.choice import has_room_for_activation, transforms_active
from .kernels.plan import Plan, Result, make_plan
from .operation import Operation
from .recovery import Affine, Coloring, Recovery, is_own
from .scalars import plain
from .statistics import (
    Statistics,
    join_matrices,
    join_vectors,
    measure,
    no_autocast,
    working_dtype,
)
from .synchronization import group_name, is_shared, reduce_across

__all__ = ["dbn", "iter_norm", "normalize", "statistics", "whiten"]


def normalize(
    x: Tensor,
    *,
    area: str | Area,
    operation: str | Operation,
    recovery: Recovery | None = None,
    statistics: Statistics | None = None,
    eps: float = 1e-5,
    act: str | None = None,
    residual: Tensor | None = None,
    process_group: object = None,
) -> tuple[Tensor, Statistics]:
    """Normalizes (N, C, *) over an area by an operation, then recovers.

    Given ``statistics`` they are used instead of the input's own, as in eval. ``recovery`` is
    ``isonorm.recovery.Affine(weight, bias)``, ``Coloring(color, bias)``, an object of your own with
    the parts of ``isonorm.recovery.Recovery``, or None. ``eps`` joins the diagonal of every
    covariance. A ``residual`` of the input's shape is added to the result, then ``act`` (None,
    "relu" or "silu") applied. A ``process_group`` ("world", or a group of ``torch.distributed``)
    shares the statistics of its ranks.

    >>> x = torch.randn(8, 6, 5, 5)
    >>> y, statistics = normalize(x, area="batch", operation=operations.whiten("zca"))
    >>> y.shape, statistics.cov.shape
    (torch.Size([8, 6, 5, 5]), torch.Size([1, 6, 6]))
    """
    name = group_name(process_group)  # type: ignore[arg-type]
    result = normalize_with_transform(
        x,
        area,
        operation,
        recovery,
        statistics=statistics,
        eps=eps,
        act=act,
        residual=residual,
        group=name,
    )
    return result.y, result.statistics


def iter_norm(
    x: Tensor,
    *,
    group_size: int | None = 64,
    num_iters: int = 5,
    eps: float = 1e-5,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
) -> tuple[Tensor, Statistics]:
    """Iterative Normalization (Huang et al. 2019, Algorithm 1) of a batch, in groups of channels.

    >>> x = torch.randn(256, 6) * torch.tensor([0.5, 1, 1, 2, 3, 4]) + 7
    >>> y, _ = iter_norm(x, num_iters=12)
    >>> torch.allclose(y.T @ y / 256, torch.eye(6), atol=1e-2)
    True
    """
    whiten = operations.whiten("newton", num_iters)
    return normalize(
        x, area=areas.batch(group_size), operation=whiten, recovery=Affine(weight, bias), eps=eps
    )


def dbn(
    x: Tensor,
    *,
    group_size: int | None = 16,
    method: str = "zca",
    num_iters: int | None = None,
    eps: float = 1e-5,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
) -> tuple[Tensor, Statistics]:
    """Decorrelated Batch Normalization (Huang et al. 2018, Algorithm 1) of a batch, in groups of
    channels. ``num_iters`` belongs to method "polar".

    >>> mix = torch.eye(6) + 0.4  # well conditioned, whatever is drawn
    >>> y, _ = dbn(torch.randn(256, 6) @ mix, eps=0)
    >>> torch.allclose(y.T @ y / 256, torch.eye(6), atol=1e-3)
    True
    """
    whiten = operations.whiten_fully(method, num_iters)
    return normalize(
        x, area=areas.batch(group_size), operation=whiten, recovery=Affine(weight, bias), eps=eps
    )


def whiten(
    z: Tensor,
    *,
    method: str = "zca",
    group_size: int | None = None,
    shrinkage: float = 0.0,
    correction: int = 0,
    dim: str = "features",
    eps: float = 1e-5,
    process_group: object = None,
) -> Tensor:
    """Whiten a batch (N, C, *), as losses of self-supervision do, and return it alone.

    W is the root of (1 − s)Σ + (s + ε)I, s the ``shrinkage``, by a ``method`` of
    ``operation.whiten`` in groups of ``group_size`` channels. Σ is divided by m − ``correction``.
    ``dim="samples"`` whitens the N samples of (N, C) against each other, over their features.

    >>> z = torch.randn(256, 6) @ torch.randn(6, 6)
    >>> y = whiten(z, eps=0, correction=1)
    >>> torch.allclose(y.T.cov(), torch.eye(6), atol=1e-2)
    True
    """
    if dim not in ("features", "samples"):
        raise ValueError(f"dim must be 'features' or 'samples'; got {dim!r}.")
    check_input(z)
    if dim == "samples" and z.dim() != 2:
        raise ValueError(f"dim='samples' takes (N, C); got shape {tuple(z.shape)}.")
    x = z.mT if dim == "samples" else z
    m = x.shape[0] * x.shape[2:].numel()
    scale = check_shrinkage(shrinkage, correction, m, is_shared(group_name(process_group)))  # type: ignore[arg-type]
    check_options(plain(eps), None)
    root = operations.whiten(method)
    # Of √scale·z the covariance is scale·Σ; in the working precision, so that y is rounded once.
    scaled = x if scale == 1 else x.to(working_dtype(x)) * scale**0.5
    y, _ = normalize(
        scaled,
        area=areas.batch(group_size),
        operation=root,
        eps=plain(eps) + plain(shrinkage),
        process_group=process_group,
    )
    y = y if scale == 1 else (y / scale**0.5).to(z.dtype)
    return y.mT if dim == "samples" else y


def statistics(
    x: Tensor,
    area: str | Area = "batch",
    *,
    operation: str | Operation | None = None,
    process_group: object = None,
) -> Statistics:
    """Return count, mean and covariance of (N, C, *) over an area, differentiably, as
    ``normalize(statistics=…)`` takes them.

    ``operation`` says of what: "whiten" of features together, "standardize" of each by itself,
    "scale" about zero; by default the first where the area has it, and the second elsewhere.

    >>> x = torch.randn(8, 6, 5, 5)
    >>> statistics(x).cov.shape, statistics(x, "layer").cov.shape
    (torch.Size([1, 6, 6]), torch.Size([8, 1, 1]))
    """
    area = areas.resolve(area)
    default = "whiten" if area.whitens else "standardize"
    operation = operations.resolve(default if operation is None else operation)
    check_input(x)
    check_composition(area, operation)
    if not operation.is_quadratic:
        raise ValueError(f"{operation!r} is not made of means and covariances: use 'whiten'.")
    name = group_name(process_group)  # type: ignore[arg-type]
    applied = area if operation.is_matrix else area.featurewise()
    with no_autocast(x):
        flat = areas.flat(x)
        problems = [
            applied.gather(block.view(flat).to(working_dtype(x)))
            for block in applied.partition(x.shape[1])
        ]
        parts = [measure(problem, center=operation.centers) for problem in problems]
        if is_shared(name):
            check_synchronizable(area, operation)
            parts = reduce_across(name, parts, operation.centers, f"statistics over {area!r}")
            parts = [part._replace(mean=part.mean.to(part.cov.dtype)) for part in parts]
    mean, cov = join_vectors([p.mean for p in parts]), join_matrices([p.cov for p in parts])
    return Statistics(parts[0].count, mean, cov)


def normalize_with_transform(
    x: Tensor,
    area: str | Area,
    operation: str | Operation,
    recovery: Recovery | None,
    *,
    statistics: Statistics | None = None,
    eps: float = 1e-5,
    act: str | None = None,
    residual: Tensor | None = None,
    group: str = "",
    training: bool = True,
) -> Result:
    """``normalize`` with the transform W beside its statistics, for layers that average it
    (IterNorm Eq. 8), and may be in eval.
    """
    operation = operations.resolve(operation)
    area = areas.resolve(area)
    check_input(x, residual)
    check_composition(area, operation)
    recovery = Affine(None, None) if recovery is None else recovery
    eps = plain(eps)
    check_options(eps, act)
    check_recovery(recovery, area, x)
    if statistics is not None:
        check_statistics(statistics, x)
    group = group if is_shared(group) else ""
    if group:
        check_synchronizable(area, operation)

    applied = area if operation.is_matrix else area.featurewise()
    backend = "reference"
    if statistics is None:
        like = torch.empty_like(x, dtype=working_dtype(x)) if is_own(recovery) else x
        backend = choose(
            like, area=area, operation=operation, recovery=recovery, training=training
        ).backend
    fuses = backend == "triton" and _recovers_within(recovery, applied, backend)
    fused = effective(act) if fuses and act and has_room_for_activation(operation, area, x) else ""
    plan = make_plan(applied, operation, eps, group, backend, fused)
    check_count(x, plan, statistics, training)
    if backend == "reference":
        y, statistics, transform = reference.run(areas.flat(x), recovery, plan, statistics)
        y = like_input(y.reshape(x.shape), x)
    elif fuses:
        y, statistics, transform = _explicit(x, recovery, plan, residual)
        residual = None
    else:
        y, statistics, transform = _explicit(x, recovery, plan)
    return Result(finish(y, None if fused else act, residual), statistics, transform)


def _recovers_within(recovery: Recovery, area: Area, backend: str) -> bool:
    """Whether the explicit path applies a recovery itself: where it folds into the problem's
    matrix, and where there is none (kernels) or the recovery has none (plain torch). Never one of
    one's own, which the explicit path does not know.
    """
    if is_own(recovery):
        return False
    whitens = "d" in area.roles
    if whitens and area.features == "channels":
        return True
    if backend == "triton":
        return not whitens or (recovery.gain is None and recovery.bias is None)
    return isinstance(recovery, Affine)


def _explicit(x: Tensor, recovery: Recovery, plan: Plan, residual: Tensor | None = None) -> Result:
    """Six steps, one autograd node; recoveries that are not part of it follow."""
    if not _recovers_within(recovery, plan.area, plan.backend):
        # in the working precision, so that the output is rounded once
        bare = _explicit(x.to(working_dtype(x)), Affine(None, None), plan)
        y = _recover(areas.flat(bare.y), recovery, plan.area).to(x.dtype)
        return Result(like_input(y.reshape(x.shape), x), bare.statistics, bare.transform)
    color = recovery.color if isinstance(recovery, Coloring) else None
    weight = recovery.weight if isinstance(recovery, Affine) else None
    y, saved = autograd.run(x, weight, recovery.bias, color, plan, residual)
    problems = list(explicit.unpack(saved, plan, x))
    count = problems[0].m if saved.count is None or not plan.group else saved.count
    statistics = Statistics(
        count, join_vectors([p.mean for p in problems]), join_matrices([p.cov for p in problems])
    )
    return Result(y, statistics, join_matrices([p.w for p in problems]))


def _recover(y: Tensor, recovery: Recovery, area: Area) -> Tensor:
    """Ψ on an (N, C, S) tensor that Φ has already normalized."""
    dtype = working_dtype(y)
    with no_autocast(y):
        parts = [
            recovery.scale(b.view(y).to(dtype), b).flatten(1, 2) for b in area.partition(y.shape[1])
        ]
        out = torch.cat(parts, dim=1) if len(parts) > 1 else parts[0]
        if recovery.bias is not None:
            out = out + recovery.bias.to(dtype)[:, None]
    return out.to(y.dtype)


def apply_transform(
    x: Tensor,
    transform: Tensor,
    mean: Tensor,
    recovery: Recovery,
    area: Area,
    *,
    act: str | None = None,
    residual: Tensor | None = None,
) -> Tensor:
    """act(A(x − μ) + β + residual) for a W and μ that are given: what a batch-area layer does in
    eval.

    One product for each block, centered before it, so that a mean far from zero costs no accuracy.
    """
    check_input(x, residual)
    check_act(act)
    if torch.compiler.is_compiling() or not _fits(recovery, x):
        check_recovery(recovery, area, x)
    flat = areas.flat(x)
    outputs = []
    with no_autocast(x):
        for block, rows, d in area.places(1, flat.shape[1], 1):
            w, mu = transform[rows, :d, :d], mean[rows, :d]
            dtype = torch.promote_types(w.dtype, working_dtype(x))
            w, mu = w.to(dtype), mu.to(dtype)
            view = block.view(flat).to(dtype)
            shape = area.statistic_shape(view.shape)
            centered = view - mu.reshape(shape)
            if d > 1:
                z = _product(recovery.fold(w, block), centered, x.dim() > 2)
            else:
                z = recovery.scale(centered * w.reshape(shape), block)
            outputs.append(z.flatten(1, 2))
        y = outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=1)
        if recovery.bias is not None:
            y = y + recovery.bias.to(y.dtype)[:, None]
    return finish(like_input(y.to(x.dtype).reshape(x.shape), x), act, residual)


def _fits(recovery: Recovery, x: Tensor) -> bool:
    """Whether γ and β have a number for each channel: asked first, as it takes less time."""
    given = (recovery.gain, recovery.bias)
    return all(vector is None or vector.shape == x.shape[1:2] for vector in given)


def _product(matrix: Tensor, view: Tensor, has_positions: bool) -> Tensor:
    """A (K, c, c) matrix with the channels of an (N, K, c, S) view."""
    if has_positions:
        return matrix @ view
    # One product, not one per example; transpose, as the older exporter to ONNX does not know mT.
    columns = view.squeeze(-1).transpose(0, 1) @ matrix.transpose(1, 2)
    return columns.transpose(0, 1).unsqueeze(-1)


def like_input(y: Tensor, x: Tensor) -> Tensor:
    """y in x's memory format: its strides, or where x has gaps, those it would have without."""
    if transforms_active() or y.stride() == x.stride():
        return y  # inside a transform strides are the transform's business
    if x.is_contiguous():
        return y.contiguous()
    if torch.onnx.is_in_onnx_export():
        return y  # where there are no strides
    like = torch.empty_like(x)
    return y if y.stride() == like.stride() else like.copy_(y)
