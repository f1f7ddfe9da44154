"""What LARS, LAMB and LANS share: the walk over parameter groups, and the trust ratio.

The lists of a :class:`Layers` belong together position by position, and are updated by
``torch._foreach_*``. Norms, ratios and learning rates of n layers are one (n,) tensor on their
device; a step never waits for it.
"""

# torch exports its foreach functions under private names alone.
# pyright: reportPrivateImportUsage=false

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from ..scalars import plain
from ..statistics import working_dtype
from .norms import Tensors, divisors, euclidean_norms, finite_in


class Layers(NamedTuple):
    """Parameters of one device, dtype and treatment, their gradients and their state."""

    params: list[Tensor]
    grads: list[Tensor]
    state: tuple[list[Tensor], ...]  # one list for each name of ``state_names``
    adapted: bool  # False: no trust ratio, no weight decay

    def wide_dtype(self) -> torch.dtype:
        """What is multiplied and averaged in: float32 or better."""
        return working_dtype(self.params[0])

    def wide(self, tensors: Tensors) -> list[Tensor]:
        """The tensors themselves, where they are wide."""
        dtype = self.wide_dtype()
        return [t.to(dtype) for t in tensors]

    def norms(self, tensors: Tensors) -> Tensor:
        """(n,) Euclidean norms."""
        return euclidean_norms(tensors)

    def normalized(self, tensors: Tensors) -> Tensors:
        """t/‖t‖, layer by layer, wide; zeros stay zeros."""
        return torch._foreach_div(self.wide(tensors), divisors(tensors))

    def scaled(self, tensors: Tensors, scales: Tensor) -> Tensors:
        """s·t, layer by layer, wide."""
        scales = finite_in(self.wide_dtype(), scales)
        return torch._foreach_mul(self.wide(tensors), scales.unbind())

    def subtract(self, steps: Tensors) -> None:
        """w ← w − step, layer by layer."""
        torch._foreach_sub_(self.params, [step.to(self.params[0].dtype) for step in steps])

    def descend(self, updates: Tensors, scales: Tensor) -> None:
        """w ← w − s·u, layer by layer."""
        self.subtract(self.scaled(updates, scales))

    def rate(self, lr: float | Tensor) -> Tensor:
        """The learning rate as a 0-d tensor beside the norms."""
        if isinstance(lr, Tensor):
            lr = lr.reshape(())
            return lr.to(self.params[0].device, self.wide_dtype(), non_blocking=True)
        return torch.full((), lr, dtype=self.wide_dtype(), device=self.params[0].device)


