"""The methods that have names: each one composition of area, operation and recovery, with its
paper's defaults.
"""

from __future__ import annotations

import inspect
from contextlib import suppress
from typing import Any, ClassVar, Unpack

from torch import nn

from .. import area as areas
from .. import operation as operations
from ..area import Area
from ..checks import check_flag, check_keywords, keywords_of
from ..operation import Operation
from .normalize import BatchOptions, Normalize, SampleOptions


def _settled(part: str, name: str) -> property:
    """An argument of the constructor, as the layer's area or operation has it; not to be set."""

    def get(layer: Normalize) -> Any:
        return getattr(getattr(layer, part), name)

    def refuse(layer: Normalize, value: Any) -> None:
        raise AttributeError(
            f"{type(layer).__name__}.{name} cannot be set to {value!r}: a layer keeps the {name} "
            "it was made with, so make a new one, or convert the model."
        )

    return property(get, refuse)


class _OfTheClass:
    """A class's signature: its instances, which are called with inputs, have none."""

    def __init__(self, signature: inspect.Signature) -> None:
        self.signature = signature

    def __get__(self, layer: Normalize | None, owner: type) -> inspect.Signature:
        if layer is not None:
            raise AttributeError("__signature__")
        return self.signature


def _spelled_out(cls: type[Named]) -> inspect.Signature:
    """The constructor's own arguments, and in place of ``**options`` the keywords of the class it
    hands them on to.
    """
    own = list(inspect.signature(cls.__init__).parameters.values())[1:]
    kinds = [parameter.kind for parameter in own]
    if inspect.Parameter.VAR_POSITIONAL in kinds:
        raise ValueError("its arguments are another's")
    if inspect.Parameter.VAR_KEYWORD in kinds:
        own.pop()
        parent = next(base for base in cls.__mro__[1:] if issubclass(base, Named))
        inherited = inspect.signature(Normalize if parent is Named else parent).parameters
        allowed = inherited.keys()
        if parent is Named:
            allowed = cls._options.__optional_keys__  # type: ignore[attr-defined]
        known = {parameter.name for parameter in own}
        own += [
            parameter
            for name, parameter in inherited.items()
            if parameter.kind == parameter.KEYWORD_ONLY and name in allowed and name not in known
        ]
    return inspect.Signature(own)


class Named(Normalize):
    """A composition with a name. Its own keywords come first; ``_options`` has those that it hands
    on to :class:`Normalize`.
    """

    _options: ClassVar[type] = BatchOptions

    def __init_subclass__(cls, **options: Any) -> None:
        """Spells all keywords out for whoever reads signatures: help, editors, ``skip_init``."""
        super().__init_subclass__(**options)
        if "__init__" in vars(cls):
            with suppress(ValueError):  # a signature is not worth a class that cannot be made
                cls.__signature__ = _OfTheClass(_spelled_out(cls))

    def _compose(
        self, num_features: int, area: Area, operation: str | Operation, affine: bool, options: Any
    ) -> None:
        """What a subclass does in place of ``Normalize``'s constructor."""
        allowed = self._options.__optional_keys__  # type: ignore[attr-defined]
        if not options.keys() <= allowed:  # a typo, or another layer's keyword
            known = dict.fromkeys([*keywords_of(type(self)), *sorted(allowed)])
            check_keywords(type(self).__name__, options, list(known))
        recovery = "affine" if check_flag("affine", affine) else None
        super().__init__(num_features, area=area, operation=operation, recovery=recovery, **options)
        self.affine = affine


class IterNorm(Named):
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
    group_size = _settled("area", "group_size")
    num_iters = _settled("operation", "num_iters")

    def __init__(
        self,
        num_features: int,
        *,
        group_size: int | None = 64,
        num_iters: int = 5,
        affine: bool = True,
        **options: Unpack[BatchOptions],
    ) -> None:
        whiten = operations.whiten("newton", num_iters)
        self._compose(num_features, areas.batch(group_size), whiten, affine, options)


