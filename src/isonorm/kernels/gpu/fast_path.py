"""A step of the ordinary layer, in training and in eval, with the least work on the host.

A small layer's kernels take less time than Python needs for tensors, views and checks. Here the
same kernels as in ``steps`` run for one block of channels that has statistics of its own over the
batch, and a kernel for its root. What forward keeps lies in one tensor, cut by addresses; running
averages are the root kernel's business; nothing is asked twice of the same shape.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...area import flat
from ..plan import Packing, Plan
from .launch import ALIGNMENT, Chain, Launcher, raw_stream
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
        kinds = kinds._replace(rest=False)
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
        self.kernel(x, y, w, mean, mean, *given)
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
        solved_by = run.root if averaged is None else averaging(run.root, *averaged)
        # Slots of what ``forward`` and ``backward`` give their first chains.
        solve = run.to_solve(1, 2, 3, 4, 5, 6, None if averaged is None else (7, 8, 9))
        gain = 5 if kinds.weight is None else 6
        differentiate = back.to_differentiate(4, 3, 10, 5, 11, gain, (12, 13, 14, 15, 16))
        self.solve = _chain((run.moments, (0, 1, 2)), (run.sum_moments, (1,)), (solved_by, solve))
        self.apply = _chain((run.apply, range(8)))
        self.differentiate = _chain(
            (back.sums, range(10)), (back.sum_sums, (4,)), (back.gradients, differentiate)
        )
        self.backward_apply = _chain(
            (back.backward_apply, range(11)), (back.backward_rest, range(11))
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
        keep = x.new_empty(self.kept.size, dtype=torch.float32)
        parts = x.new_empty(self.num_parts, dtype=torch.float32)
        running = averages or ()
        go, at, cut = self._way(
            self.solve.ready and self.apply.ready, x, weight, bias, residual, *running
        )
        p_x = at(x)
        mean, cov, w, memo, rest = cut(self.kept, keep)
        go(self.solve, [p_x, at(parts), mean, rest, cov, w, memo, *map(at, running)])
        del parts  # what is asked for from here on may have its memory
        y = torch.empty_like(x)
        p_weight = p_x if weight is None else at(weight)
        p_bias = p_x if bias is None else at(bias)
        p_residual = p_x if residual is None else at(residual)
        go(self.apply, [p_x, at(y), w, mean, rest, p_weight, p_bias, p_residual])
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
        # Hooks on saved tensors may give them back in another format, as save_on_cpu does.
        x, dy = self.walkable(x), self.walkable(dy)
        extra = None if extra is None else self.walkable(extra)
        sums = x.new_empty(self.num_parts_of_sums, dtype=torch.float32)
        scratch = x.new_empty(self.scratch.size, dtype=torch.float32)
        dweight = x.new_empty(self.back.gain_shape, dtype=torch.float32)
        dbias = x.new_empty(self.back.gain_shape, dtype=torch.float32)
        ready = self.differentiate.ready and self.backward_apply.ready
        go, at, cut = self._way(ready, x, weight, bias, extra, dy, keep)
        p_x, p_dy = at(x), at(dy)
        mean, cov, w, memo, rest = cut(self.kept, keep)
        a, slope, shift = cut(self.scratch, scratch)
        p_weight = p_x if weight is None else at(weight)
        p_bias = p_x if bias is None else at(bias)
        g, p_g = None, p_x
        if self.through:
            g = torch.empty_like(x)
            p_g = at(g)
        p_extra = p_x if extra is None else at(extra)
        given = [p_x, p_dy, mean, rest, at(sums), w, p_weight, p_bias, p_extra, p_g, cov, memo]
        go(self.differentiate, [*given, at(dweight), at(dbias), a, slope, shift])
        del sums, given
        if not wanted:
            return None, dweight, dbias, g
        dx = torch.empty_like(x)
        p_dy = p_dy if g is None else p_g
        places = [p_x, p_dy, at(dx), a, slope, mean, rest, shift, w, p_weight, p_bias]
        go(self.backward_apply, places)
        return dx, dweight, dbias, g

    def walkable(self, t: Tensor) -> Tensor:
        """Kernels walk every activation by the same strides."""
        if t.stride() == self.stride:
            return t
        return torch.empty_strided(t.shape, self.stride, dtype=t.dtype, device=t.device).copy_(t)

    def _way(self, ready: bool, *given: Tensor | None) -> tuple[Any, Any, Any]:
        """Return how to launch a chain, how to name a tensor, and how to name the parts of a packed
        one: by addresses where all kernels are compiled and everything given is aligned, else by
        tensors.
        """
        bits = 0 if ready else 1
        for tensor in given:
            if tensor is not None:
                bits |= tensor.data_ptr()
        if bits % ALIGNMENT:
            return Chain.__call__, _itself, Packing.cut
        return partial(_launch, raw_stream(self.device)), Tensor.data_ptr, Packing.addresses


def _launch(stream: int, chain: Chain, addresses: list[int]) -> None:
    chain.launch(stream, addresses)


def _chain(*steps: tuple[Launcher | None, Iterable[int]]) -> Chain:
    """Return a chain of those launchers that there are."""
    return Chain(*((kernel, tuple(slots)) for kernel, slots in steps if kernel is not None))


def _kinds_of_backward(kinds: Kinds, plan: Plan, dtype: torch.dtype) -> Kinds:
    """With what ``explicit.extra_to_save`` keeps: for relu, the output."""
    kept = {"": None, "relu": dtype, "silu": kinds.extra}[plan.act]
    return kinds._replace(extra=kept, through=kinds.extra is not None and plan.act != "")


def _itself(tensor: Tensor) -> Tensor:
    return tensor
