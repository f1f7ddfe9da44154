"""LARS: momentum SGD with a learning rate for each layer (You, Gitman & Ginsburg, "Large Batch
Training of Convolutional Networks", 2017).

For the weights w of a layer, with gradient g, learning rate γ, momentum m, weight decay β and trust
coefficient η (their Algorithm 1):

    λ = η·‖w‖/(‖g‖ + β·‖w‖)
    v ← m·v + γ·λ·(g + β·w)
    w ← w − v

Weight decay is part of the direction and of the ratio. The paper keeps γ inside the momentum;
torch's SGD keeps it outside, w ← w − γ·v: the same as long as γ is constant. ``lr_in_momentum``
chooses.
"""

# torch exports its foreach functions under private names alone.
# pyright: reportPrivateImportUsage=false

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from .layerwise import Layers, LayerwiseOptimizer, check_number, trust_ratio


class LARS(LayerwiseOptimizer):
    """LARS: SGD whose step is, layer by layer, a fraction of the size of the weights.

    >>> model = torch.nn.Linear(3, 2)
    >>> optimizer = LARS(model.parameters(), lr=1.0, weight_decay=1e-4)
    >>> model(torch.randn(4, 3)).square().mean().backward()
    >>> optimizer.step()

    Args:
        params: parameters, or groups of them, as for ``torch.optim.SGD``.
        lr: γ, a number or a one-element tensor.
        momentum: m; 0 keeps no buffers.
        weight_decay: β.
        trust_coefficient: η: how large a step is, in parts of the weights, at lr=1.
        nesterov: step along m·v + γ·λ·(g + β·w) instead of v.
        lr_in_momentum: γ inside the momentum, as in the paper; False: outside, as in torch's SGD.
        min_ndim: parameters with fewer dimensions take plain momentum SGD: λ = 1, β = 0.
        maximize: ascend.

    Where ‖w‖ is zero, λ = 1. A gradient with NaN makes its whole layer NaN. Gradients are only
    read.
    """

    def __init__(
        self,
        params: Any,
        lr: float | Tensor,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        trust_coefficient: float = 0.001,
        *,
        nesterov: bool = False,
        lr_in_momentum: bool = True,
        min_ndim: int = 2,
        maximize: bool = False,
    ) -> None:
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "weight_decay": weight_decay,
            "trust_coefficient": trust_coefficient,
            "nesterov": nesterov,
            "lr_in_momentum": lr_in_momentum,
            "min_ndim": min_ndim,
            "maximize": maximize,
        }
        super().__init__(params, defaults)

    def check(self, group: Mapping[str, Any]) -> None:
        super().check(group)
        check_number("momentum", group["momentum"], low=0, below=1)
        check_number("trust_coefficient", group["trust_coefficient"], low=0)
        if group["trust_coefficient"] == 0:
            raise ValueError("trust_coefficient must be positive: with 0 no layer would move.")
        if group["nesterov"] and group["momentum"] == 0:
            raise ValueError("nesterov=True needs a momentum; got momentum=0.")

    def state_names(self, group: Mapping[str, Any]) -> tuple[str, ...]:
        return ("momentum_buffer",) if group["momentum"] else ()

    def update(self, layers: Layers, group: Mapping[str, Any]) -> None:
        w, g, m = layers.params, layers.wide(layers.grads), group["momentum"]
        lr = layers.rate(group["lr"])
        ratio = torch.ones_like(lr).expand(len(w))
        if layers.adapted:
            beta = group["weight_decay"]
            w_norm = layers.norms(w)
            ratio = trust_ratio(
                group["trust_coefficient"] * w_norm, layers.norms(g) + beta * w_norm
            )
            g = torch._foreach_add(g, w, alpha=beta)
        lr_inside = group["lr_in_momentum"] or not m
        step = layers.scaled(g, lr * ratio if lr_inside else ratio)
        if m:
            (v,) = layers.state
            torch._foreach_mul_(v, m)
            torch._foreach_add_(v, step)
            step = torch._foreach_add(step, v, alpha=m) if group["nesterov"] else v
        layers.subtract(step if lr_inside else torch._foreach_mul(step, lr))
