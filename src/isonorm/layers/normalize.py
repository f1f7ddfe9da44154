"""``Normalize``: area × operation × recovery as an ``nn.Module``.

It holds state and checks arguments; ``functional`` holds the mathematics.
"""

from __future__ import annotations

from inspect import signature
from typing import TypedDict

import torch
from torch import Tensor, nn
from torch.fx import Proxy

from .. import area as areas
from .. import checks, functional
from .. import operation as operations
from ..activation import as_module
from ..area import Area
from ..operation import Operation
from ..recovery import Affine, Recovery, name_of
from ..recovery import resolve as resolve_recovery
from ..scalars import plain, positive
from ..symbolic import one_call
from . import fast_path
from .fixed import FixedMap
from .running import RunningTransform


class SampleOptions(TypedDict, total=False):
    """Keywords of every layer."""

    eps: float
    act: str | None
    device: torch.device | str | None
    dtype: torch.dtype | None


class BatchOptions(SampleOptions, total=False):
    """Keywords of layers whose area spans the batch."""

    momentum: float | None
    track_running_stats: bool
    running: str
    check_finite: bool
    process_group: object


class Normalize(RunningTransform):
    """Any combination of an area, an operation and a recovery, each by name or as an object.

    Args:
        num_features: channels of the input, (N, C, *) of any rank ≥ 2.
        area: which numbers belong together: "batch", "layer", "instance", "position", or an object
            of ``isonorm.area``, such as ``area.group(num_groups=8)``.
        operation: "center", "scale", "standardize", "whiten", or an object of
            ``isonorm.operation``, such as ``operation.whiten("newton", 5)``.
        recovery: "affine" (γ, β per channel), "coloring" (a matrix per group, and β), a class with
            the parts of ``isonorm.recovery.Recovery``, or None.
        eps: added to the diagonal of every covariance before its root.
        momentum: the new batch's weight in the running statistics; None: cumulative average.
        act: None, "identity", "relu" or "silu", applied last.
        track_running_stats: False normalizes by the batch in eval, too.
        running: what is averaged for eval: "covariance", from which W is derived, or "whitening",
            W itself, as in IterNorm Eq. 8 and DBN Algorithm 1.
        check_finite: keep the running statistics when a batch's are not finite.
        process_group: a ``torch.distributed`` group to share statistics with ("world": all ranks).

    Areas within an example (layer, instance, group, position) keep no statistics: eval is train.

    >>> import isonorm
    >>> norm = isonorm.Normalize(6, area=isonorm.area.group(num_groups=3), operation="standardize")
    >>> x = torch.randn(2, 6, 5, 5)
    >>> torch.allclose(norm(x), torch.nn.functional.group_norm(x, 3), atol=1e-5)
    True
    """

    #: The constructor's arguments that a named layer's repr repeats.
    _echoes: tuple[str, ...] = ()

    def __init__(
        self,
        num_features: int,
        *,
        area: str | Area = "batch",
        operation: str | Operation = "standardize",
        recovery: str | type | None = "affine",
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        act: str | None = None,
        track_running_stats: bool = True,
        running: str = "covariance",
        check_finite: bool = False,
        process_group: object = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        num_features = positive("num_features", num_features)
        eps, momentum = plain(eps), plain(momentum)
        checks.check_options(eps, act)
        area, operation = areas.resolve(area), operations.resolve(operation)
        checks.check_composition(area, operation)
        track_running_stats = checks.check_flag("track_running_stats", track_running_stats)
        check_finite = checks.check_flag("check_finite", check_finite)
        kept = (momentum, track_running_stats, running, check_finite)
        if not area.spans_batch and kept != _DEFAULTS_OF_WHAT_IS_KEPT:
            raise ValueError(
                f"area {area!r} stays within an example, so there are no statistics to keep: leave "
                "momentum, track_running_stats, running and check_finite out."
            )
        if process_group is not None:
            checks.check_synchronizable(area, operation)
        super().__init__(
            num_features,
            area,
            operation,
            eps=eps,
            momentum=momentum,
            track_running_stats=track_running_stats,
            running=running,
            check_finite=check_finite,
            process_group=process_group,
            device=device,
            dtype=dtype,
        )
        self.act = act
        self._recovery_class = resolve_recovery(recovery)
        parameters = self._initial_parameters(device, dtype)
        self._recovered = tuple(parameters)  # what a recovery of one's own is made of
        for name, parameter in parameters.items():
            self.register_parameter(name, parameter)
        for name in ("weight", "bias"):  # as in torch, where they are None without affine
            if name not in self._parameters:
                self.register_parameter(name, None)

    def _initial_parameters(self, device=None, dtype=None) -> dict[str, nn.Parameter]:
        if self._recovery_class is None:
            return {}
        return self._recovery_class.initial(
            self.num_features, self.area, device=device, dtype=dtype
        )

    @property
    def recovery(self) -> Recovery:
        """The layer's recovery with its present parameters."""
        if self._recovery_class is None:
            return Affine(None, None)
        if (fields := getattr(self._recovery_class, "_fields", None)) is not None:
            return self._recovery_class(*(getattr(self, name) for name in fields))
        return self._recovery_class(**{name: getattr(self, name) for name in self._recovered})

    def reset_parameters(self) -> None:
        """Reset running statistics and recovery to what they were when the layer was made.

        A parameter that was set to None stays None.
        """
        self.reset_running_stats()
        with torch.no_grad():
            for name, value in self._initial_parameters().items():
                if (parameter := getattr(self, name)) is not None:
                    parameter.copy_(value)

    def forward(self, input: Tensor, residual: Tensor | None = None) -> Tensor:
        """The normalized input, in its dtype and memory format; a residual is added before the
        activation. A tracer of torch.fx sees one call, as of torch's own norms.
        """
        if isinstance(input, Proxy) and (call := one_call(self, input, residual)) is not None:
            return call
        self._check_channels(input)
        if self.uses_running_statistics:
            y = fast_path.evaluate(self, input, residual)
            if y is not None:
                return y
            return functional.apply_transform(
                input, self.transform_for_eval(), self.mean_for_eval(), self.recovery,
                self._applied_area, act=self.act, residual=residual,
            )  # fmt: skip
        y = fast_path.train(self, input, residual)
        if y is not None:
            return y
        result = functional.normalize_with_transform(
            input, self.area, self.operation, self.recovery,
            eps=self.eps, act=self.act, residual=residual,
            group=self.process_group if self.training else "", training=self.training,
        )  # fmt: skip
        self.commit(result.statistics, result.transform)
        return result.y

    def inference_map(self) -> tuple[Tensor, Tensor]:
        """(A, c) with y = A·x + c for each group of channels in eval, before the activation: what
        ``fold`` merges.

        A is (groups, g, g), padded by the identity where the last group is shorter; c is (C,).
        Differentiable in the layer's parameters. Raises where eval is not one fixed map.

        >>> import isonorm
        >>> norm = isonorm.IterNorm(4, group_size=2).eval()
        >>> A, c = norm.inference_map()
        >>> x = torch.randn(5, 4)
        >>> y = (A @ x.view(5, 2, 2, 1)).view(5, 4) + c
        >>> torch.allclose(y, norm(x), atol=1e-6)
        True
        """
        return self.map_for_eval(self.recovery)

    def fuse(self) -> nn.Module:
        """The layer in eval as a module of plain operators, activation included; itself where eval
        is not one fixed map, or hooks or a subclass add to it. timm's ``reparameterize_model``
        calls this.
        """
        adds = self._forward_hooks or self._forward_pre_hooks
        if self.running_mean is None or adds or type(self).forward is not Normalize.forward:
            return self
        return FixedMap(*self.inference_map(), as_module(self.act))

    def _check_channels(self, x: Tensor) -> None:
        checks.check_tensor("the input", x)
        if x.dim() < 2 or x.shape[1] != self.num_features:
            raise ValueError(
                f"{type(self).__name__} expected input (N, {self.num_features}, *) with "
                f"{self.num_features} channels in dimension 1; got shape {tuple(x.shape)}: move "
                "the channels to dimension 1, or make the layer for as many as the input has."
            )
        mean = self._buffers["running_mean"]
        if mean is not None and mean.device != x.device:
            raise ValueError(
                f"the input is on {x.device}, but the running statistics of {type(self).__name__} "
                f"are on {mean.device}: move them together."
            )

    def extra_repr(self) -> str:
        if self._echoes:
            parts = [str(self.num_features)]
            for name in self._echoes:
                value = getattr(self, name)
                if name != "num_iters" or value is not None:  # only some methods have steps
                    parts.append(f"{name}={value!r}")
            return ", ".join(parts) + self._common_repr()
        recovered = None if self._recovery_class is None else name_of(self._recovery_class)
        parts = f"area={self.area!r}, operation={self.operation!r}, recovery={recovered!r}"
        return f"{self.num_features}, {parts}" + self._common_repr()

    def _common_repr(self) -> str:
        """The keywords shared by all layers, as far as they differ from their defaults (eps
        always).
        """
        parts = [f"eps={self.eps}"]
        if self.area.spans_batch:
            parts.append(f"momentum={self.momentum}")
            if not self.track_running_stats:
                parts.append("track_running_stats=False")
            if self.running != "covariance":
                parts.append(f"running={self.running!r}")
            if self.check_finite:
                parts.append("check_finite=True")
            if self.process_group:
                parts.append(f"process_group={self.process_group!r}")
        if self.act is not None:
            parts.append(f"act={self.act!r}")
        return ", " + ", ".join(parts)


_DEFAULTS_OF_WHAT_IS_KEPT = tuple(
    signature(Normalize).parameters[name].default
    for name in ("momentum", "track_running_stats", "running", "check_finite")
)
