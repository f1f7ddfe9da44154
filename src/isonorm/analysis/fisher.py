"""The Fisher information of a classifier: of its last layer exactly, of the others by its two
factors.

The last layer's is Sun & Nielsen's relative Fisher information (2017), that of its own weight given
its input h: with p the softmax of the logits W·h,

    F = E[(diag p − p·pᵀ) ⊗ h·hᵀ]

Adding one vector to all rows of W changes no probability, so that F is singular along d of its K·d
directions whatever the features are; the condition number is that of the other (K − 1)·d.

Index legend: K classes, d features, N examples.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ._layers import (
    Layers,
    call,
    channels_first,
    input_named,
    is_weighted,
    output_named,
    select_layers,
    tapping,
    tensor_of,
)
from ._state import random_state_kept, undisturbed
from .conditioning import Conditioning, condition_of, eigenvalues, rounding_of, summary_of, wide

#: Numbers in one product of features: larger sets of examples are taken in parts.
_TOGETHER = 2**24


class FisherFactors(NamedTuple):
    """A layer's block of the Fisher information is about Σ_x ⊗ Σ_∇h: both should be well
    conditioned, and alike in every layer.
    """

    input: Conditioning  # of Σ_x = E[x·xᵀ], the layer's input
    gradient: Conditioning  # of Σ_∇h = E[∇h·∇hᵀ], the gradient at the layer's output


def softmax_fisher(features: Tensor, logits: Tensor) -> Tensor:
    """F on the (K − 1)·d directions where it can be regular, from (N, d) and (N, K).

    >>> softmax_fisher(torch.randn(100, 6), torch.randn(100, 3)).shape
    torch.Size([12, 12])
    """
    if features.dim() != 2 or logits.dim() != 2 or len(features) != len(logits):
        raise ValueError(
            "expected features (N, d) and logits (N, K) of the same examples; got "
            f"{tuple(features.shape)} and {tuple(logits.shape)}."
        )
    h, p = wide(features), wide(logits).softmax(-1)
    k, d = p.shape[1], h.shape[1]
    if k < 2:
        raise ValueError("expected logits of at least 2 classes; got one.")
    basis = _complement_of_ones(p)
    # Of diag p − p·pᵀ in that basis, and of h·hᵀ, for each example a row:
    projected = p @ basis
    output = (basis.T * p[:, None]) @ basis - projected[:, :, None] * projected[:, None]
    total = torch.zeros((k - 1) ** 2, d * d, dtype=h.dtype, device=h.device)
    step = max(1, _TOGETHER // (d * d))
    for s, x in zip(output.split(step), h.split(step), strict=True):
        total += s.flatten(1).T @ (x[:, :, None] * x[:, None]).flatten(1)
    blocks = total.view(k - 1, k - 1, d, d).transpose(1, 2) / len(h)
    return blocks.reshape((k - 1) * d, (k - 1) * d)


def _complement_of_ones(like: Tensor) -> Tensor:
    """(K, K − 1): an orthonormal basis of the vectors whose entries sum to zero."""
    k = like.shape[1]
    ones = torch.ones(k, 1, dtype=like.dtype, device=like.device)
    full = torch.cat([ones, torch.eye(k, k - 1, dtype=like.dtype, device=like.device)], dim=1)
    return torch.linalg.qr(full).Q[:, 1:]


def fisher_spectrum(
    model: nn.Module, inputs: Any, *, layer: str | None = None, bias: bool = False
) -> Tensor:
    """The (K − 1)·d eigenvalues of the last layer's relative Fisher information, largest first.

    ``layer`` names a linear layer whose outputs are the logits; None: the model's last one.
    ``bias`` counts it as one more weight, at a constant feature 1.
    """
    name, last = _classifier(model, layer)
    seen: dict[str, Tensor] = {}

    def see(module: nn.Module, args: Any, keywords: Any, output: Any) -> None:
        # copies: what follows may work in place
        seen["features"] = input_named(name, module, args, keywords).clone()
        seen["logits"] = output_named(name, output).clone()

    with ExitStack() as stack, torch.no_grad(), random_state_kept():
        stack.enter_context(undisturbed(model))
        stack.callback(last.register_forward_hook(see, with_kwargs=True).remove)
        call(model, inputs)
    if not seen:
        raise ValueError(f"layer {name!r} did not run when the model was called.")
    features = seen["features"]
    if bias:
        features = F.pad(features, (0, 1), value=1.0)
    return eigenvalues(softmax_fisher(features, seen["logits"]))


def fisher_condition(
    model: nn.Module, inputs: Any, *, layer: str | None = None, bias: bool = False
) -> float:
    """The condition number of the last layer's relative Fisher information (DBN Fig. 3): over the
    (K − 1)·d directions where a softmax's is not singular anyway; infinite with a dead feature.

    >>> model = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 3))
    >>> 1 < fisher_condition(model, torch.randn(500, 8)) < 1e6
    True
    """
    return condition_of(fisher_spectrum(model, inputs, layer=layer, bias=bias))


def _classifier(model: nn.Module, layer: str | None) -> tuple[str, nn.Linear]:
    linear = {name: m for name, m in model.named_modules() if isinstance(m, nn.Linear)}
    if layer is None and linear:
        layer = list(linear)[-1]
    if layer is None or layer not in linear:
        raise ValueError(
            f"expected the name of a linear layer that gives the logits; got {layer!r}, and the "
            f"model's are {', '.join(map(repr, linear)) or 'none'}."
        )
    return layer, linear[layer]


def fisher_factors(
    model: nn.Module,
    inputs: Any,
    labels: Tensor | None = None,
    *,
    layers: Layers = None,
    loss: Callable[[Tensor, Tensor], Tensor] = F.cross_entropy,
    generator: torch.Generator | None = None,
) -> dict[str, FisherFactors]:
    """Σ_x and Σ_∇h of every linear layer and convolution, about zero, not about their means.

    Without ``labels`` they are drawn from the model's own softmax, which makes it the Fisher
    information; with them it is the empirical one. Positions of a convolution's maps count as
    samples, and its features are channels. Gradients are those of one example's loss (the mean's,
    times N). Labels are drawn from ``generator``, of the model's device; None: from torch's own,
    which stays as it was, so that the next call draws the same.

    >>> model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    >>> found = fisher_factors(model, torch.randn(50, 6))
    >>> list(found), found["3"].gradient.condition_number  # softmax gradients sum to zero
    (['0', '3'], inf)
    """
    chosen = select_layers(model, layers, default=is_weighted)
    # Checkpointed parts run again in backward, which must not disturb the model either.
    with undisturbed(model), random_state_kept(), torch.enable_grad():
        with tapping(chosen) as seen:
            logits = tensor_of(call(model, inputs))
        if labels is None:
            labels = _drawn_from(logits.detach(), generator)
        total = loss(logits, labels) * len(logits)
        outputs = [output for _, output in seen.values()]
        gradients = torch.autograd.grad(total, outputs, allow_unused=True)
    return {
        name: FisherFactors(
            _about_zero(chosen[name], seen[name][0]), _about_zero(chosen[name], gradient)
        )
        for name, gradient in zip(seen, gradients, strict=True)
        if gradient is not None
    }


def _drawn_from(logits: Tensor, generator: torch.Generator | None) -> Tensor:
    """A label for each of (N, K) logits, by the softmax's probabilities."""
    if logits.dim() != 2:
        raise ValueError(
            "labels can be drawn for logits (N, K); got logits of shape "
            f"{tuple(logits.shape)}: pass labels."
        )
    return torch.multinomial(logits.softmax(-1), 1, generator=generator).squeeze(-1)


def _about_zero(layer: nn.Module, x: Tensor) -> Conditioning:
    """The conditioning of E[x·xᵀ] over the examples and positions of a layer's input or output."""
    rows = wide(channels_first(layer, x)).transpose(0, 1).flatten(1)
    return summary_of(rows @ rows.T / rows.shape[1], rounding_of(x))
