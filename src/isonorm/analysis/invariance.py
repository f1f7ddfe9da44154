"""Scale invariance: what becomes of activations and gradients when weights are scaled (the survey's
table), and the learning rate that remains of it.

    Ŵ_k = α·W_k, all k      layer input        output gradient        weight gradient
    un-normalized           ∏_{i<k} α          ∏_{i>k} α              ∏_{i≠k} α
    normalized              1                  1/α                    1/α

The input is the survey's x_{k−1}.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from math import inf
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ._layers import Layers, call, is_weighted, learned_weight, select_layers, tapping, tensor_of
from ._state import copy_to_try, seeded


class ScaleFactors(NamedTuple):
    """By what a layer's tensors are multiplied when weights are scaled."""

    input: float
    output_gradient: float
    weight_gradient: float
    residual: float  # the largest part of any of them, relative, that no factor explains


def scale_invariance(
    model: nn.Module,
    inputs: Any,
    alpha: float = 2.0,
    *,
    loss: Callable[[Tensor], Tensor] | None = None,
    layers: Layers = None,
    together: bool = True,
) -> dict[str, ScaleFactors]:
    """The survey's table, measured: each layer's factors when weights are multiplied by ``alpha``.

    >>> def net(norm):
    ...     return nn.Sequential(nn.Linear(4, 5, bias=False), norm, nn.ReLU(),
    ...                          nn.Linear(5, 3, bias=False)).double()
    >>> x = torch.randn(8, 4, dtype=torch.float64)
    >>> [round(f, 3) for f in scale_invariance(net(nn.Identity()), x)["3"]]
    [2.0, 1.0, 2.0, 0.0]
    >>> import isonorm
    >>> [round(f, 3) for f in scale_invariance(net(isonorm.BatchNorm(5, eps=0)), x)["0"]]
    [1.0, 1.0, 1.0, 0.0]

    In the last line the gradients' factors are 2, of the classifier, which nothing normalizes,
    times 1/2, the layer's own.

    Args:
        model: in its present mode, on a copy that speaks to no other rank.
        loss: of the model's output. None: a fixed random linear function of it, whose gradient at
            the output does not change with the weights; the table assumes this.
        layers: whose weights are scaled and who is seen; None: all linear layers and convolutions.
        together: scales all of them at once. False: one at a time, each row telling what its own
            layer's scale does to it.
    """
    if not alpha > 0:
        raise ValueError(f"alpha must be positive; got {alpha}.")
    model = copy_to_try(model)
    chosen = select_layers(model, layers, default=is_weighted)
    weights = {name: learned_weight(name, module) for name, module in chosen.items()}
    before = _measure(model, inputs, chosen, weights, loss)
    if together:
        after = _scaled(model, inputs, chosen, weights, loss, list(weights), alpha)
    else:
        after = {
            name: _scaled(model, inputs, chosen, weights, loss, [name], alpha)[name]
            for name in before
        }
    return {name: _factors(before[name], after[name]) for name in before}


def effective_learning_rate(
    model: nn.Module, lr: float | torch.optim.Optimizer, *, layers: Layers = None
) -> dict[str, float]:
    """η/‖W‖² of each linear layer and convolution: how fast a step turns a weight whose scale does
    not matter, as before a normalization (van Laarhoven 2017; Hoffer et al. 2018). Infinite where
    W is zero, and 0 where the optimizer does not hold it.

    >>> model = nn.Linear(2, 2, bias=False)
    >>> _ = nn.init.constant_(model.weight, 0.5)
    >>> effective_learning_rate(model, lr=0.1)
    {'': 0.1}
    """
    chosen = select_layers(model, layers, default=is_weighted)
    rates: dict[int, float] = {}
    if isinstance(lr, torch.optim.Optimizer):
        rates = {id(p): float(group["lr"]) for group in lr.param_groups for p in group["params"]}
    found = {}
    for name, module in chosen.items():
        weight = learned_weight(name, module)
        rate = rates.get(id(weight), 0.0) if isinstance(lr, torch.optim.Optimizer) else lr
        square = weight.detach().double().square().sum().item()
        found[name] = rate / square if square else inf
    return found


def _scaled(model, inputs, chosen, weights, loss, names, alpha) -> dict[str, tuple[Tensor, ...]]:
    scaled = {id(weights[name]): weights[name] for name in names}.values()  # shared ones once
    with torch.no_grad():
        kept = [weight.clone() for weight in scaled]
        for weight in scaled:
            weight.mul_(alpha)
    try:
        return _measure(model, inputs, chosen, weights, loss)
    finally:
        with torch.no_grad():
            for weight, value in zip(scaled, kept, strict=True):
                weight.copy_(value)


def _measure(model, inputs, chosen, weights, loss) -> dict[str, tuple[Tensor, ...]]:
    """Of each layer that the loss depends on: its input, the gradient at its output and that at its
    weight.
    """
    with ExitStack() as stack:
        stack.enter_context(torch.enable_grad())
        # dropout and the linear loss, alike before and after
        stack.enter_context(seeded(0))
        seen = stack.enter_context(tapping(chosen))
        for weight in weights.values():
            weight.requires_grad_()
        y = tensor_of(call(model, inputs))
        value = (y * torch.randn_like(y)).sum() if loss is None else loss(y)
        names = list(seen)
        gradients = torch.autograd.grad(
            value,
            [seen[name][1] for name in names] + [weights[name] for name in names],
            allow_unused=True,
        )
    return {
        name: (seen[name][0], gradients[i], gradients[len(names) + i])
        for i, name in enumerate(names)
        if gradients[i] is not None and gradients[len(names) + i] is not None
    }


def _factors(before: tuple[Tensor, ...], after: tuple[Tensor, ...]) -> ScaleFactors:
    factors, residuals = [], []
    for a, b in zip(before, after, strict=True):
        a, b = a.double().flatten(), b.double().flatten()
        factor = ((a @ b) / (a @ a)).item()  # least squares of b by a
        factors.append(factor)
        size = b.norm().item()
        residuals.append((b - factor * a).norm().item() / size if size else 0.0)
    return ScaleFactors(factors[0], factors[1], factors[2], max(residuals))
