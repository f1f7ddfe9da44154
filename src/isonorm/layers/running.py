"""Running statistics, and the fixed map they make of a layer in eval.

Two estimates are possible. ``running="covariance"`` averages Σ (without eps, unbiased as torch's
running variance is) and derives W from it; ``running="whitening"`` averages W, as the papers do.
Either way the W used in eval lies in a non-persistent buffer, made when the layer enters eval or
loads a state, so that eval, export and ONNX contain a product and no linear algebra. The affine
parameters are not part of it: they may be trained in eval, with statistics frozen.
"""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..area import Area, Block
from ..checks import check_dtype, check_momentum, check_options
from ..kernels.choice import transforms_active
from ..operation import Operation
from ..recovery import Affine, Recovery
from ..scalars import plain
from ..statistics import Statistics, join_matrices, no_autocast
from ..synchronization import group_name
from .buffers import (
    WideBuffers,
    average_batch,
    being_recomputed,
    wide_dtype,
)


class Source(NamedTuple):
    """What ``eval_transform`` was derived from, and the tensor itself, so that a replaced buffer or
    a changed statistic is noticed.
    """

    running: Tensor
    transform: Tensor | None
    version: int | None  # of the running matrix; None where it does not tell
    eps: float
    operation: Operation

    def is_still(self, before: Source) -> bool:
        same = self.running is before.running and self.transform is before.transform
        return same and self.version is not None and self[2:] == before[2:]


