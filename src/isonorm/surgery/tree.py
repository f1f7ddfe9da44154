"""A model as a tree whose modules may hang in several places, and changes to it that happen
together or not at all.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from difflib import get_close_matches
from functools import partial
from types import MethodType
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim.swa_utils import AveragedModel

#: What the report says of a module that is ``kept_aside``.
KEPT_ASIDE = "it is also kept in a list or dict, or by a method, where it cannot be replaced"


class Place(NamedTuple):
    parent: nn.Module
    key: str
    name: str


class Hung(NamedTuple):
    """A module and every place it hangs in; more than one where it is shared."""

    module: nn.Module
    places: tuple[Place, ...]

    @property
    def name(self) -> str:
        return self.places[0].name

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(place.name for place in self.places)

    @property
    def label(self) -> str:
        """All its names, as a report shows them."""
        return " = ".join(self.names)


def modules_of(model: nn.Module) -> list[Hung]:
    """Every module below a model, once, in the order and by the names of ``named_modules``."""
    parents, places = {"": model}, {}
    for name, module in model.named_modules(remove_duplicate=False):
        if name:
            above, _, key = name.rpartition(".")
            places.setdefault(module, []).append(Place(parents[above], key, name))
        parents[name] = module
    return [Hung(module, tuple(found)) for module, found in places.items()]


def check_module(model: nn.Module) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"expected a torch.nn.Module; got {type(model).__name__}.")


def unwrapped(model: nn.Module) -> nn.Module:
    """The model inside torch.compile's wrapper and those for many devices."""
    if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
        return unwrapped(model.module)
    inner = getattr(model, "_orig_mod", None)
    return unwrapped(inner) if isinstance(inner, nn.Module) else model


def innermost(model: nn.Module) -> nn.Module:
    """Return the model inside all wrappers, torch's AveragedModel among them."""
    model = unwrapped(model)
    return unwrapped(model.module) if isinstance(model, AveragedModel) else model


def check_changeable(model: nn.Module) -> None:
    """Refuses models that hold on to modules or buffers in ways that a change would not reach."""
    check_module(model)
    if isinstance(model, torch.jit.ScriptModule):
        raise TypeError(
            "a scripted model cannot be changed: change the one it was made from, then trace "
            "that with torch.jit.trace."
        )
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if not is_lazy(tensor) and tensor.is_inference():
            raise ValueError(
                f"{name!r} is an inference tensor, which cannot learn or be written to: make or "
                "load the model outside of torch.inference_mode()."
            )
    for module in model.modules():
        if isinstance(module, nn.parallel.DistributedDataParallel):
            raise TypeError(
                "DistributedDataParallel keeps a list of the buffers it was made with: change the "
                "model first, then wrap it."
            )


def kept_aside(model: nn.Module) -> set[nn.Module]:
    """Modules that another one holds in lists, tuples, sets or dicts as well, or by one of their
    methods, where a change to the tree would not reach them.
    """
    found: set[nn.Module] = set()
    for module in model.modules():
        own = {key: value for key, value in vars(module).items() if key != "_modules"}
        found |= {m for m in held(own) if isinstance(m, nn.Module)} - {module}
    return found


def held(value: Any, within: tuple[int, ...] = ()) -> Iterator[nn.Module | Tensor]:
    """Yield the modules and tensors in a value, however deep."""
    if isinstance(value, nn.Module | Tensor):
        yield value
    elif isinstance(value, MethodType):
        yield from held(value.__self__)
    elif id(value) not in within:  # a list may hold itself
        inside: Iterable[Any] = ()
        if isinstance(value, partial):
            inside = (value.func, *value.args, *value.keywords.values())
        elif isinstance(value, Mapping):
            inside = value.values()
        elif isinstance(value, list | tuple | set | frozenset | deque):
            inside = value
        for item in inside:
            yield from held(item, (*within, id(value)))


class Sharing:
    """What modules have in common with others, and so cannot be changed for one alone."""

    def __init__(self, model: nn.Module) -> None:
        owners = (module.parameters(recurse=False) for module in model.modules())
        self._owners = Counter(id(parameter) for own in owners for parameter in own)
        self._aside = kept_aside(model)

    def why(self, module: nn.Module) -> str:
        """Why a module cannot be replaced; empty where it can be."""
        if module in self._aside:
            return KEPT_ASIDE
        for name, parameter in module.named_parameters(recurse=False):
            if self._owners[id(parameter)] > 1:
                return f"its {name} is shared with another module, which a new value would not suit"
        return ""


def nearest(name: str, names: list[str]) -> str:
    """The end of an error about a name that matches nothing: what was perhaps meant."""
    near = get_close_matches(name, names, n=3, cutoff=0.5) or names[:5]
    return f"near it are {', '.join(map(repr, near))}" if near else "there are none"


class KeepsKeys(nn.Module):
    """A wrapper that loads what was saved before it wrapped its child called ``wraps``."""

    wraps: str

    def __init__(self) -> None:
        super().__init__()
        self.register_load_state_dict_pre_hook(_move_keys)


def _move_keys(module: Any, state: dict, prefix: str, *_) -> None:
    keys = [key for key in state if key.startswith(prefix)]
    if any(key.startswith(f"{prefix}{module.wraps}.") for key in keys):
        return  # saved since
    wrapped = module.get_submodule(module.wraps)
    own = tuple(f"{name}." for name in module._modules if name not in wrapped._modules)
    for key in keys:
        rest = key.removeprefix(prefix)
        if not rest.startswith(own):
            state[f"{prefix}{module.wraps}.{rest}"] = state.pop(key)


def move_keys(model: nn.Module, state: dict) -> None:
    """Renames what was saved before parts of a model were wrapped."""
    for name, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, KeepsKeys):
            _move_keys(module, state, f"{name}." if name else "")


class Changes:
    """Changes to a model, undone in reverse if an exception leaves the ``with`` block.

    >>> model = nn.Sequential(nn.ReLU())
    >>> with Changes() as changes:
    ...     changes.put(modules_of(model)[0], nn.SiLU())
    >>> model[0]
    SiLU()
    """

    def __enter__(self) -> Self:
        self._undo = ExitStack()
        return self

    def __exit__(self, kind, *_) -> None:
        if kind is None:
            self._undo.pop_all()
        self._undo.close()

    def undo(self) -> None:
        self._undo.close()

    def put(self, hung: Hung, module: nn.Module) -> None:
        """The module in all places of another."""
        for parent, key, _ in hung.places:
            self._undo.callback(parent._modules.__setitem__, key, parent._modules[key])
            parent._modules[key] = module

    @torch.no_grad()
    def write(self, tensor: Tensor, value: Tensor) -> None:
        """A tensor's values in place: an optimizer that holds it goes on with it."""
        self._undo.callback(_restore, tensor, tensor.clone())
        tensor.copy_(value)


@torch.no_grad()
def _restore(tensor: Tensor, value: Tensor) -> None:
    tensor.copy_(value)