class LayerwiseOptimizer(Optimizer):
    """A ``torch.optim.Optimizer`` whose subclass updates one :class:`Layers` at a time."""

    def __init__(self, params: Any, defaults: dict[str, Any]) -> None:
        # The count of steps lives beside its parameter, where a captured or compiled step finds
        # it; ``capturable`` is how torch's load_state_dict knows.
        super().__init__(params, {**_plain_options(defaults), "capturable": True})

    def state_names(self, group: Mapping[str, Any]) -> tuple[str, ...]:
        """What is kept for each parameter; "step" counts, the rest is shaped like it, and wide."""
        raise NotImplementedError

    def update(self, layers: Layers, group: Mapping[str, Any]) -> None:
        """One step of the parameters and of their state, in place."""
        raise NotImplementedError

    def check(self, group: Mapping[str, Any]) -> None:
        """Refuses options outside their range."""
        check_rate(group["lr"])
        check_number("weight_decay", group["weight_decay"], low=0)
        check_min_ndim(group["min_ndim"])

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        if isinstance(param_group, dict):  # otherwise torch says what is wrong
            param_group.update(_plain_options(param_group))  # the same dictionary, as in torch
            self.check(self.defaults | param_group)
        super().add_param_group(param_group)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """What ``load_state_dict`` ends with: groups of another optimizer are refused before that
        changes anything.
        """
        expected = (state.get("defaults") or self.defaults).keys()
        expected = expected - {"differentiable"}  # which torch adds when a state is loaded
        for group in state["param_groups"]:
            if missing := expected - group.keys():
                raise ValueError(
                    f"this is not a state of {type(self).__name__}: its parameter groups have no "
                    f"{', '.join(sorted(missing))}."
                )
            group.update(_plain_options(group))
            self.check(group)
        super().__setstate__(state)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As torch's, which would round what is kept to the dtype of a 16-bit parameter."""
        given: dict[str, Any] = {}

        def look(_: Optimizer, loaded: dict[str, Any]) -> None:
            given.update(loaded)  # as every other hook has left it

        def widen(_: Optimizer) -> None:
            ids = chain.from_iterable(group["params"] for group in given["param_groups"])
            params = chain.from_iterable(group["params"] for group in self.param_groups)
            for i, p in zip(ids, params, strict=True):
                for name, value in given["state"].get(i, {}).items():
                    if name != "step" and isinstance(value, Tensor):
                        self.state[p][name] = value.to(p.device, working_dtype(p))

        hooks = (
            self.register_load_state_dict_pre_hook(look),
            self.register_load_state_dict_post_hook(widen, prepend=True),
        )
        try:
            super().load_state_dict(state_dict)
        finally:
            for hook in hooks:
                hook.remove()

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """One step. A closure reevaluates the model first; its loss is returned."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:  # all of them before anything is changed
            for p in group["params"]:
                if p.grad is not None:
                    check_gradient(p.grad, type(self).__name__)
        for group in self.param_groups:
            params, grads = [], []
            state = tuple([] for _ in self.state_names(group))
            self._init_group(group, params, grads, *state)
            for layers in _batches(params, grads, state, group["min_ndim"]):
                if group["maximize"]:
                    layers = layers._replace(grads=list(torch._foreach_neg(layers.grads)))
                self.update(layers, group)
        return loss

    # The name, and lists that are filled, are the form that torch.compile knows to run eagerly.
    def _init_group(
        self, group: dict[str, Any], params: list[Tensor], grads: list[Tensor], *state: list[Tensor]
    ) -> None:
        names = self.state_names(group)
        for p in group["params"]:
            if p.grad is None:
                continue
            params.append(p)
            grads.append(p.grad)
            kept = self.state[p]
            for name, tensors in zip(names, state, strict=True):
                if name not in kept:
                    kept[name] = (
                        torch.zeros((), dtype=torch.float32, device=p.device)
                        if name == "step"
                        else torch.zeros_like(
                            p, dtype=working_dtype(p), memory_format=torch.preserve_format
                        )
                    )
                tensors.append(kept[name])


def _batches(
    params: list[Tensor], grads: list[Tensor], state: tuple[list[Tensor], ...], min_ndim: int
) -> Iterator[Layers]:
    batches: dict[tuple[torch.device, torch.dtype, bool], Layers] = {}
    for i, p in enumerate(params):
        key = (p.device, p.dtype, p.ndim >= min_ndim)
        if key not in batches:
            batches[key] = Layers([], [], tuple([] for _ in state), key[2])
        layers = batches[key]
        layers.params.append(p)
        layers.grads.append(grads[i])
        for mine, all_of_them in zip(layers.state, state, strict=True):
            mine.append(all_of_them[i])
    yield from batches.values()


def _plain_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options with Python's own numbers; lists of parameters and names are left out."""
    return {
        name: type(value)(map(plain, value)) if type(value) in (tuple, list) else plain(value)
        for name, value in options.items()
        if name not in ("params", "param_names")
    }


def trust_ratio(numerator: Tensor, denominator: Tensor) -> Tensor:
    """numerator/denominator, and 1 where either is zero. NaN stays NaN."""
    ones = torch.ones_like(numerator)
    return torch.where((numerator == 0) | (denominator == 0), ones, numerator / denominator)


def check_gradient(grad: Tensor, who: str) -> None:
    if grad.layout != torch.strided:
        raise RuntimeError(
            f"{who} needs dense gradients; got one with layout {grad.layout} and shape "
            f"{tuple(grad.shape)}: make the layer with sparse=False, or give its parameters to "
            "another optimizer."
        )
    if grad.is_complex():
        raise RuntimeError(
            f"{who} needs real gradients; got {grad.dtype} of shape {tuple(grad.shape)}: keep the "
            "parameter as torch.view_as_real(…), or give it to another optimizer."
        )


def check_rate(lr: float | Tensor) -> None:
    if isinstance(lr, Tensor) and lr.numel() != 1:
        raise ValueError(f"lr as a tensor must have one element; got shape {tuple(lr.shape)}.")
    check_number("lr", float(lr) if isinstance(lr, Tensor) else lr, low=0)


def check_number(name: str, value: object, *, low: float, below: float = math.inf) -> None:
    value = plain(value)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not low <= value < below:  # type: ignore[operator]
        upper = f" and less than {below}" if below < math.inf else ""
        raise ValueError(f"{name} must be a finite number, at least {low}{upper}; got {value!r}.")


def check_min_ndim(min_ndim: object) -> None:
    min_ndim = plain(min_ndim)
    if not isinstance(min_ndim, int) or isinstance(min_ndim, bool) or min_ndim < 0:
        raise ValueError(
            "min_ndim must be an integer, the number of dimensions from which on a parameter "
            f"counts as a layer (0: all of them); got {min_ndim!r}."
        )
