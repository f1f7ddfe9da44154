"""Roots: Σ → W with W·Σ·Wᵀ = I (or, for ``newton``, as near as its T steps come), each with its
exact derivative.

A root is called in two ways. ``root(sigma)`` is differentiable to any order, in reverse and forward
mode, and under ``vmap``: the reference uses it. ``root.forward`` and ``root.backward`` are the same
mathematics without a graph, for the explicit path, which keeps of the forward pass one tensor, the
memo.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from .cholesky import Cholesky
from .eigen import PCA, ZCA
from .newton import Newton
from .polar import DEFAULT_STEPS, Polar
from .recurrence import Recurrence


class Root(Protocol):
    name: str

    def on(self, device: torch.device) -> Root:
        """The root that gives this one's result on a device, the fast way there."""
        ...

    def __call__(self, sigma: Tensor) -> Tensor: ...

    def forward(self, sigma: Tensor) -> tuple[Tensor, Tensor]:
        """(W, memo) for (b, d, d) covariances."""
        ...

    def backward(self, dw: Tensor, sigma: Tensor, w: Tensor, memo: Tensor) -> Tensor:
        """dΣ, symmetric, from dW."""
        ...

    def memo_shape(self, b: int, d: int) -> tuple[int, ...]: ...


__all__ = ["DEFAULT_STEPS", "METHODS", "Newton", "Polar", "Recurrence", "Root", "make_root"]

METHODS = ("newton", "polar", "zca", "pca", "cholesky")


def make_root(method: str, num_iters: int | None) -> Root:
    """The root of that name. ``num_iters`` belongs to newton (default 5) and polar.

    >>> make_root("newton", None).num_iters
    5
    """
    if method == "newton":
        return Newton(5 if num_iters is None else num_iters)
    if method == "polar":
        return Polar(DEFAULT_STEPS if num_iters is None else num_iters)
    exact = {"zca": ZCA, "pca": PCA, "cholesky": Cholesky}
    if method not in exact:
        raise ValueError(f"method must be one of {', '.join(METHODS)}; got {method!r}.")
    return exact[method]()
