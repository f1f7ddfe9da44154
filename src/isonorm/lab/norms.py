"""Normalizations as the command line writes them: ``plain``, ``bn``, ``dbn:group_size=32``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from difflib import get_close_matches
from inspect import signature
from typing import Any

from torch import nn

import isonorm
from isonorm import registry

PLAIN = "plain"
ALIASES = {"none": PLAIN, **registry.ALIASES}

#: Makes the normalization of a layer from its width.
NormFactory = Callable[[int], nn.Module]


def valid_names() -> list[str]:
    """Every name of a norm between layers, aliases aside."""
    return [PLAIN, *isonorm.list_norms()]


def canonical(spec: str, others: Iterable[str] = ()) -> str:
    """The one spelling of a specification, which names it in tables, figures and files.

    >>> canonical("BN"), canonical("none"), canonical("dbn:group_size=32")
    ('batchnorm', 'plain', 'dbn:group_size=32')

    ``others`` are names of what is no norm between layers, and takes no options.
    """
    name, options = _parse(spec, others)
    return ":".join([name, *(f"{key}={value}" for key, value in options.items())])


def parse_list(specs: str, others: Iterable[str] = ()) -> tuple[str, ...]:
    """The canonical specifications in a comma-separated list.

    >>> parse_list("plain, bn,iternorm:num_iters=7")
    ('plain', 'batchnorm', 'iternorm:num_iters=7')
    """
    names = [canonical(spec, others) for spec in specs.split(",") if spec.strip()]
    if not names:
        choice = _enumerate([*valid_names(), *others])
        raise ValueError(f"there is no normalization in {specs!r}: name some of {choice}.")
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{name} is named twice in {specs!r}: name each normalization once.")
    return tuple(names)


def norm_factory(norm: str | NormFactory | None) -> NormFactory | None:
    """What makes the norm of a layer, for a specification or a factory; None for no norm at all.

    >>> norm_factory("dbn:group_size=32")(100)
    DBN(100, group_size=32, method='zca', affine=True, eps=1e-05, momentum=0.1)
    """
    if not isinstance(norm, str):
        if norm is not None and not callable(norm):
            raise ValueError(
                "norm must be a name, a factory called with the number of channels, or None; got "
                f"{norm!r}."
            )
        return norm
    name, options = _parse(norm)
    if name == PLAIN:
        return None
    return lambda width: isonorm.create_norm(name, width, **options)


def _parse(spec: str, others: Iterable[str] = ()) -> tuple[str, dict[str, Any]]:
    given, *assignments = (part.strip() for part in spec.split(":"))
    name = ALIASES.get(given.lower(), given.lower())
    names = [*valid_names(), *others]
    if name not in names:
        near = get_close_matches(name, [*names, *ALIASES], n=1)
        hint = f"choose from {_enumerate(names)} (short: {_enumerate(ALIASES)})."
        if near:
            hint = f"did you mean {near[0]!r}? 'isonorm norms' lists all."
        raise ValueError(f"there is no normalization called {given!r}: {hint}")
    if assignments and (name == PLAIN or name in others):
        raise ValueError(f"{name} is not a norm between layers and takes no options; got {spec!r}.")
    options = registry.read_options(assignments, spec)
    for key in options:
        _check_option(name, key)
    return name, options


def _check_option(name: str, key: str) -> None:
    """Refuse an option that the layer of this name does not have."""
    found = signature(registry.REGISTRY[name].layer).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in found.values()):
        return
    known = [option for option in found if option != "num_features"]
    if key not in known:
        near = get_close_matches(key, known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {_enumerate(known)}."
        raise ValueError(f"{name} has no option {key!r}: {hint}")


def _enumerate(names: Iterable[str]) -> str:
    return ", ".join(names)
