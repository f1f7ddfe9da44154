"""A layer beside ``nn.BatchNorm``: both are treated alike, and must compute and become the same.

Where the layers here differ from torch's on purpose, in this place and nowhere else:

- Running statistics stay in float32 in a layer of 16 bits, and a layer takes inputs of any floating
  dtype. Torch's layer therefore computes in float64 here, from the same rounded numbers.
- A call that raises changes nothing, where torch's has counted the batch already.
- An empty batch is not counted, where torch's is; statistics stay as they were in both. Torch's
  layer takes it in eval also with one of the two statistics.
- Without ``num_batches_tracked``, ``momentum=None`` raises in training, where torch's layer
  averages with weight 0.
- Resetting resets what is there; where statistics, their count or the weight were taken away,
  torch's raises.
- The number of channels is always checked; torch's layer may do without, if nothing depends on it.
- ``running_mean = None`` alone takes all statistics away: code for torch's layers also sets a
  ``running_var``, which is no buffer here. Without them, batches are not counted.
- Loading only one of the two statistics also warns.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

#: The buffer here that holds torch's, which is (C,).
BUFFERS = {
    "running_mean": "running_mean",
    "running_var": "running_cov",
    "num_batches_tracked": "num_batches_tracked",
}
SINGLE = torch.finfo(torch.float32).eps
REFUSALS = (RuntimeError, ValueError, TypeError, AttributeError)


class Call(NamedTuple):
    """An input, and how a layer is called with it."""

    batch: int
    scale: float
    mean: float
    dtype: torch.dtype
    mode: str  # "grad", "no_grad", "inference_mode", "autocast", "functional_call"
    strided: bool
    step: bool  # whether the parameters move along their gradients


class Pair:
    """A layer and torch's, with methods that do the same to both."""

    def __init__(self, ours: nn.Module, theirs: nn.Module, positions: tuple[int, ...]) -> None:
        self.ours, self.theirs = ours, theirs.double()
        self.positions = positions
        self.dtype = torch.float32  # of the parameters here
        self.largest_mean, self.largest_var = 1.0, 1.0  # that rounding errors are relative to

    def both(self, act: Callable[[nn.Module], Any]) -> list[Any]:
        """Return what an act gives for torch's layer and for ours; both raise, or neither does."""
        got: list[Any] = []
        for layer in (self.theirs, self.ours):
            try:
                got.append(act(layer))
            except REFUSALS as error:
                got.append(error)
        raised = [isinstance(value, Exception) for value in got]
        assert raised[0] == raised[1], f"torch: {got[0]!r}; here: {got[1]!r}"
        return got

    def rounded(self, *shape: int) -> Tensor:
        """Return random float64 numbers that the parameters' dtype holds exactly."""
        return torch.randn(shape, dtype=torch.float64).to(self.dtype).double()

    def parameters(self) -> list[tuple[nn.Parameter, nn.Parameter]]:
        return list(zip(self.theirs.parameters(), self.ours.parameters(), strict=True))

    @torch.no_grad()
    def assign(self, values: list[Tensor]) -> None:
        """Write values into the parameters of both."""
        for (theirs, ours), value in zip(self.parameters(), values, strict=True):
            theirs.copy_(value.to(self.dtype))
            ours.copy_(value)

    def buffers(self) -> list[tuple[str, Tensor | None, Tensor | None]]:
        """Return torch's buffers and ours, reshaped, by torch's names."""
        pairs = []
        for theirs, ours in BUFFERS.items():
            buffer = getattr(self.ours, ours)
            flat = buffer
            if theirs == "running_var":
                taken = buffer is None or self.ours.running_mean is None
                flat = None if taken else buffer.flatten()
            pairs.append((theirs, getattr(self.theirs, theirs), flat))
        return pairs

    @property
    def is_whole(self) -> bool:
        """Whether both statistics are there, or neither."""
        return (self.theirs.running_mean is None) == (self.theirs.running_var is None)

    def check_state(self) -> None:
        """Assert that parameters, buffers and settings agree."""
        for name, theirs in self.theirs._parameters.items():
            ours = self.ours._parameters[name]
            assert (theirs is None) == (ours is None), name
            if theirs is not None and ours is not None:
                assert torch.equal(theirs, ours.double()), name
                assert theirs.requires_grad == ours.requires_grad, name
                assert ours.dtype == self.dtype, name
        scales = {"running_mean": self.largest_mean, "running_var": self.largest_var}
        for name, theirs, ours in self.buffers():
            assert (theirs is None) == (ours is None), name
            if theirs is not None and ours is not None:
                close(ours, theirs, 50 * SINGLE * scales.get(name, 0.0), name)
        for name in ("training", "momentum", "eps", "track_running_stats"):
            assert getattr(self.ours, name) == getattr(self.theirs, name), name

    def forward(self, call: Call) -> None:
        """Call both layers; compare outputs and the gradients of a random cotangent."""
        shape = (call.batch, self.theirs.num_features, *self.positions)
        x = (call.scale * torch.randn(shape, dtype=torch.float64) + call.mean).to(call.dtype)
        cotangent = torch.randn(shape, dtype=torch.float64).to(call.dtype).double()
        before, replaced = copy.deepcopy(self.theirs), self._replaced(call)
        averages = self.theirs.training and self.theirs.track_running_stats
        averages = averages and self.theirs.running_mean is not None
        uncounted = self.theirs.num_batches_tracked is None and self.theirs.momentum is None
        if averages and uncounted and call.batch:
            return refuses(self.ours, x)
        if not call.batch and not self.is_whole:
            return None

        def act(layer: nn.Module) -> tuple[Tensor, list[Tensor]]:
            given = x.double() if layer is self.theirs else _laid_out(x, call.strided)
            return _run(layer, given, cotangent, call.mode, replaced[layer is self.theirs])

        theirs, ours = self.both(act)
        if isinstance(theirs, Exception) or not call.batch:
            self.theirs = before
        if isinstance(theirs, Exception):
            return
        assert ours[0].dtype == call.dtype
        self._compare(call, x.double(), cotangent, theirs, ours, replaced)
        if call.step and len(theirs[1]) == 1 + len(self.parameters()):
            moved = zip(self.parameters(), theirs[1][1:], strict=True)
            self.assign([p.detach() - 0.1 * g / (1 + g.abs().max()) for (p, _), g in moved])

    def _replaced(self, call: Call) -> list[dict[str, Tensor]]:
        """Return what a functional call puts in the place of our tensors, and of torch's."""
        if call.mode != "functional_call":
            return [{}, {}]
        theirs = {k: self.rounded(*v.shape) for k, v in self.theirs.named_parameters()}
        ours = {k: v.to(self.dtype) for k, v in theirs.items()}
        for name, buffer, own in self.buffers():
            if buffer is not None and own is not None:
                theirs[name] = buffer + 1
                wide = getattr(self.ours, BUFFERS[name])
                ours[BUFFERS[name]] = (buffer + 1).to(wide.dtype).view(wide.shape)
        for tensors in (ours, theirs):
            for name in ("weight", "bias"):
                if name in tensors:
                    tensors[name].requires_grad_()
        return [ours, theirs]

    def _compare(self, call: Call, x: Tensor, cotangent: Tensor, theirs, ours, replaced) -> None:
        """Compare outputs and gradients, to 50 roundings of the largest number in each sum."""
        if x.numel() == 0:
            return assert_equal_shapes(theirs, ours)
        axes = [0, *range(2, x.dim())]
        mean, var = x.mean(axes), x.var(axes, correction=0)
        values = {**dict(self.theirs.named_buffers()), **replaced[1]}
        if not self.theirs.training and "running_var" in values:
            mean, var = values["running_mean"], values["running_var"]
        if self.theirs.training:
            spread = var.max().item() ** 0.5 + x.abs().max().item()
            self.largest_mean = max(self.largest_mean, x.abs().max().item())
            self.largest_var = max(self.largest_var, spread**2)
        rstd = (var.min() + self.theirs.eps).rsqrt().item()
        amplified = 1 + rstd * (x.abs().max() + mean.abs().max()).item()
        unit = torch.finfo(ours[0].dtype).eps
        narrow = torch.finfo(self.dtype).eps
        computed = max(min(unit, SINGLE), min(narrow, SINGLE))
        if not self.theirs.training:  # statistics may have been float32
            computed = SINGLE
        error = 50 * (unit + computed * amplified)
        gain = values.get("weight", dict(self.theirs.named_parameters()).get("weight"))
        gain = 1.0 if gain is None else gain.abs().max().item()
        close(ours[0], theirs[0], error * max(gain, theirs[0].abs().max().item()), "output")
        summed = cotangent.abs().sum().item() * amplified
        scales = [cotangent.abs().max().item() * gain * rstd, summed, summed]
        names = ("input", "first parameter", "second parameter")
        for i, (a, b) in enumerate(zip(ours[1], theirs[1], strict=True)):
            bound = max(scales[i], b.abs().max().item()) * (error + (narrow if i else 0.0))
            close(a, b, bound, f"gradient of the {names[i]}")
        for name, value in replaced[1].items():  # a functional call writes to these buffers
            if name in BUFFERS:
                flat = replaced[0][BUFFERS[name]].detach().reshape(value.shape)
                largest = {"running_mean": self.largest_mean, "running_var": self.largest_var}
                close(flat, value.detach(), 50 * SINGLE * largest.get(name, 0.0), name)


