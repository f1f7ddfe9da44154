"""A training step of the ordinary layer with the least work on the host.

A small layer's kernels take less time than Python needs for tensors, views and checks. Here the
same kernels as in ``steps`` run for one block of channels that has statistics of its own over the
batch, and a kernel for its root. What forward keeps lies in one tensor, cut by addresses; running
averages are the root kernel's business; nothing is asked twice of the same shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ...area import flat
from ..plan import Packing, Plan
from .launch import ALIGNMENT, Launcher, raw_stream
from .passes import Kinds, Pass, averaging, find_pass


class Averages(NamedTuple):
    """Running statistics, which forward moves towards the batch's: all float32 but the count."""

    mean: Tensor
    matrix: Tensor
    batches: Tensor


class Averaging(NamedTuple):
    """How they move: which matrix is averaged ("covariance" or "whitening"), and by how much."""

    matrix: str
    momentum: float
    unbiased: float  # what a covariance is multiplied by


class Map:
    """y = act(A(x − μ) + β + residual) for a W and a μ that are given, as in eval: one launch."""

    def __init__(self, x: Tensor, plan: Plan, kinds: Kinds) -> None:
        x = flat(x)
        self.kernel = find_pass(x, plan.area.whole(x.shape[1]), plan, kinds).apply

    def __call__(
        self,
        x: Tensor,
        w: Tensor,
        mean: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        residual: Tensor | None,
    ) -> Tensor:
        y = torch.empty_like(x)
        given = [x if t is None else t for t in (weight, bias, residual)]
        self.kernel(x, y, w, mean, *given)
        return y


