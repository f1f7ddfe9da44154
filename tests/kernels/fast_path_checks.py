"""Layers' training steps by the fast path, against the general path: functions that tests on
a GPU and the interpreter share.
"""

from __future__ import annotations

import copy
from unittest.mock import patch

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import isonorm
from isonorm.layers import fast_path
from tests.kernels.checks import DEVICE, TOLERANCE, relative_error

#: A layer's class and keywords, and whether it is given a residual.
LAYERS = [
    (isonorm.IterNorm, {"group_size": 4}, False),
    (isonorm.IterNorm, {"group_size": 8, "act": "relu", "running": "whitening"}, True),
    (isonorm.IterNorm, {"affine": False, "act": "silu", "momentum": 0.7}, True),
    (isonorm.IterNorm, {"group_size": 2, "act": "identity", "eps": 0.01}, True),
    (isonorm.DBN, {"group_size": 4, "method": "polar"}, False),
    (isonorm.BatchNorm, {"act": "relu"}, False),
    (isonorm.BatchNorm, {"running": "whitening", "track_running_stats": True}, True),
    (isonorm.IterNorm, {"group_size": 4, "track_running_stats": False}, False),
    (isonorm.IterNorm, {"group_size": 3}, False),  # a last group of 2
    (isonorm.IterNorm, {"group_size": 5, "running": "whitening", "act": "relu"}, True),
]


def two_steps(layer, x, dy, residual) -> list[torch.Tensor]:
    """Two steps of training: outputs, gradients and what the layer remembers."""
    found: list[torch.Tensor] = []
    for scale in (1.0, 0.5):
        leaf = (x * scale).detach().requires_grad_()
        added = None if residual is None else residual.detach().clone().requires_grad_()
        y = layer(leaf, residual=added)
        leaves = [leaf, *layer.parameters(), *([] if added is None else [added])]
        found += [y, *torch.autograd.grad(y, leaves, dy)]
    found += [b for b in layer.buffers() if b is not layer.eval_transform]
    return [*found, layer.eval()(x)]


def make(shape, dtype, layout="channels_last", device=DEVICE):
    fmt = torch.channels_last if layout == "channels_last" else torch.contiguous_format
    tensors = [torch.randn(shape, device=device).to(dtype) for _ in range(3)]
    tensors[0] = 2 * tensors[0] + 1
    return [t.contiguous(memory_format=fmt) for t in tensors]


def check_fast_path(number: int, dtype=torch.float32, layout="channels_last") -> None:
    kind, options, with_residual = LAYERS[number]
    x, dy, residual = make((6, 8, 5, 3), dtype, layout)
    residual = residual if with_residual else None
    layer = kind(8, **options, device=DEVICE)
    if layer.weight is not None:
        torch.nn.init.uniform_(layer.weight, 0.5, 1.5)
        torch.nn.init.normal_(layer.bias)
    other = copy.deepcopy(layer)
    got = two_steps(layer, x, dy, residual)
    assert any(layer._answers.values()), "the fast path was not taken"
    nothing = {"train": lambda *_: None, "evaluate": lambda *_: None}
    with patch.multiple(fast_path, **nothing):
        want = two_steps(other, x, dy, residual)
    assert not other._answers
    for g, w in zip(got, want, strict=True):
        assert g.dtype == w.dtype and g.stride() == w.stride()
        # The same formulas, but compiled apart for W, whose last bits may differ.
        assert relative_error(g, w.double()) < TOLERANCE[dtype]