class RunningTransform(WideBuffers):
    """The state of a normalization layer: running mean, running Σ or W, and the W that eval uses.

    Areas within an example keep none of it, nor does ``track_running_stats=False``.
    """

    _version = 1

    running_mean: Tensor | None
    running_cov: Tensor | None
    running_whitening: Tensor | None
    num_batches_tracked: Tensor | None
    eval_transform: Tensor | None

    def __init__(
        self,
        num_features: int,
        area: Area,
        operation: Operation,
        *,
        eps: float,
        momentum: float | None,
        track_running_stats: bool,
        running: str,
        check_finite: bool,
        process_group: object,
        device=None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if running not in ("covariance", "whitening"):
            raise ValueError(f"running must be 'covariance' or 'whitening'; got {running!r}.")
        check_momentum(momentum)
        check_dtype(dtype)
        self.num_features = num_features
        self.area = area
        self.operation = operation
        self.eps = eps
        self.momentum = momentum
        self.track_running_stats = track_running_stats
        self.running = running
        self.check_finite = check_finite
        self.process_group = group_name(process_group)  # type: ignore[arg-type]
        self._applied_area = area if operation.is_matrix else area.featurewise()
        self._answers: dict[Hashable, Any] = {}  # see ``fast_path``
        self._transform_source: Source | None = None  # what W was derived from

        self.register_buffer("running_mean", None)
        self.register_buffer("running_cov", None)
        self.register_buffer("running_whitening", None)
        self.register_buffer("num_batches_tracked", None)
        self.register_buffer("eval_transform", None, persistent=False)
        # raises where the area does not fit the channels
        blocks = self._applied_area.partition(num_features)
        if area.spans_batch and track_running_stats:
            groups = [self._applied_area.problem_shape(block, 1, 1)[:2] for block in blocks]
            self._num_problems, self._size = sum(b for b, _ in groups), groups[0][1]
            self._num_means = sum(b * d for b, d in groups)
            options = {"device": device, "dtype": wide_dtype(dtype)}
            eye = torch.eye(self._size, **options).repeat(self._num_problems, 1, 1)
            self.running_mean = torch.zeros(self._num_means, **options)
            setattr(self, self._running_name, eye)
            self.num_batches_tracked = torch.tensor(0, dtype=torch.long, device=device)
            self.eval_transform = eye.clone()
            self.refresh()
        self.register_load_state_dict_post_hook(_refresh_after_load)

    @property
    def _running_name(self) -> str:
        return "running_cov" if self.running == "covariance" else "running_whitening"

    @property
    def uses_running_statistics(self) -> bool:
        return not self.training and self.running_mean is not None

    def reset_running_stats(self) -> None:
        """Reset the running statistics and their count; as in torch's BatchNorm, not where
        ``track_running_stats`` is switched off.
        """
        if self.running_mean is None or not self.track_running_stats:
            return
        matrix = self._running_matrix()
        with torch.no_grad():
            self.running_mean.zero_()
            matrix.copy_(
                torch.eye(self._size, device=matrix.device, dtype=matrix.dtype).expand_as(matrix)
            )
            if self.num_batches_tracked is not None:
                self.num_batches_tracked.zero_()
        self.refresh()

    @property
    def averages_batches(self) -> bool:
        """Whether a batch counts now. As in torch, ``track_running_stats`` may be switched off for
        a while; the second forward of activation checkpointing never counts.
        """
        if not self.training or self.running_mean is None or not self.track_running_stats:
            return False
        return not being_recomputed()

    def commit(self, statistics: Statistics, transform: Tensor) -> None:
        """Averages a batch's statistics into the running ones: the only place that does. An empty
        batch leaves them as they were.
        """
        # Asked before gradients are switched off, of which an exported graph would keep a trace.
        if self.averages_batches and not (type(statistics.count) is int and statistics.count == 0):
            self._average(statistics, transform)

    @torch.no_grad()
    def _average(self, statistics: Statistics, transform: Tensor) -> None:
        assert self.running_mean is not None
        check_momentum(self.momentum)
        count, running = statistics.count, self._running_matrix()
        self._check_writable("running_mean", self.running_mean, self._num_means)
        self._check_writable(self._running_name, running, *self._matrix_shape)
        mean = statistics.mean.reshape(-1)
        if mean.numel() > self._num_means:
            mean = mean[: self._num_means]
        if self.running == "whitening":
            matrix = transform
        elif self.operation.centers and self.operation.is_quadratic:
            matrix = statistics.unbiased_cov()
            rest = self._num_means - (self._num_problems - 1) * self._size
            if rest < self._size:  # a shorter last group's padding stays the identity
                eye = torch.eye(self._size - rest, dtype=matrix.dtype, device=matrix.device)
                matrix[-1, rest:, rest:] = eye
        else:
            matrix = statistics.cov

        seen: bool | Tensor = True  # a tensor where only the device knows
        if isinstance(count, Tensor):
            seen = count > 0
        if self.check_finite:
            seen = mean.isfinite().all() & matrix.isfinite().all() & seen
        if isinstance(seen, Tensor):
            mean = torch.where(seen, mean.to(self.running_mean.dtype), self.running_mean)
            matrix = torch.where(seen, matrix.to(running.dtype), running)
        pairs = ((self.running_mean, mean), (running, matrix))
        average_batch(self.num_batches_tracked, self.momentum, seen, pairs)

    @property
    def _matrix_shape(self) -> tuple[int, int, int]:
        return self._num_problems, self._size, self._size

    def _check_writable(self, name: str, buffer: Tensor, *shape: int) -> None:
        """Refuses what somebody put in a buffer's place before any of them changes."""
        if buffer.shape == shape and buffer.is_contiguous():
            return
        repeats = 0 in [step for step, n in zip(buffer.stride(), shape, strict=False) if n > 1]
        if buffer.shape != shape or repeats:
            got = "one that repeats its numbers" if repeats else f"shape {tuple(buffer.shape)}"
            raise RuntimeError(
                f"{type(self).__name__}.{name} must be a tensor of shape {shape}, with memory for "
                f"every number; got {got}: assign a clone() of that shape."
            )

    def _running_matrix(self) -> Tensor:
        matrix = getattr(self, self._running_name)
        if matrix is None:
            raise RuntimeError(
                f"{type(self).__name__} with running={self.running!r} has a running_mean, but its "
                f"{self._running_name} is None: set both to None, or give it back; for another "
                "running, make a new layer or convert the model."
            )
        return matrix

    def refresh(self) -> None:
        """Derives the W of eval from the running statistics: on eval(), on loading, on change."""
        if self.eval_transform is None or self.running_mean is None:  # or taken away since
            return
        if getattr(self, self._running_name) is None:  # a forward says so
            return
        # A new tensor: graphs of earlier forwards still hold the old one.
        self.eval_transform = self._derived_transform()
        self._transform_source = self._present_source()

    def _present_source(self) -> Source:
        running = self._running_matrix()
        return Source(running, self.eval_transform, _version_of(running), self.eps, self.operation)

    def _derived_transform(self) -> Tensor:
        # Out of inference mode, whose tensors could not be used in training's graphs later.
        check_options(plain(self.eps), None)
        with torch.inference_mode(False), torch.no_grad():
            running = self._running_matrix().clone()
            if self.running == "whitening" or running.is_meta:
                return running
            with no_autocast(running):
                return join_matrices(
                    [
                        self.operation.transform(running[rows, :d, :d], self.eps)
                        for _, rows, d in self._applied_area.places(1, self.num_features, 1)
                    ]
                )

    def transform_for_eval(self) -> Tensor:
        """(b, d, d) W, derived anew if someone wrote to the running statistics since, or changed
        eps or the operation.
        """
        assert self.eval_transform is not None
        self._running_matrix()  # raises where it was taken away
        if torch.compiler.is_compiling():
            return self.eval_transform
        if self._transform_source is not None and self._present_source().is_still(
            self._transform_source
        ):
            return self.eval_transform
        if transforms_active():  # statistics handed to a functional call belong to that call alone
            return self._derived_transform()
        self.refresh()
        return self.eval_transform

    def mean_for_eval(self) -> Tensor:
        """(b, d) μ, padded like W."""
        assert self.running_mean is not None
        padding = self._num_problems * self._size - self._num_means
        mean = nn.functional.pad(self.running_mean, (0, padding)) if padding else self.running_mean
        return mean.view(self._num_problems, self._size)

    def map_for_eval(self, recovery: Recovery) -> tuple[Tensor, Tensor]:
        """(A, c): see ``Normalize.inference_map``."""
        if self.running_mean is None:
            why = "track_running_stats=False" if self.area.spans_batch else f"area {self.area!r}"
            raise RuntimeError(
                f"{type(self).__name__} has no fixed map in eval: with {why} every input is "
                "normalized by its own statistics."
            )
        matrices, offsets = [], []
        with no_autocast(self.running_mean):
            for block, w, mu in self._eval_parts():
                if self.area.features != "channels":  # one scale and one mean for a whole group
                    w, mu = (t.repeat_interleave(block.size, dim=0) for t in (w, mu))
                if w.shape[-1] == 1 and isinstance(recovery, Affine):  # channel by channel
                    a = recovery.fold(w, Block(block.start, len(w), 1))
                else:
                    if w.shape[-1] == 1:
                        w = torch.diag_embed(w.view(block.groups, block.size))
                    a, mu = recovery.fold(w, block), mu.view(block.groups, block.size)
                offset = -(a @ mu.unsqueeze(-1)).reshape(-1)
                if recovery.bias is not None:
                    offset = offset + recovery.bias[block.channels]
                matrices.append(a)
                offsets.append(offset)
        return join_matrices(matrices), torch.cat(offsets)

    def _eval_parts(self) -> Iterator[tuple[Block, Tensor, Tensor]]:
        """Each block with its W (b, d, d) and μ (b, d)."""
        w, mean = self.transform_for_eval(), self.mean_for_eval()
        for block, rows, d in self._applied_area.places(1, self.num_features, 1):
            yield block, w[rows, :d, :d], mean[rows, :d]

    @property
    def root_in_eval(self) -> str | None:
        """How W follows from the running statistics, in words that a state dict carries; None where
        they are W themselves, or there are none.
        """
        if self.running_mean is None or self.running == "whitening":
            return None
        root = self.operation.root
        if root is None or (self._size == 1 and self.operation.own is None):
            return f"eps={self.eps:g}"  # isonorm's roots of one variance are the same
        method = "zca" if root.name == "polar" else root.name
        steps = (
            "" if self.operation.num_iters is None else f" with {self.operation.num_iters} steps"
        )
        return f"{method}{'' if method == 'zca' else steps}, eps={self.eps:g}"

    def _save_to_state_dict(self, destination, prefix, keep_vars) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        told = getattr(destination, "_metadata", {}).get(prefix[:-1])
        if told is not None and self.root_in_eval is not None:
            told["root_in_eval"] = self.root_in_eval

    def _load_from_state_dict(self, state_dict, prefix, *args) -> None:
        """Loads like any module, and says what ``strict=False`` would keep silent about: γ of one
        norm with the W of another.
        """
        expected = self.running_mean is not None and getattr(self, self._running_name) is not None
        missing = expected and prefix + self._running_name not in state_dict
        if missing and prefix + "running_mean" in state_dict:
            warnings.warn(
                f"the state dict is of other norms: it has a running_mean, but no "
                f"{self._running_name} for it. In eval the model would be another function: load "
                "it with isonorm.load_checkpoint(model, state_dict) instead.",
                stacklevel=2,
            )
        super()._load_from_state_dict(state_dict, prefix, *args)

    def __getstate__(self) -> dict:
        # Copies and pickles count their buffers' versions anew.
        return {**self.__dict__, "_transform_source": None, "_answers": {}}

    def train(self, mode: bool = True):
        super().train(mode)
        if not mode:
            self.refresh()
        return self


def _version_of(buffer: Tensor) -> int | None:
    """What changes when a buffer is written to; None where it does not tell."""
    functorch = torch._C._functorch  # pyright: ignore[reportAttributeAccessIssue]
    unknown = buffer.is_inference() or functorch.is_functorch_wrapped_tensor(buffer)
    return None if unknown else buffer._version


def _refresh_after_load(module: RunningTransform, incompatible_keys) -> None:
    module.refresh()
