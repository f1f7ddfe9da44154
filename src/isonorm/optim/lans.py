"""LANS: LAMB on normalized gradients, with a Nesterov-like step (Zheng et al., "Accelerated Large
Batch Optimization of BERT Pretraining in 54 minutes", 2020).

For the weights w of a layer, with gradient g, learning rate η and weight decay λ (their
Algorithm 2):

    g̃ = g/‖g‖
    m ← β₁·m + (1 − β₁)·g̃                m̂ = m/(1 − β₁ᵗ)
    v ← β₂·v + (1 − β₂)·g̃²               v̂ = v/(1 − β₂ᵗ)
    r = m̂/(√v̂ + ε)                       c = g̃/(√v̂ + ε)
    d = φ(‖w‖)·[β₁·(r + λ·w)/‖r + λ·w‖ + (1 − β₁)·(c + λ·w)/‖c + λ·w‖]
    w ← w − η·d

Weight decay is part of both normalized directions. The size of a gradient does not matter, so that
there is nothing to clip.
"""

# torch exports its foreach functions under private names alone.
# pyright: reportPrivateImportUsage=false

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from .adam import MomentOptimizer, bounded_norms, moments
from .layerwise import Layers, trust_ratio


class LANS(MomentOptimizer):
    """LANS: LAMB with normalized gradients and a Nesterov-like step.

    >>> model = torch.nn.Linear(3, 2)
    >>> optimizer = LANS(model.parameters(), lr=2e-3)
    >>> model(torch.randn(4, 3)).square().mean().backward()
    >>> optimizer.step()

    Arguments, and what happens to zeros and NaN, are those of :class:`LAMB`. Parameters with fewer
    than ``min_ndim`` dimensions step by β₁·r + (1 − β₁)·c, without ratio and decay; their gradients
    are normalized like all others. A gradient of zeros stays zero.
    """

    def update(self, layers: Layers, group: Mapping[str, Any]) -> None:
        w, beta1 = layers.params, group["betas"][0]
        g = layers.normalized(layers.grads)
        m, root, correction = moments(layers, g, group)
        r = torch._foreach_div(m, root)
        torch._foreach_div_(r, correction.unbind())
        c = torch._foreach_div(g, root)
        lr = layers.rate(group["lr"]).expand(len(w))
        scale_r, scale_c = lr * beta1, lr * (1 - beta1)
        if layers.adapted:
            for direction in (r, c):
                torch._foreach_add_(direction, w, alpha=group["weight_decay"])
            phi = bounded_norms(layers, group)
            scale_r = scale_r * trust_ratio(phi, layers.norms(r))
            scale_c = scale_c * trust_ratio(phi, layers.norms(c))
        layers.descend(r, scale_r)
        layers.descend(c, scale_c)
