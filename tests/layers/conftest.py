"""The cases every layer test runs over: each registered layer, and compositions without a name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import inf
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn

import isonorm
from isonorm import area, operation

CHANNELS = 12

#: What a registered layer needs to accept 12 channels; group sizes of 5 leave a remainder of 2.
OPTIONS = {
    "iternorm": {"group_size": 5},
    "dbn": {"group_size": 5},
    "groupnorm": {"num_groups": 3},
    "batchgroupnorm": {"num_groups": 3},
    "groupwhitening": {"num_groups": 3},
    "instancewhitening": {"group_size": 5},
}


class Case(NamedTuple):
    name: str
    build: Callable[..., nn.Module]

    def make(self, channels: int = CHANNELS, **options) -> nn.Module:
        """The layer, with parameters that are neither ones nor zeros."""
        layer = self.build(channels, **options)
        with torch.no_grad():
            for parameter in layer.parameters():
                parameter += 0.3 * torch.randn_like(parameter)
        return layer

    def untracked(self, **options) -> nn.Module:
        """The layer without running statistics: what ``torch.func`` asks for in training."""
        if self.keeps_statistics:
            options["track_running_stats"] = False
        return self.make(**options)

    @property
    def keeps_statistics(self) -> bool:
        return self.build(CHANNELS).running_mean is not None


def _composition(**parts) -> Callable[..., nn.Module]:
    return partial(isonorm.Normalize, **parts)


def _whitening(method: str, **options) -> Callable[..., nn.Module]:
    return _composition(area=area.batch(5), operation=operation.whiten(method), **options)


CASES = [
    *(
        Case(name, partial(isonorm.create_norm, name, **OPTIONS.get(name, {})))
        for name in isonorm.list_norms()
    ),
    # "dbn" above has zca, and newton comes with what follows
    *(Case(f"whiten-{method}", _whitening(method)) for method in ("polar", "pca", "cholesky")),
    Case("whiten-running-w", _whitening("newton", running="whitening")),
    Case("whiten-coloring", _whitening("zca", recovery="coloring")),
    Case("whiten-no-recovery", _whitening("newton", recovery=None)),
    Case(
        "group-whiten-coloring",
        _composition(area=area.group(3), operation="whiten", recovery="coloring"),
    ),
    Case("batch-coloring", _composition(area=area.batch(5), recovery="coloring")),
    Case("batchgroup-coloring", _composition(area=area.batch_group(3), recovery="coloring")),
    Case("batch-center", _composition(operation="center")),
    Case("batch-scale", _composition(operation="scale")),
    Case("layer-scale", _composition(area="layer", operation="scale")),
    Case("batch-p1", _composition(operation=operation.standardize(p=1))),
    Case("instance-pinf", _composition(area="instance", operation=operation.standardize(p=inf))),
]


#: Who records a graph finds the same one in these as in others: the root's method is a word inside
#: an operator, and in eval a matrix is stored whatever it was computed by ("dbn" stands for them),
#: as "meanonlybatchnorm" does for centering, and "batchgroupnorm" and "whiten-coloring" together.
SAME_GRAPHS = {
    "whiten-polar", "whiten-pca", "whiten-cholesky", "batch-center", "batchgroup-coloring"
}  # fmt: skip


def _id(case: Case) -> str:
    return case.name


@pytest.fixture(params=CASES, ids=_id)
def case(request) -> Case:
    return request.param


@pytest.fixture(params=[c for c in CASES if c.keeps_statistics], ids=_id)
def batch_case(request) -> Case:
    """The cases that keep running statistics."""
    return request.param


@pytest.fixture(params=[c for c in CASES if c.name not in SAME_GRAPHS], ids=_id)
def graph_case(request) -> Case:
    """The cases that give a compiler something to do."""
    return request.param


@pytest.fixture(
    params=[c for c in CASES if c.keeps_statistics and c.name not in SAME_GRAPHS], ids=_id
)
def batch_graph_case(request) -> Case:
    """Those of them that keep running statistics."""
    return request.param


@pytest.fixture(params=[c for c in CASES if not c.keeps_statistics], ids=_id)
def sample_case(request) -> Case:
    """The cases that normalize every example by itself."""
    return request.param


@pytest.fixture(params=[c for c in CASES if list(c.build(CHANNELS).parameters())], ids=_id)
def learning_case(request) -> Case:
    """The cases with parameters."""
    return request.param


@pytest.fixture
def cases() -> dict[str, Case]:
    """Every case by name, for tests too slow to run over all."""
    return {case.name: case for case in CASES}


@pytest.fixture
def draw() -> Callable[..., Tensor]:
    """Inputs of a given shape with correlated channels, unequal scales and a mean."""

    def make(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        channels = shape[1]
        mix = torch.eye(channels) + 0.4 * torch.randn(channels, channels)
        x = torch.einsum("dc,nc...->nd...", mix.double(), torch.randn(shape, dtype=torch.float64))
        per_channel = (1, channels, *(1 for _ in shape[2:]))
        return (x + torch.linspace(-1, 1, channels, dtype=torch.float64).view(per_channel)).to(
            dtype
        )

    return make