def check_eval(number: int, dtype=torch.float32, layout="channels_last") -> None:
    """The kernel's eval against the general path's, which a wanted gradient still takes."""
    kind, options, with_residual = LAYERS[number]
    x, _, residual = make((6, 8, 5, 3), dtype, layout)
    residual = residual if with_residual else None
    layer = kind(8, **options, device=DEVICE)
    layer(x, residual=residual)
    layer.eval()
    answers = dict(layer._answers)
    y = layer(x.clone().requires_grad_(), residual=residual)
    keeps = layer.running_mean is not None
    assert y.requires_grad and (layer._answers == answers or not keeps)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            got = layer(x, residual=residual)
        assert layer._answers != answers, "the kernel was not taken"
        assert got.dtype == y.dtype and got.stride() == y.stride()
        assert relative_error(got, y.double()) < TOLERANCE[dtype]
    with torch.no_grad():
        layer(x, residual=residual)
        for buffer in layer.buffers():  # whoever writes to a statistic changes the next output
            buffer.mul_(2)
        want = layer(x.double(), residual=None if residual is None else residual.double())
        assert relative_error(layer(x, residual=residual), want) < TOLERANCE[dtype]


def check_what_changes() -> None:
    """A layer's momentum, precision, parameters and input may change between steps."""
    layer = isonorm.IterNorm(8, group_size=4, device=DEVICE)
    x, dy, _ = make((6, 8, 5, 3), torch.float32)
    before = layer.running_cov._version
    layer(x)
    assert layer.running_cov._version > before, "whoever watches the buffers sees them change"
    cov, mean = layer.running_cov.clone(), layer.running_mean.clone()
    layer.momentum = 0.0
    layer(x)
    assert torch.equal(layer.running_cov, cov) and int(layer.num_batches_tracked) == 2
    layer.momentum = 1.0  # the batch's own, whatever was before
    layer.running_mean.fill_(1e9)
    layer(x)
    torch.testing.assert_close(layer.running_mean, x.mean((0, 2, 3)))
    mean = layer.running_mean.clone()
    layer.momentum = None  # a cumulative average: only the general path has it
    layer(2 * x)
    assert not torch.equal(layer.running_mean, mean)
    shifted = torch.randn(x.numel() + 1, device=DEVICE)[1:].view(6, 8, 5, 3)  # not aligned to 16
    for odd in (shifted, x[:, :, ::2], x.expand(6, 8, 5, 3)[:1]):
        with patch.object(fast_path, "train", lambda *_: None):
            want = copy.deepcopy(layer)(odd)
        torch.testing.assert_close(layer(odd), want)
    layer.weight = torch.nn.Parameter(torch.rand(8, device=DEVICE, dtype=torch.float64))
    y = layer(x.requires_grad_())
    grads = torch.autograd.grad(y, [layer.weight, layer.bias], dy)
    assert [g.dtype for g in grads] == [torch.float64, torch.float32]
    with pytest.raises(ValueError, match="8 channels"):
        layer(torch.randn(4, 6, 2, 2, device=DEVICE))
    with pytest.raises(ValueError, match="residual must have the input's shape"):
        layer(x, residual=x[:2])
    with pytest.raises(ValueError, match="more than one value"):
        layer(torch.randn(1, 8, device=DEVICE))


def check_what_is_replaced() -> None:
    """Parameters and buffers of other shapes and strides, another operation, a subclass: whatever
    the general path makes of them, after steps by the fast path.
    """
    x, *_ = make((6, 8, 5, 3), torch.float32)

    def trained(kind=isonorm.IterNorm, **options):
        layer = kind(8, group_size=4, device=DEVICE, **options)
        layer(x)
        assert any(layer._answers.values()) == (kind is isonorm.IterNorm)
        return layer

    layer = trained()
    twice = torch.stack([layer.running_mean, layer.running_mean], 1)
    layer.running_mean = twice[:, 0]
    layer(x)
    want = trained()
    want(x)
    torch.testing.assert_close(layer.running_mean, want.running_mean)
    assert torch.equal(twice[:, 1], trained().running_mean), "the gaps are someone else's"

    layer = trained()
    layer.operation = isonorm.operation.whiten("newton", 1)
    torch.testing.assert_close(layer(x), trained(num_iters=1)(x))

    layer = trained()
    layer.weight = torch.nn.Parameter(torch.ones(4, device=DEVICE))
    with pytest.raises(ValueError, match="weight must have shape"):
        layer(x)
    layer = trained()
    layer.running_mean = torch.zeros(2, device=DEVICE)
    with pytest.raises(RuntimeError, match="running_mean must be a tensor of shape"):
        layer(x)
    for name, value in (("act", "tanh"), ("eps", -1.0)):
        layer = trained()
        setattr(layer, name, value)
        with pytest.raises(ValueError, match=f"{name} must be"):
            layer(x)

    class Doubled(isonorm.IterNorm):
        @property
        def recovery(self):
            return isonorm.recovery.Affine(2 * self.weight, self.bias)

    torch.testing.assert_close(trained(Doubled)(x), 2 * trained()(x))


