"""The state of a layer in equilibrium: its affine, its running v_c/r, and when which is used; and
what it makes of a plain layer, and a plain layer of it.
"""

from __future__ import annotations

import warnings
from fractions import Fraction
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..checks import check_momentum, check_no_transform
from ..layers.buffers import (
    WideBuffers,
    being_recomputed,
    wide_dtype,
)
from ..scalars import plain
from ..synchronization import group_name, is_shared
from .balance import average_sums, balanced_kernel
from .equilibrium import balance_signs_, input_sums, per_output


class EquilibriumState(WideBuffers):
    """What ``EquiConv*d`` and ``EquiLinear`` have in common; not a layer by itself.

    The raw kernel is ``weight``; ``gamma`` and ``beta`` act on the output. ``running_v`` averages
    v_c/r, of which eval makes its s and b: they depend on no batch and no image size.
    """

    #: The layer without normalization, and the arguments both are made with.
    _plain: ClassVar[type[nn.Module]]
    _arguments: ClassVar[tuple[str, ...]]

    weight: Tensor
    bias: Tensor | None
    gamma: Tensor | None
    beta: Tensor | None
    running_v: Tensor | None
    num_batches_tracked: Tensor | None
    groups: int

    def _set_up(
        self,
        *,
        momentum: float | None,
        affine: bool,
        statistics_fraction: float,
        single_pass: bool,
        track_running_stats: bool,
        process_group: object,
    ) -> None:
        """The rest of the constructor, once the kernel is there."""
        momentum, statistics_fraction = plain(momentum), plain(statistics_fraction)
        check_momentum(momentum)
        check_fraction(statistics_fraction)
        if self.bias is not None and affine:
            raise ValueError(
                "bias=True beside affine=True would shift the output twice, and beta is that "
                "shift: leave bias out, or set affine=False."
            )
        self.momentum = momentum
        self.affine = affine
        self.statistics_fraction = statistics_fraction
        self.single_pass = single_pass
        self.track_running_stats = track_running_stats
        self.process_group = group_name(process_group)  # type: ignore[arg-type]

        outputs, inputs = self.weight.shape[0], self.weight.shape[1] * self.groups
        device, dtype = self.weight.device, self.weight.dtype
        for name, value in (("gamma", torch.ones), ("beta", torch.zeros)):
            initial = nn.Parameter(value(outputs, device=device, dtype=dtype)) if affine else None
            self.register_parameter(name, initial)
        running = torch.ones(inputs, device=device, dtype=wide_dtype(dtype))
        tracked = torch.tensor(0, dtype=torch.long, device=device)
        self.register_buffer("running_v", running if track_running_stats else None)
        self.register_buffer("num_batches_tracked", tracked if track_running_stats else None)
        if self.weight.shape[1:].numel() == 1:
            warnings.warn(
                f"{self!r} has a single weight for each output, which balances to zero: its output "
                "is the same for every input; use a layer without equilibrium there.",
                stacklevel=3,
            )

    def reset_running_stats(self) -> None:
        """Reset the running v and its count; as in torch's BatchNorm, not where
        ``track_running_stats`` is switched off.
        """
        if self.track_running_stats:
            if self.running_v is not None:
                self.running_v.fill_(1)
            if self.num_batches_tracked is not None:
                self.num_batches_tracked.zero_()

    def reset_parameters(self) -> None:
        """A new kernel, balanced in its signs; affine and statistics as they were at first."""
        super().reset_parameters()  # type: ignore[misc]
        balance_signs_(self.weight)
        if "gamma" not in self._parameters:
            return  # called by the kernel's constructor; the rest is not there yet
        if self.gamma is not None:
            nn.init.ones_(self.gamma)
        if self.beta is not None:
            nn.init.zeros_(self.beta)
        self.reset_running_stats()

    def _measure(
        self, batch: Tensor, channel: int, r_of_an_instance: int
    ) -> tuple[Tensor, int, bool | Tensor]:
        """A batch's v_c, the r they are to be divided by, and whether there was anything to count;
        in eval the running v_c/r, and 1.

        r counts the same instances as v: the first ``statistics_fraction`` of the batch.
        """
        if not self.training and self.running_v is not None:
            return self._settled_v(), 1, False
        if self.statistics_fraction != 1:
            batch = batch[: first_of(batch.shape[0], self.statistics_fraction)]
        v, r = input_sums(batch, channel), batch.shape[0] * r_of_an_instance
        if not self.training or not is_shared(self.process_group):
            return v, max(r, 1), r > 0
        check_no_transform()
        v, total = per_output(v, r, self.process_group)
        return v, 1, total > 0

    def _settled_v(self) -> Tensor:
        """The running v_c/r of now: training may move it before a backward needs it."""
        assert self.running_v is not None
        return self.running_v.clone()

    def _kernel_and_bias(self, v: Tensor, r: int) -> tuple[Tensor, Tensor | None]:
        kernel = balanced_kernel(
            self.weight, v, r, self.gamma, groups=self.groups, single_pass=self.single_pass
        )
        shift = self._shift
        if shift is not None and shift.dtype != kernel.dtype:
            shift = shift.to(kernel.dtype)
        return kernel, shift

    @property
    def _shift(self) -> Tensor | None:
        return self.beta if self.affine else self.bias

    def _commit(self, v: Tensor, r: int, seen: bool | Tensor) -> None:
        """Average a batch's v_c/r into the running one: the only place that does.

        An empty batch, the second forward of activation checkpointing, and every batch while
        ``track_running_stats`` is switched off, leave it as it was.
        """
        running, tracked = self.running_v, self.num_batches_tracked
        if not (self.training and self.track_running_stats) or running is None:
            return
        if being_recomputed():
            return
        if isinstance(seen, Tensor) or seen:
            average_sums(v, r, seen, self.momentum, running, tracked)

    def inference_map(self) -> tuple[Tensor, Tensor | None]:
        """(kernel, bias) of the plain layer that this one is in eval; differentiable in its
        parameters.

        >>> import isonorm
        >>> layer = isonorm.EquiLinear(6, 4).eval()
        >>> x = torch.rand(5, 6)
        >>> torch.equal(torch.nn.functional.linear(x, *layer.inference_map()), layer(x))
        True
        """
        if self.running_v is None:
            raise RuntimeError(
                f"{type(self).__name__} has no fixed map in eval: with track_running_stats=False "
                "every batch is normalized by its own statistics."
            )
        return self._kernel_and_bias(self._settled_v(), 1)

    def fuse(self) -> nn.Module:
        """The plain layer that this one is in eval: an ``nn.Conv*d`` or ``nn.Linear`` of its own.

        >>> import isonorm
        >>> isonorm.EquiConv1d(6, 4, 3, stride=2).fuse()
        Conv1d(6, 4, kernel_size=(3,), stride=(2,))
        """
        kernel, bias = self.inference_map()
        arguments = {name: getattr(self, name) for name in self._arguments}
        plain = self._plain(**arguments, bias=bias is not None, device="meta")
        _replace(plain, "weight", kernel, self.weight.requires_grad)
        if self._shift is not None and bias is not None:
            _replace(plain, "bias", bias, self._shift.requires_grad)
        return plain.train(self.training)

    @classmethod
    def from_pair(
        cls,
        layer: nn.Module,
        norm: nn.Module,
        *,
        statistics_fraction: float = 1.0,
        single_pass: bool = True,
    ) -> Self:
        """The layer in equilibrium that takes the place of a plain one and the BatchNorm behind it.

        >>> import isonorm
        >>> conv, norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        >>> isonorm.EquiConv2d.from_pair(conv, norm)
        EquiConv2d(3, 8, kernel_size=(3, 3), stride=(1, 1), padding=(1, 1), momentum=0.1)

        The kernel is copied as it is; BatchNorm's affine becomes ``gamma`` and ``beta`` (where it
        has one of the two, the other is neutral and does not learn), and its momentum, mode and,
        from a SyncBatchNorm, process group are kept. Three things have no place
        in the new layer: a bias of the plain one, which BatchNorm subtracts with the mean; eps; and
        the running statistics, which describe the output, where ``running_v`` describes the input.
        That starts at one, so the layer has to see data in training mode before eval means much.
        """
        _check_pair(cls._plain, layer, norm)
        kernel: Tensor = layer.weight  # type: ignore[assignment]
        arguments: dict[str, Any] = {name: getattr(layer, name) for name in cls._arguments}
        group = None
        if isinstance(norm, nn.SyncBatchNorm):
            group = norm.process_group or "world"
        new = cls(
            **arguments, affine=norm.affine, momentum=norm.momentum,
            statistics_fraction=statistics_fraction, single_pass=single_pass,
            track_running_stats=norm.track_running_stats, process_group=group,
            device="meta", dtype=kernel.dtype,
        )  # fmt: skip
        new.to_empty(device=kernel.device).reset_running_stats()
        _replace(new, "weight", kernel, kernel.requires_grad)
        for name, theirs, neutral in (("gamma", "weight", 1.0), ("beta", "bias", 0.0)):
            source: Tensor | None = getattr(norm, theirs)
            if source is not None:
                _replace(new, name, source, source.requires_grad)
            elif norm.affine:  # what the norm did without changes nothing, and does not learn
                getattr(new, name).requires_grad_(False).fill_(neutral)
        return new.train(norm.training)

    def _own_repr(self) -> str:
        """The keywords, as far as they differ from their defaults (momentum always)."""
        parts = [f"momentum={self.momentum}"]
        defaults = {
            "affine": True, "statistics_fraction": 1.0, "single_pass": True,
            "track_running_stats": True, "process_group": "",
        }  # fmt: skip
        for name, default in defaults.items():
            if getattr(self, name) != default:
                parts.append(f"{name}={getattr(self, name)!r}")
        return ", ".join(parts)


