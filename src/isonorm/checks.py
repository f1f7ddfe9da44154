"""What is refused, and in which words: inputs, compositions and options that cannot be meant."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from inspect import signature
from math import inf
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from . import area as areas
from .activation import check_act
from .area import Area
from .kernels.choice import transforms_active
from .kernels.plan import Plan
from .operation import Operation
from .recovery import Affine, Coloring, Recovery, is_own, missing_parts
from .scalars import plain
from .statistics import Statistics

#: What a normalization computes with; 8-bit numbers are for storage and products alone.
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def check_tensor(name: str, value: Any) -> None:
    if not isinstance(value, Tensor):
        raise TypeError(
            f"{name} must be a torch.Tensor; got {type(value).__name__}: torch.as_tensor makes one "
            "of lists and arrays."
        )
    if value.layout != torch.strided or value.is_nested:
        kind = "a nested tensor" if value.is_nested else f"one of layout {value.layout}"
        raise TypeError(f"{name} must be a dense tensor; got {kind}: convert it first.")


def check_operand(name: str, value: Any, x: Tensor) -> None:
    """What is computed with besides an input."""
    check_tensor(name, value)
    if value.dtype not in DTYPES:
        raise TypeError(
            f"{name} must be floating-point, of 16 to 64 bits; got {value.dtype}: convert it first."
        )
    check_device(name, value, x)


def check_device(name: str, value: Tensor, x: Tensor) -> None:
    if value.device != x.device:
        raise ValueError(
            f"the input is on {x.device}, but {name} is on {value.device}: move them together."
        )


def check_flag(name: str, value: Any) -> bool:
    """A switch as Python has it: words and None, which are always or never true, are refused."""
    try:
        known = not isinstance(value, str) and value in (True, False)
    except (RuntimeError, ValueError):  # an array of several
        known = False
    if not known:
        raise TypeError(f"{name} must be True or False; got {value!r}.")
    return bool(value)


def keywords_of(layer: type) -> list[str]:
    """Return the names of a class's keywords; none where its signature does not tell them all."""
    parameters = signature(layer).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return []
    named = [p.name for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return [name for name in named if name != "num_features"]


def check_keywords(owner: str, given: Iterable[str], known: Sequence[str]) -> None:
    """Refuse keywords that a layer does not have, and name those that it has."""
    for name in given:
        if name in known:
            continue
        near = get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}."
        raise TypeError(f"{owner} has no keyword argument {name!r}: {hint}")


def check_momentum(momentum: float | None) -> None:
    number = isinstance(momentum, (int, float)) and not isinstance(momentum, bool)
    if momentum is not None and not (number and 0 <= momentum <= 1):
        raise ValueError(f"momentum must be None or between 0 and 1; got {momentum!r}.")


def check_dtype(dtype: torch.dtype | None) -> None:
    if dtype is not None and dtype not in DTYPES:
        raise TypeError(f"dtype must be a floating-point type of 16 to 64 bits; got {dtype}.")


def check_input(x: Tensor, residual: Tensor | None = None) -> None:
    check_tensor("the input", x)
    if x.dim() < 2:
        raise ValueError(
            f"expected input (N, C, *) with at least 2 dimensions; got shape {tuple(x.shape)}."
        )
    if x.dtype not in DTYPES:
        raise TypeError(
            f"expected a floating-point input of 16 to 64 bits; got {x.dtype}: convert it first, "
            "for example with .float()."
        )
    if residual is None:
        return
    check_operand("residual", residual, x)
    if residual.shape != x.shape:
        raise ValueError(
            f"residual must have the input's shape {tuple(x.shape)}, as it is added to the output; "
            f"got {tuple(residual.shape)}."
        )


def check_composition(area: Area, operation: Operation) -> None:
    if operation.is_matrix and not area.whitens:
        raise ValueError(
            f"whitening is defined for the areas batch, instance and group, not for {area!r}: use "
            "operation='standardize' with it."
        )


def check_synchronizable(area: Area, operation: Operation) -> None:
    if not area.spans_batch:
        raise ValueError(
            f"area {area!r} stays within an example, so there is nothing to share across ranks: "
            "leave process_group out."
        )
    if operation.scales and not operation.is_quadratic:
        raise ValueError(
            f"{operation!r} cannot be synchronized across ranks; use p=2, or leave process_group "
            "out."
        )
    check_no_transform()


def check_no_transform() -> None:
    """Refuses collectives where their derivatives would be silently wrong."""
    if transforms_active() or forward_ad._current_level >= 0:
        raise RuntimeError(
            "a synchronized normalization has no rule for torch.func transforms and forward-mode "
            "differentiation; leave process_group out there."
        )


