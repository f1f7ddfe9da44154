"""Which implementation runs, and why: the one place that chooses.

``reference``  plain, differentiable torch, written like the papers; right under every transform
``torch``      the explicit forward and backward in plain torch, on any device
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch.autograd import forward_ad

from ..operation import Operation

BACKENDS = ("auto", "reference", "torch", "triton")


class Choice(NamedTuple):
    backend: str
    reason: str


def _checked(name: str, source: str) -> str:
    if name not in BACKENDS:
        raise ValueError(f"{source} must be one of {', '.join(BACKENDS)}; got {name!r}.")
    if name == "triton":
        raise RuntimeError(
            f"{source}='triton' was asked for, but this release has no Triton kernels; use 'auto'."
        )
    return name


_requested = _checked(os.environ.get("ISONORM_BACKEND", "auto"), "ISONORM_BACKEND")


@contextmanager
def backend(name: str) -> Iterator[None]:
    """Runs the block with one implementation: "auto", "reference", "torch" or "triton".

    An implementation that was asked for by name runs, or the call raises with the reason.

    >>> from isonorm.operation import whiten
    >>> with backend("reference"):
    ...     choose(whiten())
    Choice(backend='reference', reason='asked for')
    """
    global _requested
    before, _requested = _requested, _checked(name, "backend")
    try:
        yield
    finally:
        _requested = before


def transforms_active() -> bool:
    """Whether a ``torch.func`` transform (vmap, grad, jvp, …) is running; the compiler can trace
    this question.
    """
    return torch._C._are_functorch_transforms_active()


def choose(operation: Operation) -> Choice:
    """The implementation for a training pass, and the reason for it."""
    if _requested == "reference":
        return Choice("reference", "asked for")
    if transforms_active():
        return Choice(
            "reference", "a torch.func transform is active, which the explicit path has no rule for"
        )
    if forward_ad._current_level >= 0:
        return Choice(
            "reference",
            "forward-mode differentiation is active, which the explicit path has no rule for",
        )
    if not operation.is_quadratic:
        return Choice("reference", f"{operation!r} is not made of means and covariances")
    return Choice(
        "torch", "asked for" if _requested == "torch" else "the explicit path in plain torch"
    )
