"""The path that a layer's step, in training and in eval, takes when nothing about it is unusual.

A layer asks the same things of every step: whether its input fits, which implementation runs, what
is averaged how. The answers are remembered by whatever they depend on, so that the second step goes
straight to the kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..activation import effective
from ..checks import DTYPES, check_momentum, check_options, check_recovery
from ..kernels import choose, fast_path
from ..kernels.choice import float32_precision, has_room_for_activation, why_not_triton
from ..kernels.plan import Plan, make_plan
from ..recovery import Affine
from ..statistics import Statistics
from .running import RunningTransform

if TYPE_CHECKING:
    from ..kernels.gpu.fast_path import Averages, Averaging, Map, Prepared
    from .normalize import Normalize

#: Different inputs that a layer remembers the answers for.
MOST_ANSWERS = 64
_UNKNOWN = object()


def train(norm: Normalize, x: Tensor, residual: Tensor | None) -> Tensor | None:
    """The layer's output, its running statistics moved; None where the general path must be taken
    and nothing has happened.
    """
    if torch.compiler.is_compiling():
        return _train_traced(norm, x, residual)
    if not fast_path.is_open(x) or torch.is_inference_mode_enabled():
        return None
    if residual is not None and (type(residual) is not Tensor or residual.is_neg()):
        return None
    parameters, averages = norm._parameters, None
    weight, bias = parameters.get("weight"), parameters.get("bias")
    if norm.averages_batches:
        if norm._buffers["num_batches_tracked"] is None:  # taken away
            return None
        averages = _averages(norm)
    key = (
        x.shape, x.stride(), x.dtype, x.get_device(), float32_precision(),
        norm.momentum, norm.eps, norm.act, norm.running, norm.check_finite, norm.process_group,
        norm.training, norm.operation, *_kind(weight), *_kind(bias),
        averages is None, residual is None,
    )  # fmt: skip
    if averages is not None:
        mean, matrix, batches = averages
        key += (*_kind(mean), *_kind(matrix), *_kind(batches))
    if residual is not None:
        key += residual.shape, *_kind(residual)
    found = _remembered(norm, key, lambda: _prepare(norm, x, residual, averages))
    if found is None:
        return None
    return fast_path.run(found, x, weight, bias, residual, averages)


def evaluate(norm: Normalize, x: Tensor, residual: Tensor | None) -> Tensor | None:
    """Return the layer's output in eval; None where the general path must be taken: where a
    gradient is wanted, or kernels do not fit.
    """
    if torch.compiler.is_compiling() or not fast_path.is_open(x):
        return None
    if residual is not None and (type(residual) is not Tensor or residual.is_neg()):
        return None
    parameters, mean = norm._parameters, norm._buffers["running_mean"]
    weight, bias = parameters.get("weight"), parameters.get("bias")
    given = (x, weight, bias, residual, mean)
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in given):
        return None
    w = norm.transform_for_eval()
    key = (
        x.shape, x.stride(), x.dtype, x.get_device(), float32_precision(), "eval",
        norm.act, norm.operation, *_kind(weight), *_kind(bias), *_kind(w), *_kind(mean),
        residual is None,
    )  # fmt: skip
    if residual is not None:
        key += residual.shape, *_kind(residual)
    found = _remembered(norm, key, lambda: _prepare_map(norm, x, w, mean, residual))
    return None if found is None else found(x, w, mean, weight, bias, residual)


def _remembered(norm: Normalize, key: tuple, prepare: Callable[[], Any]) -> Any:
    """Return what was prepared for a key, or prepare it; None where nothing can be."""
    answers = norm._answers
    found = answers.get(key, _UNKNOWN)
    if found is _UNKNOWN:
        if len(answers) >= MOST_ANSWERS:
            answers.clear()
        found = answers[key] = prepare()
    return found


def _prepare_map(
    norm: Normalize, x: Tensor, w: Tensor, mean: Tensor | None, residual: Tensor | None
) -> Map | None:
    if norm._recovery_class not in (None, Affine) or norm.area.features != "channels":
        return None
    if not _is_as_written(norm) or not {"weight", "bias"} <= norm._parameters.keys():
        return None
    if x.dim() < 2 or x.numel() == 0 or x.dtype not in DTYPES:
        return None
    if why_not_triton(norm.area, norm.operation, x, colors=False) is not None:
        return None
    if w.shape != norm._matrix_shape or mean is None or mean.shape != (norm._num_means,):
        return None
    if w.dtype != torch.float32 or mean.dtype != torch.float32:
        return None
    check_options(norm.eps, norm.act)
    check_recovery(norm.recovery, norm.area, x)
    act = effective(norm.act)
    if act and not has_room_for_activation(norm.operation, norm.area, x):
        return None
    plan = make_plan(norm._applied_area, norm.operation, norm.eps, "", "triton", act)
    given = (*_parameters(norm), residual)
    if not fast_path.can_walk(x, w, mean, *_parameters(norm), residual=residual):
        return None
    return fast_path.prepare_map(x, *given, plan)


def _kind(tensor: Tensor | None) -> tuple:
    if tensor is None:
        return (None,)
    # numel and strides identify the shape of a dense tensor, and are cheaper to read.
    return (
        type(tensor), tensor.numel(), tensor.stride(), tensor.dtype, tensor.get_device(),
        tensor.is_neg(),
    )  # fmt: skip


def _averages(norm: Normalize) -> Averages:
    from ..kernels.gpu.fast_path import Averages

    buffers = norm._buffers
    return Averages(
        buffers["running_mean"],  # type: ignore[arg-type]
        buffers[norm._running_name],  # type: ignore[arg-type]
        buffers["num_batches_tracked"],  # type: ignore[arg-type]
    )


def _prepare(
    norm: Normalize, x: Tensor, residual: Tensor | None, averages: Averages | None
) -> Prepared | None:
    plan = _plan(norm, x, residual)
    if plan is None:
        return None
    averaged = None
    if averages is not None:
        averaged = _averaging(norm, x, averages)
        if averaged is None:
            return None
    return fast_path.prepare(x, *_parameters(norm), residual, plan, averaged)


def _plan(norm: Normalize, x: Tensor, residual: Tensor | None) -> Plan | None:
    """The plan of a layer that can take the fast path."""
    if norm._recovery_class not in (None, Affine):
        return None
    if not _is_as_written(norm):
        return None
    if "weight" not in norm._parameters or "bias" not in norm._parameters:
        return None  # made of other parameters
    if x.dim() < 2 or x.dtype not in DTYPES or norm.process_group:
        return None
    if choose(x, area=norm.area, operation=norm.operation).backend != "triton":
        return None
    check_options(norm.eps, norm.act)
    check_momentum(norm.momentum)
    check_recovery(norm.recovery, norm.area, x)
    act = effective(norm.act)
    if act and not has_room_for_activation(norm.operation, norm.area, x):
        return None
    plan = make_plan(norm._applied_area, norm.operation, norm.eps, "", "triton", act)
    return plan if fast_path.fits(x, *_parameters(norm), residual, plan) else None


def _is_as_written(norm: Normalize) -> bool:
    """Whether neither a subclass nor an assignment has changed what the fast path does."""
    from .normalize import Normalize

    kind = type(norm)
    return (
        kind.commit is RunningTransform.commit
        and kind.recovery is Normalize.recovery
        and "commit" not in norm.__dict__
    )


def _parameters(norm: Normalize) -> tuple[Tensor | None, Tensor | None]:
    return norm._parameters["weight"], norm._parameters["bias"]


def _averaging(norm: Normalize, x: Tensor, averages: Averages) -> Averaging | None:
    """How the kernels move these running statistics; None where they cannot."""
    from ..kernels.gpu.fast_path import Averaging

    if norm.momentum is None or norm.check_finite:
        return None
    mean, matrix, batches = averages
    floats = mean.dtype == matrix.dtype == torch.float32 and batches.dtype == torch.int64
    if mean.shape != (norm._num_means,) or batches.numel() != 1:
        return None
    if matrix.shape != (norm._num_problems, norm._size, norm._size):
        return None
    if not floats or not fast_path.are_stored(x, *averages):
        return None
    count = x.numel() // x.shape[1]
    centered = norm.operation.centers and norm.operation.is_quadratic
    unbiased = count / max(count - 1, 1) if centered else 1.0
    return Averaging(norm.running, float(norm.momentum), unbiased)


def _train_traced(norm: Normalize, x: Tensor, residual: Tensor | None) -> Tensor | None:
    """The same for a compiler, which fuses the running averages with whatever else it finds."""
    plan = _plan(norm, x, residual)
    if plan is None:
        return None
    y, (mean, cov, w) = fast_path.traced(x, *_parameters(norm), residual, plan)
    _, b, d, m = plan.problem_shapes(x)[0]
    statistics = Statistics(m, mean.view(b, d), cov.view(b, d, d))
    norm.commit(statistics, w.view(b, d, d))
    return y
