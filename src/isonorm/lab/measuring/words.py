"""The words in which a measurement of layers is written down: Measurement, Layer, Formula."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ..recipe import Reproduction, Spread

#: What can be asked of a layer. Of each, less is better.
MEASURES = {
    "milliseconds": "of a forward and a backward pass, the median of several",
    "device_milliseconds": "of a forward and a backward pass without what a GPU's host needs to "
    "launch it: of a CUDA graph that is replayed, the median of several rounds",
    "operations": "multiplications of the matrix products in a forward pass, in training mode",
    "training_operations": "the same for a forward and a backward pass",
    "root_operations": "those operations whose number does not grow with the samples'",
    "operations_per_convolution": "operations over those of a 3 × 3 convolution of the same input",
    "operations_per_formula": "operations over those of the paper's formula",
}


@dataclass(frozen=True)
class Formula:
    """A paper's count of multiplications: p·hwm·d·K + r·d·K², with groups of K among d channels.

    >>> formula = Formula(passes=2, roots=5)
    >>> str(formula), formula.at((64, 128, 32, 32))
    ('2·hwm·d·K + 5·d·K²', 2157969408)
    """

    passes: int  # products that go over the activation
    roots: int = 0  # products of matrices as large as the covariance
    group_size: int | None = None  # None: K = d

    def at(self, shape: tuple[int, int, int, int]) -> int:
        """For an input (m, d, h, w)."""
        m, d, h, w = shape
        k = min(self.group_size or d, d)
        return self.passes * h * w * m * d * k + self.roots * d * k**2

    def __str__(self) -> str:
        terms = ((self.passes, "hwm·d·K"), (self.roots, "d·K²"))
        return " + ".join(f"{n}·{term}" if n > 1 else term for n, term in terms if n)


@dataclass(frozen=True)
class Layer:
    """One number of a table: a layer, as ``meters.build`` knows it, and what it is given."""

    name: str
    layer: str
    shape: tuple[int, int, int, int]
    formula: Formula | None = None
    paper: Mapping[str, float] = field(default_factory=dict)  # measure → the paper's number

    def shrunk(self) -> Layer:
        """A few images of 8 × 8 with an eighth of the channels."""
        m, d, h, w = self.shape
        return replace(self, shape=(min(m, 4), max(4, d // 8), min(h, 8), min(w, 8)))


@dataclass(frozen=True)
class Measured:
    """The numbers of one layer with one input, and how far its results are from the reference."""

    values: Mapping[str, float]
    error: float


@dataclass(frozen=True)
class Measurement(Reproduction[Layer]):
    """A table of layers, ready to be measured. A seed is another input, and another turn."""

    measures: tuple[str, ...]
    seeds: int = 5
    calls: int = 20  # timed ones, of each layer with each input
    data: str = "noise"
    trainings: int = 0
    spread: Spread = "mean"

    def __post_init__(self) -> None:
        super().__post_init__()
        asked = {claim.measure for claim in self.claims}
        asked |= {key for layer in self.configurations for key in layer.paper}
        if unknown := (asked - set(self.measures)) | (set(self.measures) - set(MEASURES)):
            raise ValueError(f"{self.name} does not measure {', '.join(sorted(unknown))}.")

    @property
    def timed(self) -> bool:
        return any(key.endswith("milliseconds") for key in self.measures)

    @property
    def passes(self) -> int:
        """How often each layer is called."""
        return self.seeds * (self.calls if self.timed else 1)

    @property
    def images(self) -> int:
        """How many images pass through all layers."""
        return sum(layer.shape[0] for layer in self.configurations) * self.passes

    def shrunk(self) -> Measurement:
        """The measurement at quick scale."""
        layers = tuple(layer.shrunk() for layer in self.configurations)
        return replace(self, configurations=layers, calls=3)
