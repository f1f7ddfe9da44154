"""Roots: Σ → W with W·Σ·Wᵀ = I (or, for ``newton``, as near as its T steps come), each with its
exact derivative.

A root is called in two ways. ``root(sigma)`` is differentiable to any order, in reverse and forward
mode, and under ``vmap``: the reference uses it. ``root.forward`` and ``root.backward`` are the same
mathematics without a graph, for the explicit path, which keeps of the forward pass one tensor, the
memo.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from . import own
from .cholesky import Cholesky
from .eigen import PCA, ZCA, power_roots
from .newton import Newton
from .own import OwnRoot, own_root
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


__all__ = [
    "DEFAULT_STEPS",
    "METHODS",
    "PCA",
    "ZCA",
    "Cholesky",
    "Newton",
    "OwnRoot",
    "Polar",
    "Recurrence",
    "Root",
    "make_root",
    "methods",
    "own_root",
    "power_roots",
    "register_root",
]

METHODS = ("newton", "polar", "zca", "pca", "cholesky")

Function = TypeVar("Function", bound=Callable[[Tensor], Tensor])


def methods() -> tuple[str, ...]:
    """Return the names of all roots, registered ones last."""
    return (*METHODS, *own.registered_names())


def register_root(name: str, function: Function) -> Function:
    """Give a root of your own a name, by which ``operation.whiten(name)``, ``method=name`` of
    layers and ``"dbn:method=name"`` find it.

    ``function`` takes (b, d, d) covariances, ε on their diagonals, and returns W of that shape,
    differentiably: autograd differentiates it. An object that has all of ``isonorm.roots.Root``
    brings its own derivative, and takes the explicit path.

    >>> import isonorm
    >>> def shrink(sigma):  # Cholesky whitening of ½(Σ + diag Σ)
    ...     diagonal = torch.diag_embed(sigma.diagonal(dim1=-2, dim2=-1))
    ...     return torch.linalg.inv(torch.linalg.cholesky(0.5 * (sigma + diagonal)))
    >>> _ = register_root("shrunk", shrink)
    >>> isonorm.DBN(8, method="shrunk")
    DBN(8, group_size=16, method='shrunk', affine=True, eps=1e-05, momentum=0.1)

    A name may be registered again, as a notebook does that runs a cell twice; the names of
    isonorm's own roots are taken.
    """
    if not isinstance(name, str) or not name.isidentifier():
        raise ValueError(
            f"a root's name must be a string of letters, digits and underscores; got {name!r}."
        )
    if name in METHODS:
        raise ValueError(f"{name!r} is already the name of an isonorm root: choose another.")
    own.keep(name, function)
    return function


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
    return exact[method]() if method in exact else own.registered_root(method)
