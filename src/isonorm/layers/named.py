"""The methods that have names: each one composition of area, operation and recovery, with its
paper's defaults.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Unpack

from torch import nn

from .. import area as areas
from .. import operation as operations
from ..checks import check_flag
from .normalize import BatchOptions, Normalize, SampleOptions


def _only(kind: type, options: Mapping[str, Any], layer: object) -> dict[str, Any]:
    """The options, if they are all of a kind: a typo or another layer's keyword is refused."""
    for name in options:
        if name not in kind.__optional_keys__:  # type: ignore[attr-defined]
            raise TypeError(f"{type(layer).__name__} has no keyword argument {name!r}.")
    return dict(options)


def _recovery(affine: bool) -> str | None:
    return "affine" if check_flag("affine", affine) else None


class IterNorm(Normalize):
    """Iterative Normalization: T Newton steps towards the whitened batch (Huang et al., CVPR 2019).

    A drop-in for BatchNorm1d/2d/3d. Whitens groups of ``group_size`` channels (None: all together;
    the last group takes the rest). ``num_iters`` is the paper's T: T = 5 is deliberately not full
    whitening; ``DBN(method="polar")`` is. ``group_size=1`` is BatchNorm. For eps, momentum, act,
    track_running_stats, running, check_finite, process_group, device and dtype see
    :class:`Normalize`.

    >>> import torch
    >>> norm = IterNorm(64)
    >>> norm(torch.randn(32, 64, 8, 8)).shape
    torch.Size([32, 64, 8, 8])
    """

    _echoes = ("group_size", "num_iters", "affine")

    def __init__(
        self,
        num_features: int,
        *,
        group_size: int | None = 64,
        num_iters: int = 5,
        affine: bool = True,
        **options: Unpack[BatchOptions],
    ) -> None:
        super().__init__(
            num_features,
            area=areas.batch(group_size),
            operation=operations.whiten("newton", num_iters),
            recovery=_recovery(affine),
            **_only(BatchOptions, options, self),
        )
        self.group_size, self.num_iters = self.area.group_size, self.operation.num_iters
        self.affine = affine


class DBN(Normalize):
    """Decorrelated Batch Normalization: full whitening of the batch (Huang et al., CVPR 2018).

    ``method`` names the result: "zca" (Σ^(-1/2), the paper's), "pca", "cholesky", or "polar", which
    is zca by ``num_iters`` polynomial steps, without an eigendecomposition. Other arguments as for
    :class:`IterNorm`.

    >>> import torch
    >>> y = DBN(8, group_size=4, affine=False, eps=0)(torch.randn(100, 8) @ torch.randn(8, 8))
    >>> torch.allclose(y[:, :4].T @ y[:, :4] / 100, torch.eye(4), atol=1e-3)
    True
    """

    _echoes = ("group_size", "method", "num_iters", "affine")

    def __init__(
        self,
        num_features: int,
        *,
        group_size: int | None = 16,
        method: str = "zca",
        num_iters: int | None = None,
        affine: bool = True,
        **options: Unpack[BatchOptions],
    ) -> None:
        if method == "newton":
            raise ValueError("method='newton' is IterNorm: use isonorm.IterNorm.")
        super().__init__(
            num_features,
            area=areas.batch(group_size),
            operation=operations.whiten(method, num_iters),
            recovery=_recovery(affine),
            **_only(BatchOptions, options, self),
        )
        self.group_size, self.num_iters = self.area.group_size, self.operation.num_iters
        self.method, self.affine = method, affine


class BatchNorm(Normalize):
    """Batch Normalization (Ioffe & Szegedy 2015), for inputs of any rank.

    Its running variance is ``running_cov``, (C, 1, 1).
    """

    _echoes = ("affine",)

    def __init__(
        self, num_features: int, *, affine: bool = True, **options: Unpack[BatchOptions]
    ) -> None:
        super().__init__(
            num_features,
            area=areas.batch(1),
            recovery=_recovery(affine),
            **_only(BatchOptions, options, self),
        )
        self.affine = affine


class MeanOnlyBatchNorm(Normalize):
    """Mean-only batch normalization, t − μ[t] + b (Salimans & Kingma 2016, Section 4).

    The companion of weight normalization, which settles the scale and leaves the mean to the batch:
    a bias and no gain.

    >>> import torch
    >>> y = MeanOnlyBatchNorm(3)(7 + torch.randn(50, 3))
    >>> torch.allclose(y.mean(0), torch.zeros(3), atol=1e-5)
    True
    """

    _echoes = ("affine",)

    def __init__(
        self, num_features: int, *, affine: bool = True, **options: Unpack[BatchOptions]
    ) -> None:
        super().__init__(
            num_features,
            area=areas.batch(1),
            operation="center",
            recovery=_recovery(affine),
            **_only(BatchOptions, options, self),
        )
        self.affine = affine

    def _initial_parameters(self, device=None, dtype=None) -> dict[str, nn.Parameter]:
        parameters = super()._initial_parameters(device, dtype)
        parameters.pop("weight", None)  # the weights before it have their own gain
        return parameters


