"""Adam's moments, which LAMB and LANS normalize layer by layer."""

# torch exports its foreach functions under private names alone.
# pyright: reportPrivateImportUsage=false

from __future__ import annotations

import math
from collections.abc import Mapping
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from .layerwise import Layers, LayerwiseOptimizer, check_number
from .norms import Tensors


class MomentOptimizer(LayerwiseOptimizer):
    """The options and the state of Adam, with bounds for the norms of weights."""

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        *,
        bias_correction: bool = True,
        norm_bounds: tuple[float, float] = (0.0, math.inf),
        min_ndim: int = 2,
        maximize: bool = False,
    ) -> None:
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "bias_correction": bias_correction,
            "norm_bounds": norm_bounds,
            "min_ndim": min_ndim,
            "maximize": maximize,
        }
        super().__init__(params, defaults)

    def __init_subclass__(cls) -> None:
        """Python's own errors about arguments name a function: that of the class which was called,
        not this one.
        """
        super().__init_subclass__()
        if cls.__init__ is MomentOptimizer.__init__:
            cls.__init__ = _under_name(MomentOptimizer.__init__, f"{cls.__qualname__}.__init__")

    def check(self, group: Mapping[str, Any]) -> None:
        super().check(group)
        check_number("eps", group["eps"], low=0)
        betas, bounds = group["betas"], group["norm_bounds"]
        if not _is_pair(betas):
            raise ValueError(f"betas must be two numbers, (β₁, β₂); got {betas!r}.")
        for name, beta in zip(("betas[0]", "betas[1]"), betas, strict=True):
            check_number(name, beta, low=0, below=1)
        if not _is_pair(bounds) or not 0 <= bounds[0] <= bounds[1]:
            raise ValueError(
                "norm_bounds must be two numbers, 0 ≤ lowest ≤ highest, between which the norm of "
                f"the weights is clamped; got {bounds!r}."
            )

    def state_names(self, group: Mapping[str, Any]) -> tuple[str, ...]:
        return ("exp_avg", "exp_avg_sq", "step")


def _under_name(function: Any, name: str) -> Any:
    """The same function by another name."""
    copy = FunctionType(
        function.__code__,
        function.__globals__,
        argdefs=function.__defaults__,
        closure=function.__closure__,
    )
    copy.__kwdefaults__, copy.__annotations__ = function.__kwdefaults__, function.__annotations__
    copy.__qualname__ = name
    return copy


def _is_pair(value: object) -> bool:
    return isinstance(value, tuple | list) and len(value) == 2


def moments(
    layers: Layers, grads: Tensors, group: Mapping[str, Any]
) -> tuple[Tensors, Tensors, Tensor]:
    """m, √v̂ + ε and (n,) 1 − β₁ᵗ, after the step's gradients have been averaged in.

        m ← β₁·m + (1 − β₁)·g,   v ← β₂·v + (1 − β₂)·g²,   v̂ = v/(1 − β₂ᵗ)

    Gradients are wide, as m and v are: in float16 the square of 1e-3 would be lost. m̂ = m/(1 − β₁ᵗ)
    is left to the caller; without bias correction both corrections are 1.
    """
    m, v, steps = layers.state
    beta1, beta2 = group["betas"]
    torch._foreach_add_(steps, 1)
    torch._foreach_lerp_(m, grads, 1 - beta1)
    torch._foreach_mul_(v, beta2)
    torch._foreach_addcmul_(v, grads, grads, 1 - beta2)
    root = torch._foreach_sqrt(v)
    t = torch.stack(steps).to(layers.wide_dtype())
    if group["bias_correction"]:
        torch._foreach_div_(root, _correction(beta2, t).sqrt().unbind())
        correction = _correction(beta1, t)
    else:
        correction = torch.ones_like(t)
    torch._foreach_add_(root, group["eps"])
    return m, root, correction


def _correction(beta: float, t: Tensor) -> Tensor:
    """1 − βᵗ, without the cancellation that would leave float32 four digits of 1 − 0.999."""
    return -torch.expm1(t * math.log(beta)) if beta else torch.ones_like(t)


def bounded_norms(layers: Layers, group: Mapping[str, Any]) -> Tensor:
    """φ(‖w‖) = min(max(‖w‖, γ_l), γ_u)."""
    low, high = group["norm_bounds"]
    norms = layers.norms(layers.params)
    return norms if (low, high) == (0.0, math.inf) else norms.clamp(low, high)