def check_saved_tensors() -> None:
    """Hooks on saved tensors may give them back in another format, as save_on_cpu does with pinned
    memory.
    """
    hooks = torch.autograd.graph.saved_tensors_hooks(torch.Tensor.contiguous, lambda t: t)
    for act in (None, "relu", "silu"):
        layer = isonorm.IterNorm(4, group_size=2, act=act, device=DEVICE)
        x, dy, residual = make((5, 4, 3, 2), torch.float32)
        leaves = [x.requires_grad_(), layer.weight, layer.bias]
        want = torch.autograd.grad(layer(x, residual), leaves, dy)
        with hooks:
            y = layer(x, residual)
        assert any(layer._answers.values()), "the fast path was not taken"
        for g, w in zip(torch.autograd.grad(y, leaves, dy), want, strict=True):
            torch.testing.assert_close(g, w)


def check_negated(device=DEVICE) -> None:
    """Numbers that torch keeps as their negatives, as those of ``z.conj().imag`` are."""
    layer = isonorm.IterNorm(4, group_size=2, act="silu", device=device)
    given = make((5, 4, 3, 2), torch.float32, device=device)

    def step(x, dy, residual) -> list[torch.Tensor]:
        leaves = [x.detach().requires_grad_(), residual.detach().requires_grad_()]
        y = layer(*leaves)
        return [y, *torch.autograd.grad(y, [*leaves, layer.weight, layer.bias], dy)]

    want = step(*given)
    for number in range(len(given)):
        negated = [torch._neg_view(-t) if i == number else t for i, t in enumerate(given)]
        assert negated[number].is_neg()
        for g, w in zip(step(*negated), want, strict=True):
            torch.testing.assert_close(g, w)


def check_odd_parameters() -> None:
    """Parameters and statistics that are negated, subclassed or differentiated, after steps with
    plain ones: what the reference makes of them.
    """

    class Wrapped(torch.Tensor):
        pass

    layer = isonorm.IterNorm(8, group_size=4, device=DEVICE)
    x, *_ = make((6, 8, 5, 3), torch.float32)

    def call(name: str, value, training: bool) -> list[torch.Tensor]:
        other = copy.deepcopy(layer)
        with torch.no_grad():
            other(x)
            other.train(training)(x)
            y = torch.func.functional_call(other, {name: value}, x)
        return [y, *([value] if training and name.startswith("running") else [])]

    cov = torch.eye(4, device=DEVICE).repeat(2, 1, 1) * 3
    values = {"weight": torch.rand(8), "bias": torch.rand(8), "running_mean": torch.rand(8)}
    for name, value in {**values, "running_cov": cov}.items():
        for training in (True, False):
            given = value.to(DEVICE)
            with isonorm.backend("reference"):
                want = call(name, given.clone(), training)
            for odd in (torch._neg_view(-given), given.clone().as_subclass(Wrapped)):
                for g, w in zip(call(name, odd, training), want, strict=True):
                    assert torch.allclose(g, w, rtol=1e-3, atol=1e-4)
    layer.eval().requires_grad_(False)
    dy, slopes = torch.randn_like(x), []
    for name in ("auto", "reference"):
        leaf = values["running_mean"].to(DEVICE).requires_grad_()
        with isonorm.backend(name):
            y = torch.func.functional_call(layer, {"running_mean": leaf}, x)
        slopes += torch.autograd.grad(y, leaf, dy)
    torch.testing.assert_close(*slopes, rtol=1e-3, atol=1e-3)


