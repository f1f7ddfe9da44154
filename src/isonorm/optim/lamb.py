"""LAMB: Adam with a learning rate for each layer (You et al., "Large Batch Optimization for Deep
Learning: Training BERT in 76 minutes", ICLR 2020).

For the weights w of a layer, with gradient g, learning rate η and weight decay λ (their
Algorithm 2):

    m ← β₁·m + (1 − β₁)·g                m̂ = m/(1 − β₁ᵗ)
    v ← β₂·v + (1 − β₂)·g²               v̂ = v/(1 − β₂ᵗ)
    r = m̂/(√v̂ + ε)
    w ← w − η·φ(‖w‖)/‖r + λ·w‖·(r + λ·w)

Weight decay is decoupled from the moments, as in AdamW, but part of what is normalized. φ is the
identity, or clamps to ``norm_bounds``.
"""

# torch exports its foreach functions under private names alone.
# pyright: reportPrivateImportUsage=false

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from .adam import MomentOptimizer, bounded_norms, moments
from .layerwise import Layers, trust_ratio


class LAMB(MomentOptimizer):
    """LAMB: Adam whose step is, layer by layer, a fraction of the size of the weights.

    >>> model = torch.nn.Linear(3, 2)
    >>> optimizer = LAMB(model.parameters(), lr=2e-3)
    >>> model(torch.randn(4, 3)).square().mean().backward()
    >>> optimizer.step()

    Args:
        params: parameters, or groups of them, as for ``torch.optim.AdamW``.
        lr: η, a number or a one-element tensor.
        betas: β₁, β₂.
        eps: ε.
        weight_decay: λ.
        bias_correction: False leaves m̂ = m and v̂ = v, as some implementations do.
        norm_bounds: γ_l, γ_u of φ(z) = min(max(z, γ_l), γ_u).
        min_ndim: parameters with fewer dimensions take Adam's step: no ratio, λ = 0.
        maximize: ascend.

    Where φ(‖w‖) or ‖r + λ·w‖ is zero, the ratio is 1. A gradient with NaN makes its whole layer
    NaN. Gradients are only read.
    """

    def update(self, layers: Layers, group: Mapping[str, Any]) -> None:
        w = layers.params
        m, root, correction = moments(layers, layers.wide(layers.grads), group)
        r = torch._foreach_div(m, root)
        torch._foreach_div_(r, correction.unbind())
        scales = layers.rate(group["lr"]).expand(len(w))
        if layers.adapted:
            torch._foreach_add_(r, w, alpha=group["weight_decay"])
            scales = scales * trust_ratio(bounded_norms(layers, group), layers.norms(r))
        layers.descend(r, scales)
