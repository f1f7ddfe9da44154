"""Normalizations by name, with the papers they come from."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from difflib import get_close_matches
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, NamedTuple, TypeVar

from torch import nn

from . import layers
from .checks import check_keywords, keywords_of

Layer = TypeVar("Layer", bound=nn.Module)


class Entry(NamedTuple):
    layer: type[nn.Module]
    paper: str


_ENTRIES = (
    Entry(
        layers.IterNorm,
        "Huang et al., Iterative Normalization: Beyond Standardization towards Efficient "
        "Whitening, "
        "CVPR 2019",
    ),
    Entry(layers.DBN, "Huang et al., Decorrelated Batch Normalization, CVPR 2018"),
    Entry(layers.BatchNorm, "Ioffe & Szegedy, Batch Normalization, ICML 2015"),
    Entry(
        layers.MeanOnlyBatchNorm,
        "Salimans & Kingma, Weight Normalization, NeurIPS 2016",
    ),
    Entry(layers.LayerNorm, "Ba, Kiros & Hinton, Layer Normalization, 2016"),
    Entry(layers.InstanceNorm, "Ulyanov, Vedaldi & Lempitsky, Instance Normalization, 2016"),
    Entry(layers.GroupNorm, "Wu & He, Group Normalization, ECCV 2018"),
    Entry(layers.BatchGroupNorm, "Zhou et al., Batch Group Normalization, 2020"),
    Entry(layers.PositionalNorm, "Li et al., Positional Normalization, NeurIPS 2019"),
    Entry(
        layers.GroupWhitening,
        "Huang et al., Group Whitening: Balancing Learning Efficiency and Representational "
        "Capacity, CVPR 2021",
    ),
    Entry(
        layers.InstanceWhitening,
        "Pan et al., Switchable Whitening for Deep Representation Learning, ICCV 2019",
    ),
)

#: Name → layer and paper; names are the class names in lower case.
REGISTRY: dict[str, Entry] = {entry.layer.__name__.lower(): entry for entry in _ENTRIES}


#: What the literature calls some of them, for short; ``create_norm`` knows these, too.
ALIASES = {"bn": "batchnorm", "ln": "layernorm", "gn": "groupnorm"}


#: Words of options, beside numbers and names.
_WORDS = {"None": None, "True": True, "False": False}


def create_norm(name: str, num_features: int, **options: Any) -> nn.Module:
    """A normalization layer by name, which may have options behind it.

    >>> create_norm("iternorm", 64, num_iters=7)
    IterNorm(64, group_size=64, num_iters=7, affine=True, eps=1e-05, momentum=0.1)
    >>> create_norm("dbn:group_size=32:method=cholesky", 64)
    DBN(64, group_size=32, method='cholesky', affine=True, eps=1e-05, momentum=0.1)
    """
    return norm_maker(name, options)(num_features)


def norm_maker(name: str, options: dict[str, Any]) -> Callable[[int], nn.Module]:
    """Return what makes the layers of a name and its options from their numbers of channels."""
    layer, named = _parsed(name)
    if twice := sorted(named.keys() & options.keys()):
        raise TypeError(f"{twice[0]} is given twice, in {name!r} and as a keyword: give it once.")
    return layer_maker(layer, {**named, **options})


def layer_maker(layer: type[nn.Module], options: dict[str, Any]) -> Callable[[int], nn.Module]:
    """Return what makes the layers of a class; refuse options that the class does not have."""
    if options and (known := keywords_of(layer)):
        check_keywords(layer.__name__, options, known)
    return partial(layer, **options)


def _parsed(name: str) -> tuple[type[nn.Module], dict[str, Any]]:
    """Return the layer and the options of "dbn:group_size=32"."""
    given, *assignments = (part.strip() for part in str(name).split(":"))
    layer = find(given if isinstance(name, str) else name).layer
    return layer, read_options(assignments, str(name))


def read_options(assignments: Iterable[str], spec: str) -> dict[str, Any]:
    """Return the options behind a name, from "group_size=32" and the like."""
    options: dict[str, Any] = {}
    for assignment in assignments:
        key, equals, text = (part.strip() for part in assignment.partition("="))
        if not (key.isidentifier() and equals and text) or key in options:
            raise ValueError(
                "options are written name:option=value, each once, as in dbn:group_size=32; got "
                f"{spec!r}."
            )
        options[key] = _value(text)
    return options


def _value(text: str) -> int | float | bool | str | None:
    """Return the number or the word that an option's text means.

    >>> [_value(text) for text in ("32", "1e-3", "None", "polar")]
    [32, 0.001, None, 'polar']
    """
    if text in _WORDS:
        return _WORDS[text]
    for number in (int, float):
        with suppress(ValueError):
            return number(text)
    return text


def register_norm(layer: type[Layer], *, paper: str = "") -> type[Layer]:
    """Gives a layer of your own a name, that of its class in lower case, by which ``create_norm``
    and ``convert`` find it. They call the class with the number of channels.

    >>> import isonorm
    >>> @register_norm
    ... class CenterNorm(isonorm.Normalize):
    ...     def __init__(self, num_features, **options):
    ...         super().__init__(num_features, area="batch", operation="center", **options)
    >>> type(create_norm("centernorm", 64)).__name__
    'CenterNorm'
    >>> _ = REGISTRY.pop("centernorm")  # forgotten again

    A class may be registered again, as a notebook does that runs a cell twice; the names of
    isonorm's own layers are taken.
    """
    if not (isinstance(layer, type) and issubclass(layer, nn.Module)):
        raise TypeError(f"register_norm takes a subclass of torch.nn.Module; got {layer!r}.")
    name = layer.__name__.lower()
    if any(name == entry.layer.__name__.lower() for entry in _ENTRIES):
        raise ValueError(f"{name!r} is already the name of an isonorm layer: rename the class.")
    REGISTRY[name] = Entry(layer, paper)
    return layer


def has(layer: type[nn.Module]) -> bool:
    """Whether a class has a name here."""
    return any(entry.layer is layer for entry in REGISTRY.values())


def find(name: str) -> Entry:
    """The entry of that name, however it is capitalized."""
    asked = str(name).lower()
    entry = REGISTRY.get(asked) or REGISTRY.get(ALIASES.get(asked, asked))
    if entry is None:
        near = get_close_matches(asked, REGISTRY, n=1)
        hint = f"there are {', '.join(REGISTRY)}."
        if near:
            hint = f"did you mean {near[0]!r}? isonorm.list_norms() lists all."
        raise ValueError(f"there is no normalization called {name!r}; {hint}")
    return entry


def list_norms(pattern: str = "*") -> list[str]:
    """The names that match a shell pattern.

    >>> list_norms("*whiten*")
    ['groupwhitening', 'instancewhitening']
    """
    if not isinstance(pattern, str):
        raise TypeError(f"pattern must be a string, such as '*whiten*'; got {pattern!r}.")
    return [name for name in REGISTRY if fnmatchcase(name, pattern.lower())]
