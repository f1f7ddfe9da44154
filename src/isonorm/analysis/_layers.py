"""Choosing layers of a model, and looking at what passes through them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from fnmatch import fnmatchcase
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.nn.utils import parametrize

from ..layers.kinds import NORMS
from ..weights import EquiLinear
from ._state import random_state_kept, undisturbed

#: Which layers: names, a shell pattern, a function of name and module, or None for a default.
Layers = str | Iterable[str] | Callable[[str, nn.Module], bool] | None
Result = TypeVar("Result")

_LINEAR = (nn.Linear, EquiLinear)
_WEIGHTED = (*_LINEAR, _ConvNd)  # _ConvNd: EquiConv*d, too


def is_weighted(module: nn.Module) -> bool:
    """Whether a module is a linear layer or a convolution."""
    return isinstance(module, _WEIGHTED)


def select_layers(
    model: nn.Module,
    layers: Layers = None,
    default: Callable[[nn.Module], bool] = lambda module: isinstance(module, NORMS + _WEIGHTED),
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


def first_tensor(value: Any) -> Tensor | None:
    """The first tensor of a module's arguments or results, if that is what they begin with."""
    while isinstance(value, tuple | list) and value:
        value = value[0]
    return value if isinstance(value, Tensor) else None


def tensor_of(value: Any, what: str = "the model's output") -> Tensor:
    """The same where it must be there; ``what`` is for the error."""
    found = first_tensor(value)
    if found is None:
        raise TypeError(f"{what} must be or begin with a tensor; got {type(value).__name__}.")
    return found


def input_of(module: nn.Module, args: tuple[Any, ...], keywords: dict[str, Any]) -> Tensor | None:
    """The first tensor that a module was called with, in the order of its own parameters."""
    values = list(args)
    if keywords:
        order = [name for name in inspect.signature(module.forward).parameters if name in keywords]
        values += (keywords[name] for name in dict.fromkeys([*order, *keywords]))
    return next((found for value in values if (found := first_tensor(value)) is not None), None)


def input_named(name: str, module: nn.Module, args: Any, keywords: Any) -> Tensor:
    """The input of a layer that must have one; its name is for the error."""
    found = input_of(module, args, keywords)
    if found is None:
        given = ", ".join(type(value).__name__ for value in (*args, *keywords.values()))
        raise TypeError(f"layer {name!r} must be called with a tensor; got {given or 'nothing'}.")
    return found


def output_named(name: str, output: Any) -> Tensor:
    return tensor_of(output, f"the output of layer {name!r}")


def channels_first(module: nn.Module, x: Tensor) -> Tensor:
    """A layer's input or output as (N, C, *). Torch's linear layers, LayerNorm and RMSNorm have
    their features last.

    >>> channels_first(nn.Linear(8, 8), torch.zeros(2, 5, 8)).shape  # 5 tokens
    torch.Size([2, 8, 5])
    """
    last = isinstance(module, _LINEAR) or (
        isinstance(module, (nn.LayerNorm, nn.RMSNorm)) and len(module.normalized_shape) == 1
    )
    return x.movedim(-1, 1) if last and x.dim() > 2 else x


@contextmanager
def watching(
    layers: dict[str, nn.Module], see: Callable[[str, Tensor], None], of: str
) -> Iterator[None]:
    """Calls ``see(name, activation)`` whenever one of the layers runs inside the block."""
    if of not in ("input", "output"):
        raise ValueError(f"of must be 'input' or 'output'; got {of!r}.")

    def hook(name: str) -> Callable[..., None]:
        def seen(module: nn.Module, args: Any, keywords: Any, output: Any) -> None:
            found = (
                input_named(name, module, args, keywords)
                if of == "input"
                else output_named(name, output)
            )
            see(name, channels_first(module, found))

        return seen

    with _hooked(layers, hook):
        yield


@contextmanager
def tapping(layers: dict[str, nn.Module]) -> Iterator[dict[str, tuple[Tensor, Tensor]]]:
    """Each layer that runs inside the block leaves its input, and its output to take gradients at.

    The model goes on with a copy of the output, or an activation in place would put its own output
    in the layer's stead. Where nothing learns up to there, as in a frozen stem, the graph begins
    with the output.
    """
    seen: dict[str, tuple[Tensor, Tensor]] = {}

    def hook(name: str) -> Callable[..., Tensor | None]:
        def see(module: nn.Module, args: Any, keywords: Any, output: Any) -> Tensor | None:
            y = output_named(name, output)
            if not y.requires_grad:
                y = y.detach().requires_grad_()
            seen[name] = input_named(name, module, args, keywords).detach(), y
            return y.clone() if isinstance(output, Tensor) else None

        return see

    with _hooked(layers, hook):
        yield seen


@contextmanager
def _hooked(
    layers: dict[str, nn.Module], hook: Callable[[str], Callable[..., Any]]
) -> Iterator[None]:
    """Each layer has its hook, which sees arguments by keyword, too, for the length of a block."""
    with ExitStack() as stack:
        for name, module in layers.items():
            handle = module.register_forward_hook(hook(name), with_kwargs=True)
            stack.callback(handle.remove)
        yield


def learned_weight(name: str, module: nn.Module) -> Tensor:
    """The tensor an optimizer holds for a layer's weight: behind a parametrization, its original,
    and of weight normalization's two, g and v, the second.
    """
    weight = getattr(module, "weight", None)
    if not isinstance(weight, Tensor):
        raise ValueError(f"layer {name!r} has no weight to scale; choose layers that have one.")
    if parametrize.is_parametrized(module, "weight"):
        weight = list(module.get_submodule("parametrizations.weight").parameters(recurse=False))[-1]
    return weight


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
    with undisturbed(model), random_state_kept(), torch.no_grad(), watching(chosen, see, of):
        call(model, inputs)
    return {name: answers[name] for name in chosen if name in answers}
