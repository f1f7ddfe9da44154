"""An optimizer around an optimizer: each step of the inner one sees transformed gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ..scalars import plain
from .layerwise import check_gradient, check_min_ndim


class GradientTransform(Optimizer):
    """Behaves as the optimizer it wraps: parameter groups, state, hooks and checkpoints are the
    inner optimizer's own, so that schedulers, ``GradScaler`` and training loops need not know.

    While the inner optimizer steps, ``p.grad`` is the transformed gradient. Afterwards, also after
    an exception, it is the tensor that was there before; ``in_place=True`` writes into that tensor
    instead, and saves the memory of a second one.
    """

    #: A GradScaler then unscales the gradients itself, whatever the inner optimizer could do.
    _step_supports_amp_scaling = False

    # torch's constructor is left out: what it makes is the inner optimizer's, and the hooks that it
    # would have ``step`` call are called by the inner step.
    def __init__(self, optimizer: Optimizer, *, min_ndim: int, in_place: bool) -> None:
        if not isinstance(optimizer, Optimizer):
            raise TypeError(
                f"{self.name()} goes around a torch.optim.Optimizer; got a "
                f"{type(optimizer).__name__}."
            )
        check_min_ndim(min_ndim)
        self.optimizer, self.min_ndim, self.in_place = optimizer, plain(min_ndim), in_place

    @staticmethod
    def name() -> str:
        """How the user called it, for messages and the repr."""
        raise NotImplementedError

    def prepare(self, grads: list[Tensor]) -> Sequence[Any]:
        """What ``transform`` must know of each gradient, found for all of them at once."""
        return [None] * len(grads)

    def transform(self, grad: Tensor, prepared: Any) -> Tensor:
        """What the inner optimizer sees instead of a gradient: a new tensor like it."""
        raise NotImplementedError

    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """One step of the inner optimizer. It may evaluate a closure as often as it likes: the
        closure meets the gradients it left, the optimizer their transforms.
        """
        replaced: list[tuple[Tensor, Tensor]] = []
        try:
            if closure is None:
                self._exchange(replaced)
                return self.optimizer.step()

            def transformed() -> Any:
                _restore(replaced)
                loss = closure()
                self._exchange(replaced)
                return loss

            return self.optimizer.step(transformed)
        finally:
            _restore(replaced)

    @torch.no_grad()
    def _exchange(self, replaced: list[tuple[Tensor, Tensor]]) -> None:
        layers = [
            p
            for group in self.param_groups
            for p in group["params"]
            if p.grad is not None and p.ndim >= self.min_ndim
        ]
        for p in layers:  # all of them before the first is changed
            check_gradient(p.grad, self.name())
        grads = [p.grad for p in layers]
        for p, grad, prepared in zip(layers, grads, self.prepare(grads), strict=True):
            new = self.transform(grad, prepared)
            if self.in_place:
                grad.copy_(new)
            else:
                replaced.append((p, grad))
                p.grad = new

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.optimizer.zero_grad(set_to_none)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        self.optimizer.add_param_group(param_group)

    def state_dict(self) -> dict[str, Any]:
        """The inner optimizer's: checkpoints are the same with the wrapper and without."""
        return self.optimizer.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.optimizer.load_state_dict(state_dict)

    def __getattr__(self, name: str) -> Any:
        if name == "optimizer":  # not there yet while a copy is being made
            raise AttributeError(name)
        return getattr(self.optimizer, name)

    def __setattr__(self, name: str, value: Any) -> None:
        shared = name in ("param_groups", "state", "defaults")
        object.__setattr__(self.optimizer if shared else self, name, value)

    def __getstate__(self) -> dict[str, Any]:
        return {name: self.__dict__[name] for name in ("optimizer", "min_ndim", "in_place")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    def __repr__(self) -> str:
        return f"{self.name()}({self.optimizer!r})"


def _restore(replaced: list[tuple[Tensor, Tensor]]) -> None:
    for p, grad in replaced:
        p.grad = grad
    replaced.clear()
