"""Layers that ranks share, and some that they cannot."""

from __future__ import annotations

from collections.abc import Callable

import torch

import isonorm
from isonorm import area, operation

CHANNELS = 6


def composition(**choices) -> Callable[..., isonorm.Normalize]:
    return lambda **options: isonorm.Normalize(CHANNELS, **choices, **options)


LAYERS: dict[str, Callable[..., isonorm.Normalize]] = {
    "iternorm": lambda **o: isonorm.IterNorm(CHANNELS, group_size=4, **o),  # groups of 4 and 2
    "iternorm-whitening": lambda **o: isonorm.IterNorm(
        CHANNELS, group_size=4, running="whitening", momentum=None, **o
    ),
    "dbn-zca": lambda **o: isonorm.DBN(CHANNELS, group_size=4, **o),
    "dbn-cholesky": lambda **o: isonorm.DBN(CHANNELS, group_size=4, method="cholesky", **o),
    "dbn-polar": lambda **o: isonorm.DBN(CHANNELS, group_size=None, method="polar", **o),
    "batchnorm": lambda **o: isonorm.BatchNorm(CHANNELS, **o),
    "batchgroupnorm": lambda **o: isonorm.BatchGroupNorm(CHANNELS, num_groups=2, **o),
    "coloring": composition(
        area=area.batch(4), operation=operation.whiten("newton"), recovery="coloring"
    ),
    "standardize-coloring": composition(area=area.batch(4), recovery="coloring"),
    "scale": composition(operation="scale"),
}


def equiconv(**options) -> isonorm.EquiConv2d:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(6)  # the same kernel on every rank
        return isonorm.EquiConv2d(CHANNELS, CHANNELS, 3, padding=1, groups=2, **options)


OTHER_LAYERS = {
    "equiconv": equiconv,
    "equiconv-half": lambda **o: equiconv(statistics_fraction=0.5, momentum=None, **o),
    "center": composition(operation="center"),
    "standardize-1": composition(operation=operation.standardize(p=1)),
    "layernorm": composition(area="layer"),
    "instancenorm": composition(area=area.instance(1)),
    "groupwhitening": composition(area=area.group(2), operation="whiten"),
    "positionalnorm": composition(area="position"),
}


def make(name: str, dtype: torch.dtype, process_group: object, **options) -> isonorm.Normalize:
    """A layer whose parameters are not at their start, the same on every rank."""
    layer = (LAYERS | OTHER_LAYERS)[name](dtype=dtype, process_group=process_group, **options)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in layer.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.add_(0.3 * noise)
    return layer
