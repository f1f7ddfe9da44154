"""Which norms of a model are meant."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase

from torch import nn

from .report import Refused, short
from .sources import looks_like_a_norm, read
from .tree import Hung, check_changeable, modules_of, nearest

One = str | type[nn.Module] | Callable[[str, nn.Module], bool]
Where = One | Sequence[One]


def norms_of(model: nn.Module) -> list[Hung]:
    """The norms of a model that can be changed."""
    check_changeable(model)
    if looks_like_a_norm(model):
        raise ValueError(
            f"the model is itself a norm, {short(model)}, which nothing holds that could hold "
            "another: wrap it first, torch.nn.Sequential(norm)."
        )
    return [hung for hung in modules_of(model) if looks_like_a_norm(hung.module)]


def select(norms: list[Hung], where: Where) -> list[Hung]:
    """The norms that ``where`` selects, or any of several."""
    if isinstance(where, list | tuple):
        chosen = {hung.module for one in where for hung in select(norms, one)}
        return [hung for hung in norms if hung.module in chosen]
    if isinstance(where, type):
        return [hung for hung in norms if isinstance(hung.module, where)]
    if callable(where):
        return [hung for hung in norms if where(hung.name, hung.module)]
    if not isinstance(where, str):
        raise TypeError(
            "where must be 'all', 'first', a pattern of names, a class, a function of name and "
            f"module, or a list of such; got {where!r}."
        )
    if where == "all":
        return norms
    if where == "first":
        return next(([hung] for hung in norms if _readable(hung.module)), [])
    found = [hung for hung in norms if any(fnmatchcase(name, where) for name in hung.names)]
    if not found:
        names = [name for hung in norms for name in hung.names]
        raise ValueError(
            f"no norm has a name that matches where={where!r}; {nearest(where, names)}."
        )
    return found


def _readable(module: nn.Module) -> bool:
    try:
        read(module)
    except Refused:
        return False
    return True
