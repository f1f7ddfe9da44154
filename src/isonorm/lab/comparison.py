"""A comparison of normalizations: one network, one plan, and as many configurations as norms."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from torch import Tensor

from .convolutions import CONVOLUTIONS
from .data import DataSet
from .devices import check_between, choose, make_fabric
from .ingredients import build
from .models import MLP
from .models.registry import find_model, options_of
from .norms import PLAIN, parse_list
from .plan import Plan
from .recipe import Configuration, Recipe, Spread
from .schedules import CONSTANT, Schedule, Steps, SuperConvergence
from .streams import open_streams

#: What ``--norms`` accepts besides norms between layers: normalizations of the weights.
WEIGHT_NORMS = tuple(name for name in CONVOLUTIONS if name != PLAIN)

#: Schedules for a training of so many epochs.
SCHEDULES: dict[str, Callable[[int], Schedule]] = {
    "constant": lambda epochs: CONSTANT,
    "steps": lambda epochs: Steps((0.5 * epochs, 0.75 * epochs), 0.1),
    "superconvergence": lambda epochs: SuperConvergence().shortened(
        epochs / SuperConvergence().end
    ),
}

_MLP_DEPTH, _MLP_WIDTH = 4, 100
_MOST_DEPTH, _MOST_WIDTH = 1_000, 100_000
_FEW = 16  # images on which a network is tried


@dataclass(frozen=True)
class Comparison:
    """Everything that decides a comparison but the seeds, the machine and the place of the data.

    By default the MLP of IterNorm's Figure 3, at a learning rate from that figure with which the
    plain network learns, too: larger ones show only that it cannot.

    >>> Comparison(norms=("plain", "dbn"), epochs=10).recipe().title
    'digits, 4-layer MLP of width 100, SGD, lr 0.5, batch size 256, 10 epochs'
    """

    norms: tuple[str, ...] = (PLAIN, "batchnorm", "dbn", "iternorm", "equinorm")
    data: str = "digits"
    model: str = "mlp"
    depth: int | None = None  # linear layers of an MLP; None: the network's own
    width: float | None = None  # neurons of an MLP's hidden layers; of other networks, a factor
    epochs: int = 40
    batch_size: int = 256
    lr: float = 0.5
    optimizer: str = "sgd"
    momentum: float = 0.0
    weight_decay: float = 0.0
    schedule: str = "constant"
    threshold: float = 0.95
    spread: Spread = "mean"

    def __post_init__(self) -> None:
        if isinstance(self.norms, str):
            raise ValueError(
                f"norms is a tuple of names, such as ('bn', 'dbn'); got {self.norms!r}."
            )
        object.__setattr__(self, "norms", parse_list(",".join(self.norms), WEIGHT_NORMS))
        choose("schedule", self.schedule, tuple(SCHEDULES))
        choose("spread", self.spread, ("mean", "median"))
        if self.depth is not None:
            check_between("depth", self.depth, 1, _MOST_DEPTH)
        if self.width is not None:
            check_between("width", self.width, 0, _MOST_WIDTH)
        if not 0 < self.threshold <= 1:
            raise ValueError(
                "threshold is a test accuracy, above 0 and at most 1, such as 0.95; got "
                f"{self.threshold:g}."
            )
        if self.momentum and self.optimizer not in ("sgd", "torch7_sgd", "lars"):
            raise ValueError(f"{self.optimizer} has no momentum to set: leave it out.")
        if self.momentum and self.schedule == "superconvergence":
            raise ValueError("superconvergence moves the momentum itself: leave it out.")

    def recipe(self) -> Recipe:
        """The comparison as an experiment: no paper's, and without claims."""
        return Recipe(
            paper="compare",
            figure=f"{self.data}-{self.model}",
            title=self._title,
            data=self.data,
            configurations=tuple(
                Configuration(
                    norm,
                    self.model,
                    self.plan,
                    norm=PLAIN if norm in CONVOLUTIONS else norm,
                    conv=norm if norm in CONVOLUTIONS else PLAIN,
                    options=self._sizes,
                )
                for norm in self.norms
            ),
            claims=(),
            choices=(),
            spread=self.spread,
            threshold=self.threshold,
        )

    @property
    def plan(self) -> Plan:
        return Plan(
            epochs=self.epochs,
            batch_size=self.batch_size,
            lr=self.lr,
            optimizer=self.optimizer,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            schedule=SCHEDULES[self.schedule](self.epochs),
        )

    @property
    def _sizes(self) -> dict[str, Any]:
        """Depth and width in the words of the network."""
        if self._hidden is not None:
            return {"hidden": self._hidden}
        if self.depth is not None and "depth" not in options_of(find_model(self.model).network):
            raise ValueError(f"{self.model} comes in one depth: leave depth out.")
        sizes = {"depth": self.depth, "width": self.width}
        return {name: value for name, value in sizes.items() if value is not None}

    @property
    def _hidden(self) -> tuple[int, ...] | None:
        """The hidden sizes of an MLP whose name leaves them open."""
        entry = find_model(self.model)
        if entry.network is not MLP or "hidden" in entry.fixed:
            return None
        width = _MLP_WIDTH if self.width is None else self.width
        if width != int(width):
            raise ValueError(f"width is the number of neurons in a hidden layer; got {width:g}.")
        depth = _MLP_DEPTH if self.depth is None else self.depth
        return (int(width),) * (depth - 1)

    @property
    def _title(self) -> str:
        if self._hidden is None:
            sizes = " ".join(f"{name} {value:g}" for name, value in self._sizes.items())
            network = f"{self.model} {sizes}".strip()
        else:
            layers = len(self._hidden) + 1
            network = f"{layers}-layer MLP" + (
                f" of width {self._hidden[0]}" if self._hidden else ""
            )
        optimizer = "Adam" if self.optimizer == "adam" else self.optimizer.upper()
        words = [self.data, network, optimizer, f"lr {self.lr:g}"]
        words += [f"momentum {self.momentum:g}"] * (self.momentum > 0)
        words += [f"weight decay {self.weight_decay:g}"] * (self.weight_decay > 0)
        words += [self.schedule] * (self.schedule != "constant")
        words += [f"batch size {self.batch_size}", count(self.epochs, "epoch")]
        return ", ".join(words)

    def words(self) -> list[str]:
        """The command line that repeats it, as far as it differs from the default."""
        words = ["compare"]
        for field, value in zip(fields(self), asdict(self).values(), strict=True):
            if field.name in ("norms", "data", "model") or value != field.default:
                text = ",".join(value) if field.name == "norms" else str(value)
                words += ["--" + field.name.replace("_", "-"), text]
        return words