def check_residuals() -> None:
    """Residuals of other dtypes are refused in training and in eval alike, before anything runs."""
    layer = isonorm.IterNorm(8, group_size=4, device=DEVICE)
    x, *_ = make((6, 8, 5, 3), torch.float32)
    layer(x, residual=x)
    for training in (True, False):
        layer.train(training)
        before = copy.deepcopy(layer.state_dict())
        for dtype in (torch.bool, torch.int32, torch.complex64):
            with torch.no_grad(), pytest.raises(TypeError, match="residual must be floating-point"):
                layer(x, residual=x.to(dtype))
        for name, value in layer.state_dict().items():
            assert torch.equal(value, before[name]), name


def check_transforms() -> None:
    """Higher derivatives, checkpointing and torch.func see the same function."""
    layer = isonorm.IterNorm(4, group_size=2, momentum=1.0, device=DEVICE)
    x, dy, v = make((5, 4, 3, 2), torch.float32)

    def product(way) -> torch.Tensor:
        leaf = x.clone().requires_grad_()
        with way:
            (dx,) = torch.autograd.grad(layer(leaf), leaf, dy, create_graph=True)
        return torch.autograd.grad(dx, leaf, v)[0]

    general = patch.object(fast_path, "train", lambda *_: None)
    torch.testing.assert_close(product(torch.enable_grad()), product(general))
    leaf = x.clone().requires_grad_()
    batches = int(layer.num_batches_tracked)
    y = checkpoint(layer, leaf, use_reentrant=False)
    (dx,) = torch.autograd.grad(y, leaf, dy)
    assert int(layer.num_batches_tracked) == batches + 1
    (want,) = torch.autograd.grad(layer(leaf), leaf, dy)
    torch.testing.assert_close(dx, want)
    batched = torch.autograd.grad(layer(leaf), leaf, torch.stack([dy, v]), is_grads_batched=True)[0]
    torch.testing.assert_close(batched[0], dx, rtol=1e-4, atol=1e-5)


def check_operators() -> None:
    """Schema, fakes and autograd of the operators that a compiler sees."""
    from isonorm import area, operation
    from isonorm.kernels.plan import make_plan

    for act, with_residual in (("", False), ("relu", True)):
        layer = isonorm.IterNorm(4, group_size=2, act=act or None, device=DEVICE)
        x, dy, residual = make((5, 4, 3, 2), torch.float32)
        plan = make_plan(area.batch(2), operation.whiten("newton", 5), layer.eps, "", "triton", act)
        leaves = [x.requires_grad_(), layer.weight, layer.bias, residual.requires_grad_()]
        arguments = (*leaves[:3], leaves[3] if with_residual else None, plan.encode())
        torch.library.opcheck(torch.ops.isonorm.train.default, arguments)
        wanted = leaves if with_residual else leaves[:3]
        y, _ = torch.ops.isonorm.train(*arguments)
        eager = layer(x, residual=arguments[3])
        torch.testing.assert_close(y, eager)
        for a, b in zip(
            torch.autograd.grad(y, wanted, dy), torch.autograd.grad(eager, wanted, dy), strict=True
        ):
            torch.testing.assert_close(a, b)


def check_compiled(backend: str) -> None:
    """A compiled layer trains like an eager one, its running statistics included."""
    torch.compiler.reset()
    x, dy, residual = make((6, 8, 5, 3), torch.float32)
    results = []
    for wrap in (lambda m: m, lambda m: torch.compile(m, fullgraph=True, backend=backend)):
        layer = isonorm.IterNorm(8, group_size=4, act="relu", device=DEVICE)
        leaf = x.clone().requires_grad_()
        y = wrap(layer)(leaf, residual=residual)
        grads = torch.autograd.grad(y, [leaf, layer.weight, layer.bias], dy)
        results.append((y, *grads, layer.running_mean, layer.running_cov))
    for eager, compiled in zip(*results, strict=True):
        torch.testing.assert_close(compiled, eager)