class DBN(Named):
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
    group_size = _settled("area", "group_size")
    method = _settled("operation", "method")
    num_iters = _settled("operation", "num_iters")

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
        whiten = operations.whiten_fully(method, num_iters)
        self._compose(num_features, areas.batch(group_size), whiten, affine, options)


class BatchNorm(Named):
    """Batch Normalization (Ioffe & Szegedy 2015), for inputs of any rank.

    Its running variance is ``running_cov``, (C, 1, 1).
    """

    _echoes = ("affine",)

    def __init__(
        self, num_features: int, *, affine: bool = True, **options: Unpack[BatchOptions]
    ) -> None:
        self._compose(num_features, areas.batch(1), "standardize", affine, options)


class MeanOnlyBatchNorm(Named):
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
        self._compose(num_features, areas.batch(1), "center", affine, options)

    def _initial_parameters(self, device=None, dtype=None) -> dict[str, nn.Parameter]:
        parameters = super()._initial_parameters(device, dtype)
        parameters.pop("weight", None)  # the weights before it have their own gain
        return parameters


class LayerNorm(Named):
    """Layer Normalization over channels and positions, affine per channel:
    ``torch.nn.GroupNorm(1, C)``.
    """

    _echoes = ("affine",)
    _options = SampleOptions

    def __init__(
        self, num_features: int, *, affine: bool = True, **options: Unpack[SampleOptions]
    ) -> None:
        self._compose(num_features, areas.layer(), "standardize", affine, options)


class InstanceNorm(Named):
    """Instance Normalization (Ulyanov et al. 2016). Unlike torch's, affine by default, as every
    layer here is.
    """

    _echoes = ("affine",)
    _options = SampleOptions

    def __init__(
        self, num_features: int, *, affine: bool = True, **options: Unpack[SampleOptions]
    ) -> None:
        self._compose(num_features, areas.instance(1), "standardize", affine, options)


class GroupNorm(Named):
    """Group Normalization (Wu & He 2018)."""

    _echoes = ("num_groups", "affine")
    _options = SampleOptions
    num_groups = _settled("area", "num_groups")

    def __init__(
        self,
        num_features: int,
        *,
        num_groups: int = 32,
        affine: bool = True,
        **options: Unpack[SampleOptions],
    ) -> None:
        self._compose(num_features, areas.group(num_groups), "standardize", affine, options)


class BatchGroupNorm(Named):
    """Batch Group Normalization (Zhou et al. 2020): groups of channels, over the whole batch."""

    _echoes = ("num_groups", "affine")
    num_groups = _settled("area", "num_groups")

    def __init__(
        self,
        num_features: int,
        *,
        num_groups: int = 32,
        affine: bool = True,
        **options: Unpack[BatchOptions],
    ) -> None:
        self._compose(num_features, areas.batch_group(num_groups), "standardize", affine, options)


class PositionalNorm(Named):
    """Positional Normalization (Li et al. 2019): over the channels at each position."""

    _echoes = ("affine",)
    _options = SampleOptions

    def __init__(
        self, num_features: int, *, affine: bool = True, **options: Unpack[SampleOptions]
    ) -> None:
        self._compose(num_features, areas.position(), "standardize", affine, options)


class GroupWhitening(Named):
    """Group Whitening (Huang et al. 2021): decorrelates the groups of channels of each example."""

    _echoes = ("num_groups", "method", "num_iters", "affine")
    _options = SampleOptions
    num_groups = _settled("area", "num_groups")
    method = _settled("operation", "method")
    num_iters = _settled("operation", "num_iters")

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
        self._compose(num_features, areas.group(num_groups), whiten, affine, options)


class InstanceWhitening(Named):
    """Instance whitening (Siarohin et al. 2019, Pan et al. 2019): decorrelates channels within
    each example.
    """

    _echoes = ("group_size", "method", "num_iters", "affine")
    _options = SampleOptions
    group_size = _settled("area", "group_size")
    method = _settled("operation", "method")
    num_iters = _settled("operation", "num_iters")

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
        self._compose(num_features, areas.instance(group_size), whiten, affine, options)
