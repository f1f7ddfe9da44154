"""Choosing layers of a model, and looking at what passes through them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd

from ..layers import Normalize
from ..weights import EquiLinear
from ._state import undisturbed

#: Which layers: names, a shell pattern, a function of name and module, or None for a default.
Layers = str | Iterable[str] | Callable[[str, nn.Module], bool] | None
Result = TypeVar("Result")

_NORMS = (Normalize, _NormBase, nn.LayerNorm, nn.GroupNorm, nn.LocalResponseNorm)
_WEIGHTED = (nn.Linear, EquiLinear, _ConvNd)  # _ConvNd: EquiConv*d, too


def is_norm(module: nn.Module) -> bool:
    return isinstance(module, _NORMS)


def is_weighted(module: nn.Module) -> bool:
    """Whether a module is a linear layer or a convolution."""
    return isinstance(module, _WEIGHTED)


def select_layers(
    model: nn.Module,
    layers: Layers = None,
    default: Callable[[nn.Module], bool] = lambda module: isinstance(module, _NORMS + _WEIGHTED),
) -> dict[str, nn.Module]:
    """The chosen layers by name, in the model's order.

    >>> model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU())
    >>> list(select_layers(model)), list(select_layers(model, "2"))
    (['0', '1'], ['2'])
    """
    every = dict(model.named_modules())
    if layers is None:
        chosen = {name: module for name, module in every.items() if default(module)}
    elif isinstance(layers, str):
        chosen = {name: module for name, module in every.items() if fnmatchcase(name, layers)}
    elif callable(layers):
        chosen = {name: module for name, module in every.items() if layers(name, module)}
    else:
        names = list(layers)
        unknown = [name for name in names if name not in every]
        if unknown:
            raise ValueError(f"the model has no layer called {unknown[0]!r}; see named_modules().")
        chosen = {name: every[name] for name in names}
    if not chosen:
        raise ValueError(
            f"layers={layers!r} chooses none of the model's {len(every)} modules; pass names, a "
            "pattern or a function of name and module."
        )
    return chosen


def tensor_of(value: Any) -> Tensor:
    """The first tensor of a module's arguments or results."""
    while isinstance(value, tuple | list) and value:
        value = value[0]
    if not isinstance(value, Tensor):
        raise TypeError(f"expected a layer of tensors; it passes {type(value).__name__}.")
    return value


@contextmanager
def watching(
    layers: dict[str, nn.Module], see: Callable[[str, Tensor], None], of: str
) -> Iterator[None]:
    """Calls ``see(name, activation)`` whenever one of the layers runs inside the block."""
    if of not in ("input", "output"):
        raise ValueError(f"of must be 'input' or 'output'; got {of!r}.")

    def hook(name: str) -> Callable[..., None]:
        def seen(module: nn.Module, args: Any, output: Any) -> None:
            see(name, tensor_of(args if of == "input" else output))

        return seen

    handles = [module.register_forward_hook(hook(name)) for name, module in layers.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def call(model: nn.Module, inputs: Any) -> Any:
    """The model on its inputs; a tuple holds several arguments."""
    return model(*inputs) if isinstance(inputs, tuple) else model(inputs)


def observe(
    model: nn.Module,
    inputs: Any,
    question: Callable[[Tensor], Result],
    *,
    layers: Layers = None,
    of: str = "output",
) -> dict[str, Result]:
    """The answer of each layer's activation in one forward pass (of its last call, where a layer
    runs more than once); the activations themselves are not kept.
    """
    answers: dict[str, Result] = {}

    def see(name: str, activation: Tensor) -> None:
        answers[name] = question(activation.detach())

    chosen = select_layers(model, layers)
    with undisturbed(model), torch.no_grad(), watching(chosen, see, of):
        call(model, inputs)
    return {name: answers[name] for name in chosen if name in answers}