class LayerNorm(Normalize):
    """Layer Normalization over channels and positions, affine per channel:
    ``torch.nn.GroupNorm(1, C)``.
    """

    _echoes = ("affine",)

    def __init__(
        self, num_features: int, *, affine: bool = True, **options: Unpack[SampleOptions]
    ) -> None:
        super().__init__(
            num_features,
            area=areas.layer(),
            recovery=_recovery(affine),
            **_only(SampleOptions, options, self),
        )
        self.affine = affine


class InstanceNorm(Normalize):
    """Instance Normalization (Ulyanov et al. 2016). Unlike torch's, affine by default, as every
    layer here is.
    """

    _echoes = ("affine",)

    def __init__(
        self, num_features: int, *, affine: bool = True, **options: Unpack[SampleOptions]
    ) -> None:
        super().__init__(
            num_features,
            area=areas.instance(1),
            recovery=_recovery(affine),
            **_only(SampleOptions, options, self),
        )
        self.affine = affine


class GroupNorm(Normalize):
    """Group Normalization (Wu & He 2018)."""

    _echoes = ("num_groups", "affine")

    def __init__(
        self,
        num_features: int,
        *,
        num_groups: int = 32,
        affine: bool = True,
        **options: Unpack[SampleOptions],
    ) -> None:
        super().__init__(
            num_features,
            area=areas.group(num_groups),
            recovery=_recovery(affine),
            **_only(SampleOptions, options, self),
        )
        self.num_groups, self.affine = self.area.num_groups, affine


class BatchGroupNorm(Normalize):
    """Batch Group Normalization (Zhou et al. 2020): groups of channels, over the whole batch."""

    _echoes = ("num_groups", "affine")

    def __init__(
        self,
        num_features: int,
        *,
        num_groups: int = 32,
        affine: bool = True,
        **options: Unpack[BatchOptions],
    ) -> None:
        super().__init__(
            num_features,
            area=areas.batch_group(num_groups),
            recovery=_recovery(affine),
            **_only(BatchOptions, options, self),
        )
        self.num_groups, self.affine = self.area.num_groups, affine


class PositionalNorm(Normalize):
    """Positional Normalization (Li et al. 2019): over the channels at each position."""

    _echoes = ("affine",)

    def __init__(
        self, num_features: int, *, affine: bool = True, **options: Unpack[SampleOptions]
    ) -> None:
        super().__init__(
            num_features,
            area=areas.position(),
            recovery=_recovery(affine),
            **_only(SampleOptions, options, self),
        )
        self.affine = affine


class GroupWhitening(Normalize):
    """Group Whitening (Huang et al. 2021): decorrelates the groups of channels of each example."""

    _echoes = ("num_groups", "method", "num_iters", "affine")

    def __init__(
        self,
        num_features: int,
        *,
        num_groups: int = 32,
        method: str = "newton",
        num_iters: int | None = None,
        affine: bool = True,
        **options: Unpack[SampleOptions],
    ) -> None:
        whiten = operations.whiten(method, num_iters)
        super().__init__(
            num_features,
            area=areas.group(num_groups),
            operation=whiten,
            recovery=_recovery(affine),
            **_only(SampleOptions, options, self),
        )
        self.num_groups, self.num_iters = self.area.num_groups, self.operation.num_iters
        self.method, self.affine = method, affine


class InstanceWhitening(Normalize):
    """Instance whitening (Siarohin et al. 2019, Pan et al. 2019): decorrelates channels within
    each example.
    """

    _echoes = ("group_size", "method", "num_iters", "affine")

    def __init__(
        self,
        num_features: int,
        *,
        group_size: int | None = 64,
        method: str = "newton",
        num_iters: int | None = None,
        affine: bool = True,
        **options: Unpack[SampleOptions],
    ) -> None:
        whiten = operations.whiten(method, num_iters)
        super().__init__(
            num_features,
            area=areas.instance(group_size),
            operation=whiten,
            recovery=_recovery(affine),
            **_only(SampleOptions, options, self),
        )
        self.group_size, self.num_iters = self.area.group_size, self.operation.num_iters
        self.method, self.affine = method, affine