def check_options(eps: float, act: str | None) -> None:
    # Tuples here and elsewhere, not unions, and lists in any(), not generators: the compiler of
    # torch 2.8 cannot trace those.
    if isinstance(eps, bool) or not isinstance(eps, (int, float)) or not 0 <= eps < inf:
        raise ValueError(f"eps must be a number ≥ 0; got {eps!r}.")
    check_act(act)


def check_shrinkage(shrinkage: float, correction: int, m: int, shared: bool) -> float:
    """Return what (1 − shrinkage) and a correction of m samples make of a covariance."""
    shrinkage, correction = plain(shrinkage), plain(correction)
    number = isinstance(shrinkage, (int, float)) and not isinstance(shrinkage, bool)
    if not number or not 0 <= shrinkage < 1:
        raise ValueError(f"shrinkage must be a number from 0 to below 1; got {shrinkage!r}.")
    m = max(m, 1)  # an empty batch has nothing to correct
    if isinstance(correction, bool) or not isinstance(correction, int) or not 0 <= correction < m:
        raise ValueError(
            f"correction must be an integer from 0 to below the {m} samples; got {correction!r}."
        )
    if correction and shared:
        raise ValueError("correction is for the samples of one process: leave process_group out.")
    return (1 - shrinkage) * m / (m - correction)


def check_recovery(recovery: Recovery, area: Area, x: Tensor) -> None:
    channels = x.shape[1]
    if is_own(recovery):
        return _check_own_recovery(recovery, x)
    vectors = (recovery.weight if isinstance(recovery, Affine) else None, recovery.bias)
    for name, vector in zip(("weight", "bias"), vectors, strict=True):
        if vector is None:
            continue
        check_operand(name, vector, x)
        if vector.shape != (channels,):
            raise ValueError(
                f"{name} must have shape ({channels},), one number per channel; "
                f"got {tuple(vector.shape)}."
            )
    if isinstance(recovery, Coloring):
        check_operand("color", recovery.color, x)
        blocks = area.partition(channels)
        expected = (sum(block.groups for block in blocks), blocks[0].size, blocks[0].size)
        if recovery.color.shape != expected:
            raise ValueError(
                f"color must have shape {expected}, a matrix for each group of channels of area "
                f"{area!r}; got {tuple(recovery.color.shape)}."
            )


def _check_own_recovery(recovery: Any, x: Tensor) -> None:
    """Refuse what has not the parts of a recovery, and tensors that cannot be meant."""
    kind = type(recovery).__name__
    if isinstance(recovery, (type, str)) or (lacks := missing_parts(recovery)):
        got = recovery.__name__ if isinstance(recovery, type) else kind
        why = f"the class {got}: make an object of it"
        if not isinstance(recovery, type):
            why = repr(recovery) if isinstance(recovery, str) else f"{got}, without {lacks[0]}"
        raise TypeError(
            "recovery must be None, isonorm.recovery.Affine(weight, bias), Coloring(color, bias), "
            f"or an object with all of isonorm.recovery.Recovery; got {why}."
        )
    for name in ("gain", "bias"):
        if (value := getattr(recovery, name)) is not None:
            check_operand(f"{kind}.{name}", value, x)
    if recovery.bias is not None and recovery.bias.shape != x.shape[1:2]:
        raise ValueError(
            f"{kind}.bias must have shape ({x.shape[1]},), one number per channel; got "
            f"{tuple(recovery.bias.shape)}."
        )


def check_statistics(statistics: Statistics, x: Tensor) -> None:
    if not isinstance(statistics, Statistics):
        raise TypeError(
            "statistics must be an isonorm.Statistics(count, mean, cov), as another call returns "
            f"them; got {type(statistics).__name__}."
        )
    check_operand("statistics.mean", statistics.mean, x)
    check_operand("statistics.cov", statistics.cov, x)


def check_count(
    x: Tensor, plan: Plan, statistics: Statistics | None, training: bool = True
) -> None:
    """Refuses to center one value by itself. A synchronized rank may hold one value, or none, of
    many.
    """
    if statistics is not None or not plan.operation.centers or plan.group or x.numel() == 0:
        return
    _, _, _, m = plan.problem_shapes(x)[0]
    if m == 1:
        advice = "use a larger input"
        if plan.area.spans_batch and not training:
            advice = "use a larger batch, or a layer that keeps running statistics"
        elif plan.area.spans_batch:
            advice = "use a larger batch (DataLoader's drop_last=True leaves out a last one of 1)"
        raise ValueError(
            "expected more than one value to normalize together; got one, with area "
            f"{plan.area!r} and input (N, C, positions) = {areas.flat_shape(x)}: {advice}."
        )