def close(got: Tensor, expected: Tensor, bound: float, name: str) -> None:
    def message(text: str) -> str:
        return f"{name}: {text}"

    got, expected = got.detach().double(), expected.detach().double()
    torch.testing.assert_close(got, expected, rtol=0, atol=bound, equal_nan=True, msg=message)


def assert_equal_shapes(theirs, ours) -> None:
    pairs = itertools.zip_longest([theirs[0], *theirs[1]], [ours[0], *ours[1]])
    assert all(a.shape == b.shape for a, b in pairs)


def refuses(layer: nn.Module, x: Tensor) -> None:
    """Assert that a forward raises one of the usual errors."""
    try:
        layer(x)
    except REFUSALS:
        return
    raise AssertionError("not refused")


def _laid_out(x: Tensor, strided: bool) -> Tensor:
    """Return the input as it lies, or spread over memory with gaps, the axes reversed."""
    if not strided:
        return x
    reversed_axes = list(reversed(range(x.dim())))
    room = x.new_zeros([2 * n for n in reversed(x.shape)])
    view = room[tuple(slice(None, None, 2) for _ in x.shape)].permute(reversed_axes)
    return view.copy_(x)


def _run(
    layer: nn.Module, x: Tensor, cotangent: Tensor, mode: str, replaced: dict[str, Tensor]
) -> tuple[Tensor, list[Tensor]]:
    """Return a layer's output, and the gradients of its input and of its parameters."""
    context: Any = {
        "no_grad": torch.no_grad,
        "inference_mode": torch.inference_mode,
        "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    }.get(mode, nullcontext)
    x = x.detach().requires_grad_(mode not in ("no_grad", "inference_mode"))
    with context():
        y = torch.func.functional_call(layer, replaced, (x,)) if replaced else layer(x)
    if not y.requires_grad:
        return y, []
    tensors = [v for v in replaced.values() if v.requires_grad] or list(layer.parameters())
    inputs = [x, *(p for p in tensors if p.requires_grad)]
    return y, list(torch.autograd.grad(y, inputs, cotangent.to(y.dtype)))
