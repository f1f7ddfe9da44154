"""Φ, the operation: what is done to each d × m matrix of an area.

Each operation is three steps: statistics (count, μ, Σ) → transform (W) → apply, W(x − μ).
``whiten`` has a d × d transform; the others treat features one by one, so that each feature is a
problem of its own with d = 1, Σ its variance and W a single scale.

Index legend: b problems, d features, m samples.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf, log, pi, sqrt
from typing import Any

import torch
from torch import Tensor

from .roots import OwnRoot, Root, make_root, methods, own_root
from .scalars import plain

__all__ = ["Operation", "center", "scale", "standardize", "whiten"]


@dataclass(frozen=True)
class Operation:
    """What to do with a d × m matrix. Build it with the functions of this module.

    ``centers``: whether μ is subtracted; ``scales``: whether W differs from the identity; ``norm``:
    the p of the spread that ``standardize`` divides by; ``method`` and ``num_iters``: the root of
    ``whiten``, None elsewhere (and ``root``, made from them).

    A ``root`` of your own makes it a whitening by that root: a differentiable function Σ → W, or
    an object with all of ``isonorm.roots.Root``. ``isonorm.register_root`` gives one a name.

    >>> Operation("mahalanobis", root=lambda sigma: torch.linalg.inv(sigma))
    mahalanobis(root=<lambda>)
    """

    name: str
    centers: bool = True
    scales: bool = True
    norm: float = 2.0
    method: str | None = None
    num_iters: int | None = None
    #: A root or a function where it is given, ``Root | None`` from then on.
    root: Any = field(default=None, compare=False, repr=False)
    #: The root where it is not isonorm's: the others follow from ``method`` and ``num_iters``.
    own: OwnRoot | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        root: Root | None = None
        if self.method is not None:
            root = make_root(self.method, self.num_iters)
        if self.root is not None and type(self.root) is not type(root):
            self._check_own()
            root = own_root(self.method or self.name, self.root)
        object.__setattr__(self, "root", root)
        object.__setattr__(self, "own", root if isinstance(root, OwnRoot) else None)

    def _check_own(self) -> None:
        """Refuse what contradicts a root; a variant of a method's root may go by its name."""
        other = self.method not in (None, getattr(self.root, "name", None))
        if other or not self.scales or self.norm != 2.0:
            raise ValueError(
                "an operation with a root of its own whitens by that root alone: leave scales, "
                "norm, method and num_iters out."
            )

    @property
    def is_matrix(self) -> bool:
        """Whether features are treated together, by a d × d matrix."""
        return self.root is not None

    @property
    def is_quadratic(self) -> bool:
        """Whether the transform depends on x through μ and Σ alone: those merge across tiles,
        chunks and ranks.
        """
        return self.scales and self.norm == 2.0

    def spread(self, deviations: Tensor, axes: tuple[int, ...]) -> Tensor:
        """σ², estimated from the p-norm of the deviations along ``axes``, on the scale of a
        standard deviation.

        The constants are those of Hoffer et al., "Norm matters" (2018). For p = 1 they make it the
        standard deviation of Gaussian samples, E|x| = σ√(2/π). For p = ∞ they are a closed form for
        the expected maximum of m samples, and coarse: at m = 1000 it comes out 43 % above σ.
        """
        if self.norm == 1:
            return (deviations.abs().mean(axes, keepdim=True) * sqrt(pi / 2)).square()
        if self.norm == inf:
            m = 1
            for axis in axes:
                m *= deviations.shape[axis]
            correction = 0.5 * (1 + sqrt(pi * log(4))) / sqrt(2 * log(max(m, 2)))
            return (deviations.abs().amax(axes, keepdim=True) * correction).square()
        return deviations.square().mean(axes, keepdim=True)

    def transform(self, cov: Tensor, eps: float) -> Tensor:
        """W for (b, d, d) covariances, differentiably. ``eps`` joins the diagonal here:
        ``Statistics.cov`` never contains it.
        """
        if not self.scales:
            return torch.ones_like(cov)
        if self.root is None or (cov.shape[-1] == 1 and self.own is None):
            # At d = 1 each of isonorm's roots is this one: Eq. 4–5 of IterNorm divide Σ by itself
            # before the iteration.
            return (cov + eps).rsqrt()
        return self.root.on(cov.device)(add_eps(cov, eps))

    def __repr__(self) -> str:
        if self.own is not None and self.method is None:
            function = self.own.function
            return f"{self.name}(root={getattr(function, '__name__', type(function).__name__)})"
        if self.name == "whiten":
            steps = "" if self.num_iters is None else f", num_iters={self.num_iters}"
            return f"whiten({self.method!r}{steps})"
        return f"standardize(p={self.norm:g})" if self.name == "standardize" else f"{self.name}()"


