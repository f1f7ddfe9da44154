"""Networks by name, with the experiments they come from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from fnmatch import fnmatchcase
from inspect import Parameter, signature
from types import MappingProxyType
from typing import Any, NamedTuple, get_args, get_type_hints

from torch import nn

from .cnn import SmallCNN
from .mlp import MLP
from .natural import NaturalMLP
from .parts import Network
from .preact import PreActResNet, WideResNet
from .resnet import CifarResNet, ResNet
from .splain import SPlain
from .vgg import VGG

MNIST, FACE, CIFAR, IMAGENET = (1, 28, 28), (1, 32, 32), (3, 32, 32), (3, 224, 224)


class Entry(NamedTuple):
    """A network under a name."""

    network: type[Network]
    source: str
    input_shape: tuple[int, int, int] = CIFAR
    fixed: Mapping[str, Any] = MappingProxyType({})  # the options that the name stands for


_RESNET = "IterNorm Tables 2 and 3, DBN Table 3, EquiNorm Figure 4d"
_WRN = "IterNorm Table 1, DBN Table 2"

#: Name → network. A family's own name leaves its sizes open; longer names fix them.
MODELS: dict[str, Entry] = {
    "mlp": Entry(MLP, "IterNorm Figure 3, DBN Figure 2", MNIST),
    "mlp_yale_b": Entry(
        MLP,
        "DBN Figure 3",
        FACE,
        {"in_features": 1024, "num_classes": 38, "hidden": (128, 64, 48, 48)},
    ),
    "mlp_pie": Entry(
        MLP, "DBN Figure 4", FACE, {"in_features": 1024, "num_classes": 68, "hidden": (128,) * 5}
    ),
    "mlp_natural": Entry(NaturalMLP, "DBN Figures 3 and 4, their NNN", FACE),
    "small_cnn": Entry(SmallCNN, "no paper"),
    "vgg": Entry(VGG, "Simonyan & Zisserman, ICLR 2015"),
    "vgg_a": Entry(VGG, "DBN Figure 5", fixed={"configuration": "A"}),
    "vgg_e": Entry(VGG, "IterNorm Figures 6 and 7", fixed={"configuration": "E"}),
    "splain": Entry(SPlain, "DBN Figure 6"),
    **{
        f"splain{depth}": Entry(SPlain, "DBN Figure 6", fixed={"depth": depth})
        for depth in (20, 32, 44)
    },
    "cifar_resnet": Entry(CifarResNet, "He et al., CVPR 2016"),
    **{
        f"cifar_resnet{depth}": Entry(CifarResNet, source, fixed={"depth": depth})
        for depth, source in (
            *((depth, "DBN Table 1") for depth in (20, 32, 44, 56)),
            (110, "He et al., CVPR 2016, Table 6"),
        )
    },
    "preact_resnet": Entry(PreActResNet, "He et al., ECCV 2016"),
    "preact_resnet152": Entry(PreActResNet, "EquiNorm Figure 4a and b", fixed={"depth": 152}),
    "wrn": Entry(WideResNet, "Zagoruyko & Komodakis, BMVC 2016"),
    "wrn_28_10": Entry(WideResNet, _WRN, fixed={"depth": 28, "widen": 10}),
    "wrn_40_10": Entry(WideResNet, _WRN, fixed={"depth": 40, "widen": 10}),
    "equinorm_wrn": Entry(
        WideResNet,
        "EquiNorm Figures 2, 3 and 4c",
        fixed={"depth": 22, "widen": 6, "stem_planes": 96},
    ),
    "resnet": Entry(ResNet, "He et al., CVPR 2016", IMAGENET),
    **{
        f"resnet{depth}": Entry(ResNet, _RESNET, IMAGENET, {"depth": depth})
        for depth in (18, 34, 50, 101)
    },
}


def create_model(name: str, **options: Any) -> Network:
    """A network by name, at the size its name says; ``width`` makes it narrower.

    >>> model = create_model("cifar_resnet20", norm="iternorm", width=0.5)
    >>> model.layer1[0].norm1
    IterNorm(8, group_size=64, num_iters=5, affine=True, eps=1e-05, momentum=0.1)
    """
    entry = find_model(name)
    known = options_of(entry.network)
    for option in options:
        if option in entry.fixed:
            raise ValueError(
                f"{name} has {option}={entry.fixed[option]!r} by its name; leave {option} out, or "
                f"take {_family(entry)}."
            )
        if option not in known:
            raise ValueError(f"{name} has no option {option!r}; {_hint(option, known)}")
    return entry.network(**entry.fixed, **options)


def find_model(name: str) -> Entry:
    """What stands behind a name, capitals or not."""
    entry = MODELS.get(name.lower()) if isinstance(name, str) else None
    if entry is None:
        raise ValueError(f"there is no network called {name!r}; {_hint(str(name).lower(), MODELS)}")
    return entry


def list_models(pattern: str = "*") -> list[str]:
    """The names that match a shell pattern.

    >>> list_models("wrn*")
    ['wrn', 'wrn_28_10', 'wrn_40_10']
    """
    return [name for name in MODELS if fnmatchcase(name, pattern.lower())]


def options_of(network: type[nn.Module]) -> list[str]:
    """The keywords a network takes: its own arguments, and those it passes on.

    >>> options_of(SPlain)[:4]
    ['depth', 'planes', 'num_classes', 'in_channels']
    """
    names: list[str] = []
    for name, parameter in signature(network).parameters.items():
        if parameter.kind is Parameter.VAR_KEYWORD:  # **options: Unpack[…Options]
            (passed_on,) = get_args(get_type_hints(network.__init__)[name])
            names += get_type_hints(passed_on)
        else:
            names.append(name)
    return list(dict.fromkeys(names))


def _family(entry: Entry) -> str:
    """The name under which the same network leaves its sizes open."""
    return next(
        name for name, other in MODELS.items() if other.network is entry.network and not other.fixed
    )


def _hint(word: str, among: Iterable[str]) -> str:
    near = get_close_matches(word, among, n=1)
    return f"did you mean {near[0]!r}?" if near else f"there are {', '.join(among)}."