def check_fit(recipe: Recipe, data: DataSet) -> None:
    """Raises where something cannot be trained, before anything is: every network meets a few
    images.
    """
    first = recipe.configurations[0]
    training, _ = open_streams(data, first.plan, seed=0, fabric=make_fabric("cpu"))
    images = next(iter(training))[0][:_FEW]
    plain = replace(first, norm=PLAIN, conv=PLAIN)
    shape = " × ".join(map(str, images.shape[1:]))
    refusal = f"{first.model} does not fit the {shape} images of {data.name}"
    logits = _try(lambda x: build(plain, data)(x), images, refusal)
    if logits.shape[1] != data.num_classes:
        raise ValueError(
            f"{first.model} tells {logits.shape[1]} classes apart, and {data.name} has "
            f"{data.num_classes}: choose another network."
        )
    for configuration in recipe.configurations:
        refusal = f"{configuration.name} cannot be used here"
        _try(lambda x, c=configuration: build(c, data)(x), images, refusal)


def _try(network: Callable[[Tensor], Tensor], images: Tensor, refusal: str) -> Tensor:
    try:
        return network(images)
    except (MemoryError, OverflowError, TypeError, ValueError, RuntimeError) as error:
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise ValueError(f"{refusal}: {reason}") from error


def count(number: int, noun: str) -> str:
    """
    >>> count(1, "seed"), count(3, "seed")
    ('1 seed', '3 seeds')
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