def add_eps(cov: Tensor, eps: float) -> Tensor:
    """Σ + εI."""
    return cov + eps * torch.eye(cov.shape[-1], dtype=cov.dtype, device=cov.device)


def center() -> Operation:
    """x − μ."""
    return Operation("center", scales=False)


def scale() -> Operation:
    """x/√(mean x² + ε): the root mean square, without centering."""
    return Operation("scale", centers=False)


def standardize(p: float = 2.0) -> Operation:
    """(x − μ)/√(σ² + ε), σ from the p-norm of the deviations: p = 2, 1 or infinity.

    >>> standardize(p=1)
    standardize(p=1)
    """
    p = plain(p)
    if isinstance(p, bool) or not isinstance(p, (int, float)) or p not in (1, 2, inf):
        raise ValueError(f"standardize takes p = 1, 2 or math.inf; got p={p!r}.")
    return Operation("standardize", norm=float(p))


def whiten(method: str = "newton", num_iters: int | None = None) -> Operation:
    """W(x − μ), with W·Σ·Wᵀ = I: exactly by zca, pca and cholesky, to working precision by polar
    (``num_iters`` steps, default 8), and as near as T steps come by newton (``num_iters``,
    default 5). Other names are those that ``isonorm.register_root`` has given.

    >>> whiten("newton", 7)
    whiten('newton', num_iters=7)
    """
    if method not in methods():
        raise ValueError(
            f"whiten's method must be one of {', '.join(methods())}; got {method!r}"
            f"{_where_roots_go(method)}."
        )
    num_iters = plain(num_iters)
    if num_iters is not None:
        if method not in ("newton", "polar"):
            raise ValueError(
                f"num_iters belongs to 'newton' and 'polar'; {method!r} does not iterate: leave "
                "it out."
            )
        lowest = 0 if method == "newton" else 1
        if (
            not isinstance(num_iters, int)
            or isinstance(num_iters, bool)
            or not lowest <= num_iters <= 100
        ):
            raise ValueError(
                f"num_iters for {method!r} must be an integer from {lowest} to 100; got "
                f"{num_iters!r}."
            )
    return Operation("whiten", method=method, num_iters=num_iters)


def whiten_fully(method: str, num_iters: int | None = None) -> Operation:
    """``whiten`` by a method that arrives: DBN's choice."""
    if method == "newton":
        raise ValueError(
            "method='newton' is IterNorm: use isonorm.IterNorm or functional.iter_norm."
        )
    if method not in methods():
        full = ", ".join(name for name in methods() if name != "newton")
        raise ValueError(
            f"DBN's method must be one of {full}; got {method!r}{_where_roots_go(method)}."
        )
    return whiten(method, num_iters)


def _where_roots_go(method: object) -> str:
    """Say how a root of one's own is given, where one was given as a method."""
    if not callable(method):
        return ""
    return ": isonorm.register_root(name, function) gives a function a name"


OPERATIONS = {f.__name__: f for f in (center, scale, standardize, whiten)}


def resolve(operation: str | Operation) -> Operation:
    """An operation from its name or from itself."""
    if isinstance(operation, Operation):
        return operation
    if not isinstance(operation, str) or operation not in OPERATIONS:
        raise ValueError(
            f"operation must be one of {', '.join(OPERATIONS)} or an Operation; got {operation!r}."
        )
    return OPERATIONS[operation]()
