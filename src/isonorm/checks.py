"""What is refused, and in which words: inputs, compositions and options that cannot be meant."""

from __future__ import annotations

from math import inf

from torch import Tensor
from torch.autograd import forward_ad

from . import area as areas
from .activation import ACTIVATIONS
from .area import Area
from .kernels import transforms_active
from .kernels.plan import Plan
from .operation import Operation
from .recovery import Affine, Coloring, Recovery
from .statistics import Statistics


def check_input(x: Tensor, residual: Tensor | None = None) -> None:
    if x.dim() < 2:
        raise ValueError(
            f"expected input (N, C, *) with at least 2 dimensions; got shape {tuple(x.shape)}."
        )
    if not x.is_floating_point():
        raise TypeError(
            f"expected a floating-point input; got {x.dtype}: convert it first, for example with "
            ".float()."
        )
    if residual is not None and residual.shape != x.shape:
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
    # Tuples here and below, not unions, which the compiler of torch 2.8 cannot trace.
    if isinstance(eps, bool) or not isinstance(eps, (int, float)) or not 0 <= eps < inf:
        raise ValueError(f"eps must be a number ≥ 0; got {eps!r}.")
    if act is not None and act not in ACTIVATIONS:
        raise ValueError(f"act must be None or one of {', '.join(ACTIVATIONS)}; got {act!r}.")


def check_recovery(recovery: Recovery, area: Area, channels: int) -> None:
    if not isinstance(recovery, (Affine, Coloring)):
        raise TypeError(
            "recovery must be None, isonorm.recovery.Affine(weight, bias) or Coloring(color, bias);"
            f" got {recovery!r}."
        )
    vectors = (recovery.weight if isinstance(recovery, Affine) else None, recovery.bias)
    for name, vector in zip(("weight", "bias"), vectors, strict=True):
        if vector is not None and vector.shape != (channels,):
            raise ValueError(
                f"{name} must have shape ({channels},), one number per channel; "
                f"got {tuple(vector.shape)}."
            )
    if isinstance(recovery, Coloring):
        blocks = area.partition(channels)
        expected = (sum(block.groups for block in blocks), blocks[0].size, blocks[0].size)
        if recovery.color.shape != expected:
            raise ValueError(
                f"color must have shape {expected}, a matrix for each group of channels of area "
                f"{area!r}; got {tuple(recovery.color.shape)}."
            )


def check_count(x: Tensor, plan: Plan, statistics: Statistics | None) -> None:
    """Refuses to center one value by itself. A synchronized rank may hold one value, or none, of
    many.
    """
    if statistics is not None or not plan.operation.centers or plan.group or x.numel() == 0:
        return
    _, _, _, m = plan.problem_shapes(*areas.flat_shape(x))[0]
    if m == 1:
        advice = "use a larger input"
        if plan.area.spans_batch:
            advice = "use a larger batch (DataLoader's drop_last=True leaves out a last one of 1)"
        raise ValueError(
            "expected more than one value to normalize together; got one, with area "
            f"{plan.area!r} and input (N, C, positions) = {areas.flat_shape(x)}: {advice}."
        )
