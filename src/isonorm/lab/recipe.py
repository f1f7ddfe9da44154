"""The words in which a paper's experiment is written down: Recipe, Configuration, Search, Claim."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from itertools import product
from typing import Any, Generic, Literal, Protocol, Self, TypeVar

from torch import nn

from .convolutions import CONVOLUTIONS, LINEARS
from .models import create_model
from .models.registry import find_model, options_of
from .plan import Plan

#: What stands for several seeds: their mean, or as EquiNorm Section 6.5 argues, their median.
Spread = Literal["mean", "median"]


@dataclass(frozen=True)
class Search:
    """A grid, from which the first seed's results choose one point: of fields of the plan, or of
    options of the network.

    By the training loss of the last epoch, or by the error on ``validation`` training images held
    out for it; the other seeds then train with what was chosen.
    """

    grid: Mapping[str, tuple[Any, ...]]
    validation: int = 0

    @property
    def by(self) -> str:
        return "test_error" if self.validation else "train_loss"

    def points(self) -> list[dict[str, Any]]:
        """
        >>> Search({"lr": (0.1, 1)}).points()
        [{'lr': 0.1}, {'lr': 1}]
        """
        return [
            dict(zip(self.grid, values, strict=True)) for values in product(*self.grid.values())
        ]

    def label(self, point: int) -> str:
        """
        >>> Search({"lr": (0.1, 1), "momentum": (0, 0.9)}).label(3)
        'lr=1, momentum=0.9'
        """
        return ", ".join(f"{key}={value}" for key, value in self.points()[point].items())


@dataclass(frozen=True)
class Configuration:
    """One line of a figure or one number of a table: which network is trained how."""

    name: str  # as the paper's legend has it
    model: str  # of lab.models
    plan: Plan
    norm: str = "plain"
    conv: str = "plain"
    options: Mapping[str, Any] = field(default_factory=dict)  # of the network
    search: Search | None = None
    paper: Mapping[str, float] = field(default_factory=dict)  # measure → the paper's number

    def describe(self) -> dict[str, str]:
        """In words, for readers: the network, its normalization and its training."""
        options = ", ".join(f"{key}={value}" for key, value in self.options.items())
        searched = f"; searched: {dict(self.search.grid)}" if self.search else ""
        return {
            "configuration": self.name,
            "network": f"{self.model} {options}".strip(),
            "norm": self.norm if self.conv == "plain" else self.conv,
            "training": self.plan.describe() + searched,
        }

    def at(self, point: int | None) -> Configuration:
        """With the values of a point of its grid, in the plan or in the network's options."""
        if self.search is None or point is None:
            return self
        values = self.search.points()[point]
        of_plan = {key: values[key] for key in values if key in Plan.__dataclass_fields__}
        others = {key: values[key] for key in values if key not in of_plan}
        return replace(self, plan=replace(self.plan, **of_plan), options={**self.options, **others})

    def build(self, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
        """The network for images of this shape."""
        entry = find_model(self.model)
        channels, height, width = input_shape
        asked: dict[str, Any] = {
            "num_classes": num_classes,
            "in_features": channels * height * width,
            "in_channels": channels,
        }
        if self.conv != "plain":
            asked |= {"conv": CONVOLUTIONS[self.conv], "linear": LINEARS[self.conv]}
        known = options_of(entry.network)
        given = {key: asked[key] for key in asked if key in known and key not in entry.fixed}
        return create_model(self.model, norm=self.norm, **given, **self.options)


@dataclass(frozen=True)
class Claim:
    """That a number is lower than another, or less than a ``margin`` higher, in the paper's words.

    Both are configurations, or one is a bound. ``measure`` is one of ``claims.MEASURES``; of all of
    them, less is better. The paper's numbers, where it gives any, are of the configurations.
    """

    text: str
    lower: str | float
    higher: str | float
    measure: str = "test_error"
    margin: float = 0.0


@dataclass(frozen=True)
class Quick:
    """How an experiment is shrunk to seconds: what it computes stays the same, the sizes do not."""

    width: float = 0.125
    depth: int | Mapping[str, int] | None = None  # of all networks, or by their names
    epochs: int = 2
    batch_size: int = 16
    train_images: int = 48
    test_images: int = 32
    image_size: int = 32  # of images in folders


class Part(Protocol):
    """What a figure is made of: has a name, and perhaps the paper's numbers by measure."""

    @property
    def name(self) -> str: ...
    @property
    def paper(self) -> Mapping[str, float]: ...


PartT = TypeVar("PartT", bound=Part)


@dataclass(frozen=True)
class Reproduction(Generic[PartT]):
    """A figure, a table or a section of a paper, and what the paper says of it."""

    paper: str  # "iternorm2019"
    figure: str  # "fig3"
    title: str
    configurations: tuple[PartT, ...]
    claims: tuple[Claim, ...]
    choices: tuple[str, ...]  # where the paper is silent, and what was chosen
    #: When it began to measure something else under the same definition (ISO 8601, with its zone);
    #: runs that were started before are of another recipe.
    revised: str = field(default="", kw_only=True)

    def __post_init__(self) -> None:
        names = [configuration.name for configuration in self.configurations]
        if len(set(names)) < len(names):
            raise ValueError(f"{self.name} has two configurations of one name.")
        for claim in self.claims:
            for side in (claim.lower, claim.higher):
                if isinstance(side, str) and side not in names:
                    raise ValueError(f"{self.name} claims something about {side!r}, not there.")

    @property
    def name(self) -> str:
        return f"{self.paper}-{self.figure}"

    def definition(self) -> dict[str, str]:
        """What is trained or measured, in words that change when it does."""
        return {configuration.name: repr(configuration) for configuration in self.configurations}

    def __getitem__(self, name: str) -> PartT:
        for configuration in self.configurations:
            if configuration.name == name:
                return configuration
        raise KeyError(f"{self.name} has no configuration {name!r}: there are {self._names}.")

    @property
    def _names(self) -> str:
        return "; ".join(configuration.name for configuration in self.configurations)

    def only(self, patterns: Sequence[str]) -> Self:
        """The configurations whose names match one of these shell patterns, all without any; and
        the claims about them.
        """
        if not patterns:
            return self
        kept = tuple(
            c
            for c in self.configurations
            if any(fnmatchcase(c.name, pattern) for pattern in patterns)
        )
        if not kept:
            raise ValueError(
                f"no configuration of {self.name} matches {' or '.join(map(repr, patterns)):.200}: "
                f"there are {self._names}."
            )
        gone = {c.name for c in self.configurations} - {c.name for c in kept}
        claims = tuple(c for c in self.claims if not {c.lower, c.higher} & gone)
        return replace(self, configurations=kept, claims=claims)


@dataclass(frozen=True)
class Recipe(Reproduction[Configuration]):
    """A figure or a table of trainings, ready to be run."""

    data: str  # a name that "isonorm data" lists; "noise-…" is made where it is needed
    seeds: int = 1  # as many as the paper's
    spread: Spread = "mean"
    threshold: float | None = None  # a test accuracy: how many epochs it takes is told
    quick: Quick = field(default_factory=Quick)

    def __post_init__(self) -> None:
        from .claims import MEASURES  # which imports this module: claims are of recipes

        super().__post_init__()
        asked = {claim.measure for claim in self.claims}
        asked |= {key for configuration in self.configurations for key in configuration.paper}
        if unknown := sorted(asked - set(MEASURES)):
            raise ValueError(
                f"{self.name} speaks of {', '.join(unknown)}, which no training measures: choose "
                f"from {', '.join(MEASURES)}."
            )

    @property
    def trainings(self) -> int:
        """How many trainings one run with the paper's seeds takes."""
        return sum(trainings(configuration, self.seeds) for configuration in self.configurations)

    def shrunk(self) -> Recipe:
        """The recipe at quick scale."""
        return replace(
            self, configurations=tuple(_shrunk(c, self.quick) for c in self.configurations)
        )


def trainings(configuration: Configuration, seeds: int) -> int:
    """How many trainings a configuration takes with this many seeds."""
    search = configuration.search
    if search is None:
        return seeds
    return len(search.points()) + seeds - (0 if search.validation else 1)


def _shrunk(configuration: Configuration, quick: Quick) -> Configuration:
    plan, search = configuration.plan, configuration.search
    batch_size = plan.batch_size and min(plan.batch_size, quick.batch_size)
    if search is not None:  # the ends of each row of the grid
        ends = {key: tuple(dict.fromkeys((row[0], row[-1]))) for key, row in search.grid.items()}
        validation = quick.train_images // 4 if search.validation else 0
        search = replace(search, grid=ends, validation=validation)
    known = options_of(find_model(configuration.model).network)
    options = {**configuration.options, "width": quick.width}
    if "depth" in known and quick.depth is not None:
        depth = quick.depth
        options["depth"] = depth if isinstance(depth, int) else depth[configuration.model]
    return replace(
        configuration,
        options=options,
        search=search,
        plan=replace(plan.shortened(quick.epochs), batch_size=batch_size),
    )