class Prepared:
    """The step for one plan, one shape of input, and one kind of parameters."""

    def __init__(
        self,
        x: Tensor,
        plan: Plan,
        kinds: Kinds,
        averaged: Averaging | None = None,
    ) -> None:
        whole, x = x, flat(x)
        block, *_ = plan.problem_shapes(x)[0]
        self.plan = plan
        self.stride, self.device = whole.stride(), whole.get_device()
        self.run: Pass = find_pass(x, block, plan, kinds)
        kinds = _kinds_of_backward(kinds, plan, x.dtype)
        self.through = kinds.through
        self.back: Pass = find_pass(x, block, plan, kinds)
        run, back = self.run, self.back
        assert run.root is not None and back.gradients is not None
        self.root: Launcher = run.root if averaged is None else averaging(run.root, *averaged)
        self.gradients: Launcher = back.gradients
        self.forward_kernels = _present(run.moments, run.sum_moments, self.root, run.apply)
        self.backward_kernels = _present(
            back.sums, back.sum_sums, self.gradients, back.backward_apply, back.backward_rest
        )
        vector, square = run.b * run.d, run.b * run.d * run.d
        self.kept = plan.kept(x)
        self.num_parts = run.moments.grid[1] * run.lay.row
        self.num_parts_of_sums = back.sums.grid[1] * run.lay.row
        self.scratch = Packing(square, square, vector)

    def forward(
        self,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        residual: Tensor | None,
        averages: Averages | None,
    ) -> tuple[Tensor, Tensor]:
        """y, and what backward needs."""
        run = self.run
        keep = x.new_empty(self.kept.size, dtype=torch.float32)
        parts = x.new_empty(self.num_parts, dtype=torch.float32)
        given = (weight, bias, residual, *(averages or ()))
        stream, at = self._way(self.forward_kernels, x, *given)
        p_x, p_parts = at(x), at(parts)
        mean, cov, w, memo = _places(self.kept, keep, stream)
        running = None if averages is None else [at(t) for t in averages]
        _go(run.moments, stream, p_x, p_parts, mean)
        if run.sum_moments is not None:
            _go(run.sum_moments, stream, p_parts)
        _go(self.root, stream, *run.to_solve(p_parts, mean, cov, w, memo, running))
        del parts, p_parts, running  # what is asked for from here on may have their memory
        y = torch.empty_like(x)
        p_weight = p_x if weight is None else at(weight)
        p_bias = p_x if bias is None else at(bias)
        p_residual = p_x if residual is None else at(residual)
        _go(run.apply, stream, p_x, at(y), w, mean, p_weight, p_bias, p_residual)
        return y, keep

    def backward(
        self,
        dy: Tensor,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        extra: Tensor | None,
        keep: Tensor,
        wanted: bool = True,
    ) -> tuple[Tensor | None, Tensor, Tensor, Tensor | None]:
        """dx, if it is wanted, dγ, dβ, and the residual's gradient, unless it is dy."""
        run = self.back
        # Hooks on saved tensors may give them back in another format, as save_on_cpu does.
        x, dy = self.walkable(x), self.walkable(dy)
        extra = None if extra is None else self.walkable(extra)
        sums = x.new_empty(self.num_parts_of_sums, dtype=torch.float32)
        scratch = x.new_empty(self.scratch.size, dtype=torch.float32)
        dweight = x.new_empty(run.gain_shape, dtype=torch.float32)
        dbias = x.new_empty(run.gain_shape, dtype=torch.float32)
        stream, at = self._way(self.backward_kernels, x, weight, bias, extra, dy, keep)
        p_x, p_dy = at(x), at(dy)
        mean, cov, w, memo = _places(self.kept, keep, stream)
        a, slope, shift = _places(self.scratch, scratch, stream)
        parts = at(sums)
        p_weight = p_x if weight is None else at(weight)
        p_bias = p_x if bias is None else at(bias)
        g, p_g = None, p_x
        if self.through:
            g = torch.empty_like(x)
            p_g = at(g)
        p_extra = p_x if extra is None else at(extra)
        _go(run.sums, stream, p_x, p_dy, mean, parts, w, p_weight, p_bias, p_extra, p_g)
        if run.sum_sums is not None:
            _go(run.sum_sums, stream, parts)
        gain = w if weight is None else p_weight
        outputs = (at(dweight), at(dbias), a, slope, shift)
        given = run.to_differentiate(parts, cov, w, memo, gain, outputs)
        _go(self.gradients, stream, *given)
        del sums, parts
        if not wanted:
            return None, dweight, dbias, g
        dx = torch.empty_like(x)
        p_dy = p_dy if g is None else p_g
        places = (p_x, p_dy, at(dx), a, slope, mean, shift, w, p_weight, p_bias)
        _go(run.backward_apply, stream, *places)
        if run.backward_rest is not None:
            _go(run.backward_rest, stream, *places)
        return dx, dweight, dbias, g

    def walkable(self, t: Tensor) -> Tensor:
        """Kernels walk every activation by the same strides."""
        if t.stride() == self.stride:
            return t
        return torch.empty_strided(t.shape, self.stride, dtype=t.dtype, device=t.device).copy_(t)

    def _way(self, launchers: tuple[Launcher, ...], *given: Tensor | None):
        """The stream, and how to speak of tensors: by address where all kernels are compiled and
        all that is given is aligned; else no stream, and tensors as they are.
        """
        for launcher in launchers:
            if launcher.direct is None:
                return None, _itself
        bits = 0
        for tensor in given:
            if tensor is not None:
                bits |= tensor.data_ptr()
        if bits % ALIGNMENT:
            return None, _itself
        return raw_stream(self.device), Tensor.data_ptr


def _kinds_of_backward(kinds: Kinds, plan: Plan, dtype: torch.dtype) -> Kinds:
    """With what ``explicit.extra_to_save`` keeps: for relu, the output."""
    kept = {"": None, "relu": dtype, "silu": kinds.extra}[plan.act]
    return kinds._replace(extra=kept, through=kinds.extra is not None and plan.act != "")


def _present(*launchers: Launcher | None) -> tuple[Launcher, ...]:
    return tuple(launcher for launcher in launchers if launcher is not None)


def _places(packing: Packing, tensor: Tensor, stream: int | None) -> Sequence:
    return packing.cut(tensor) if stream is None else packing.addresses(tensor)


def _itself(tensor: Tensor) -> Tensor:
    return tensor


def _go(launcher: Launcher, stream: int | None, *places) -> None:
    """Launches with addresses; without a stream, with tensors."""
    if stream is None:
        launcher(*places)
    else:
        launcher.direct(stream, places)  # type: ignore[misc]