def first_of(instances: int, fraction: float) -> int:
    """How many instances the first part of a batch has, rounded up.

    >>> [first_of(n, 0.25) for n in (0, 1, 4, 5, 128)]
    [0, 1, 1, 2, 32]
    """
    if fraction == 1:
        return instances
    part = Fraction(fraction).limit_denominator(10**6)  # a tenth where 0.1 was written
    return -(-instances * part.numerator // part.denominator)


def check_fraction(fraction: float) -> None:
    if not isinstance(fraction, int | float) or not 1e-6 <= fraction <= 1:
        raise ValueError(
            "statistics_fraction must be above 0 (at least 1e-6) and at most 1, the part of the "
            f"batch that is measured; got {fraction!r}."
        )


def _replace(module: nn.Module, name: str, value: Tensor, requires_grad: bool) -> None:
    setattr(module, name, nn.Parameter(value.detach().clone(), requires_grad=requires_grad))


def _check_pair(plain: type[nn.Module], layer: nn.Module, norm: nn.Module) -> None:
    if type(layer) is not plain:
        raise TypeError(
            f"expected an nn.{plain.__name__} itself, whose kernel can be taken over; got "
            f"{type(layer).__name__}."
        )
    if not isinstance(norm, _BatchNorm):
        raise TypeError(f"expected one of torch's BatchNorms; got {type(norm).__name__}.")
    outputs = layer.weight.shape[0]  # type: ignore[index]
    if norm.num_features != outputs:
        raise ValueError(
            f"the BatchNorm is for {norm.num_features} channels, but the layer before it gives "
            f"{outputs}: they are no pair."
        )
