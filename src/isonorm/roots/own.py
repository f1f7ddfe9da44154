"""Roots of one's own: a differentiable function Σ → W, or an object with a derivative of its own.

A plain function is differentiated by autograd, so that it runs in the reference. An object that has
all of :class:`Root` brings its derivative, so that it runs in the explicit path, too.
"""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import Tensor

#: What a root has beside ``__call__`` where it brings its own derivative.
_DERIVATIVE = ("on", "forward", "backward", "memo_shape")

#: The roots that ``register_root`` has given names.
_REGISTERED: dict[str, OwnRoot] = {}


class OwnRoot:
    """A function Σ → W under a name, for (b, d, d) covariances."""

    #: Whether the root brings its derivative, for the explicit path.
    is_explicit = False

    def __init__(self, name: str, function: Any) -> None:
        self.name, self.function = name, function

    def on(self, device: torch.device) -> Self:
        return self

    def __call__(self, sigma: Tensor) -> Tensor:
        return self._checked(self.function(sigma), sigma)

    def _checked(self, w: Any, sigma: Tensor) -> Tensor:
        if not isinstance(w, Tensor) or w.shape != sigma.shape:
            got = f"shape {tuple(w.shape)}" if isinstance(w, Tensor) else type(w).__name__
            raise ValueError(
                f"the root {self.name!r} must return W of Σ's shape {tuple(sigma.shape)}; got "
                f"{got}."
            )
        return w.to(sigma.dtype)

    def forward(self, sigma: Tensor) -> tuple[Tensor, Tensor]:
        raise NotImplementedError(f"the root {self.name!r} is a function, without a memo.")

    def backward(self, dw: Tensor, sigma: Tensor, w: Tensor, memo: Tensor) -> Tensor:
        raise NotImplementedError(f"the root {self.name!r} is differentiated by autograd.")

    def memo_shape(self, b: int, d: int) -> tuple[int, ...]:
        return (0,)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, OwnRoot):
            return NotImplemented
        return self.name == other.name and self.function is other.function

    def __hash__(self) -> int:
        return hash((self.name, id(self.function)))

    def __deepcopy__(self, memo: dict) -> Self:
        return self  # a function, which copies of a layer share

    def __reduce__(self) -> tuple:
        """Pickle a registered root by its name, so that its function need not be pickled."""
        if _REGISTERED.get(self.name) == self:
            return registered_root, (self.name,)
        return own_root, (self.name, self.function)


class ExplicitRoot(OwnRoot):
    """An object with all of ``Root``, under its name and with its W checked."""

    is_explicit = True

    def on(self, device: torch.device) -> Self:
        there = self.function.on(device)
        return self if there is self.function else type(self)(self.name, there)

    def forward(self, sigma: Tensor) -> tuple[Tensor, Tensor]:
        w, memo = self.function.forward(sigma)
        return self._checked(w, sigma), memo

    def backward(self, dw: Tensor, sigma: Tensor, w: Tensor, memo: Tensor) -> Tensor:
        return self.function.backward(dw, sigma, w, memo)

    def memo_shape(self, b: int, d: int) -> tuple[int, ...]:
        return self.function.memo_shape(b, d)


def own_root(name: str, function: Any) -> OwnRoot:
    """Return a root of one's own under a name."""
    if isinstance(function, OwnRoot):
        return function
    if not callable(function) or isinstance(function, type):
        raise TypeError(
            "a root must be a differentiable function Σ → W of (b, d, d) covariances, or an object "
            f"with all that isonorm.roots.Root has; got {_described(function)}."
        )
    brings_derivative = all(callable(getattr(function, part, None)) for part in _DERIVATIVE)
    return (ExplicitRoot if brings_derivative else OwnRoot)(name, function)


def _described(value: Any) -> str:
    if isinstance(value, type):
        return f"the class {value.__name__}: pass an object of it"
    if isinstance(value, str):
        return f"{value!r}: operation.whiten({value!r}) takes names"
    return f"a {type(value).__name__}"


def keep(name: str, function: Any) -> None:
    """Give a root a name for the rest of the process."""
    _REGISTERED[name] = own_root(name, function)


def registered_names() -> tuple[str, ...]:
    """Return the names that ``register_root`` has given."""
    return tuple(_REGISTERED)


def registered_root(name: str) -> OwnRoot:
    """Return the registered root of that name."""
    if name not in _REGISTERED:
        raise ValueError(
            f"there is no root called {name!r}: call isonorm.register_root({name!r}, function) "
            "first, as where the model was made."
        )
    return _REGISTERED[name]
