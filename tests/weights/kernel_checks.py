"""The equilibrium kernels against float64, by functions that a GPU and the interpreter share."""

from __future__ import annotations

import copy

import torch
from torch import nn

from isonorm import EquiConv2d, backend
from isonorm.kernels.choice import INTERPRETING
from isonorm.weights.balance import balanced_kernel
from isonorm.weights.equilibrium import normalize_kernel

DEVICE = "cpu" if INTERPRETING else "cuda"
#: What compiles for it.
BACKEND = "aot_eager" if INTERPRETING else "inductor"
#: Relative to the largest element: the rounding of the output, and for float32 that of sums.
TOLERANCE = {torch.bfloat16: 8e-3, torch.float16: 1e-3, torch.float32: 2e-5}
R = 7

#: (shape of w, groups): odd sizes; more channels than a tile holds; one weight; one position.
SHAPES = [
    ((5, 3, 3, 3), 1),
    ((6, 2, 5), 3),
    ((4, 37), 1),
    ((4, 6, 2, 3, 2), 2),
    ((3, 300, 5, 3), 1),
    ((3, 1, 3, 3), 3),
]
#: (w, v) that meet each fallback of the reference.
FALLBACKS = {
    "no-input": ([[1.0, 2.0, -1.0, -3.0]], [0.0] * 4),
    "channels-that-cancel": ([[1.0, 2.0, -1.0, -3.0]], [1.0, -1.0, 2.0, -2.0]),
    "negative-channels": ([[1.0, 2.0, -1.0, -3.0]], [-1.0, -1.0, 0.2, 0.0]),
    "dead-channels": ([[1.0, 2.0, -1.0, -3.0]], [0.0, 0.0, 1.0, 0.5]),
    "positive-weights": ([[1.0, 2.0, 1.0, 3.0]], [1.0, 2.0, 3.0, 4.0]),
    "negative-weights": ([[-1.0, -2.0, -1.0, -3.0]], [1.0, 2.0, 3.0, 4.0]),
    "zero-weights": ([[0.0] * 4], [1.0, 2.0, 3.0, 4.0]),
}


def agree(found, expected, tolerance) -> None:
    for a, b in zip(found, expected, strict=True):
        atol = tolerance * b.abs().max().item()
        torch.testing.assert_close(a.double(), b, rtol=0, atol=atol, equal_nan=True)


def compare(w, v, gamma, groups, single_pass, tolerance) -> None:
    """Kernel and gradients against the reference's in float64."""
    given = [t.requires_grad_() for t in (w, v, gamma) if t is not None]
    kernel = balanced_kernel(w, v, R, gamma, groups=groups, single_pass=single_pass)
    assert "_Kernels" in type(kernel.grad_fn).__name__
    assert kernel.dtype == w.dtype and kernel.stride() == w.stride()
    cotangent = torch.randn_like(kernel)
    wide = [t.detach().double().requires_grad_() for t in given]
    exact = normalize_kernel(
        wide[0], wide[1] / R, *wide[2:], groups=groups, single_pass=single_pass
    )
    expected = torch.autograd.grad(exact, wide, cotangent.double())
    agree([kernel], [exact], tolerance)
    agree(torch.autograd.grad(kernel, given, cotangent), expected, 4 * tolerance)


def draw(shape, groups, dtype, channels_last):
    w = torch.randn(shape, device=DEVICE).to(dtype)
    if channels_last:
        w = w.movedim(1, -1).contiguous().movedim(-1, 1)
    v = 9 * torch.rand(groups * shape[1], device=DEVICE)
    return w, v, torch.randn(shape[0], device=DEVICE).to(dtype)


def check_kernels(shape, groups, single_pass, dtype, channels_last) -> None:
    w, v, gamma = draw(shape, groups, dtype, channels_last)
    compare(w, v, gamma, groups, single_pass, TOLERANCE[dtype])
    compare(w.detach(), v.detach(), None, groups, single_pass, TOLERANCE[dtype])
    frozen = balanced_kernel(w, v.detach(), R, gamma, groups=groups, single_pass=single_pass)
    cotangent = torch.randn_like(frozen)
    moved = balanced_kernel(w, v, R, gamma, groups=groups, single_pass=single_pass)
    found = torch.autograd.grad(frozen, (w, gamma), cotangent)
    for a, b in zip(found, torch.autograd.grad(moved, (w, gamma), cotangent), strict=True):
        assert torch.equal(a, b)


def check_fallbacks(single_pass) -> None:
    for w, v in FALLBACKS.values():
        w, v = (torch.tensor(t, device=DEVICE) for t in (w, v))
        compare(w.unsqueeze(-1), v, torch.tensor([1.7], device=DEVICE), 1, single_pass, 1e-4)
    w, v, gamma = draw((4, 3, 3), 1, torch.float32, False)
    v[1] = torch.nan
    assert balanced_kernel(w, v, R, gamma, single_pass=single_pass).isnan().all()


def check_layer(**options) -> None:
    """Two steps of a layer on the kernels and on the reference: the same outputs, gradients and
    running statistics; and its double backward.
    """
    layer = EquiConv2d(5, 6, 3, padding=1, device=DEVICE, **options)
    other = copy.deepcopy(layer)
    for _ in range(2):
        x = torch.rand(4, 5, 6, 7, device=DEVICE, requires_grad=True)
        y = layer(x)
        cotangent = torch.randn_like(y)
        found = torch.autograd.grad(y, (x, *layer.parameters()), cotangent, create_graph=True)
        again = torch.autograd.grad(y, (x, *layer.parameters()), cotangent, retain_graph=True)
        with backend("reference"):
            z = other(x)
            expected = torch.autograd.grad(
                z, (x, *other.parameters()), cotangent, create_graph=True
            )
        # Convolutions of float32 are TF32 on a GPU, on kernels that differ in their last bit.
        for a, b, c in zip(found, again, expected, strict=True):
            torch.testing.assert_close(a, c, rtol=5e-3, atol=5e-3)
            torch.testing.assert_close(b, c, rtol=5e-3, atol=5e-3)
        torch.testing.assert_close(y, z, rtol=5e-3, atol=5e-3)
        direction = torch.randn_like(x)
        (second,) = torch.autograd.grad((found[0] * direction).sum(), layer.weight)
        (wanted,) = torch.autograd.grad((expected[0] * direction).sum(), other.weight)
        torch.testing.assert_close(second, wanted, rtol=2e-2, atol=2e-2)
    state = layer.state_dict()
    assert state["num_batches_tracked"] == 2
    torch.testing.assert_close(state, other.state_dict())


def check_compiled(dtype: torch.dtype, **options) -> None:
    """Two layers compiled in one graph, with the operator inside: eager mode's outputs, gradients
    and running statistics; in eval without a gradient torch's operators alone.
    """
    layers = nn.Sequential(
        EquiConv2d(5, 6, 3, padding=1, **options), nn.ReLU(), EquiConv2d(6, 4, 3, groups=2)
    )
    model = layers.to(DEVICE, dtype)
    other, targets = copy.deepcopy(model), []

    def look(graph, inputs):
        targets.extend(str(node.target) for node in graph.graph.nodes)
        return graph.forward

    for batch in (4, 7):
        x = torch.rand(batch, 5, 6, 7, device=DEVICE, dtype=dtype, requires_grad=True)
        compiled = torch.compile(model, fullgraph=True, backend=BACKEND)
        y, z = compiled(x), other(x)
        cotangent = torch.randn_like(y)
        found = torch.autograd.grad(y, (x, *model.parameters()), cotangent)
        expected = torch.autograd.grad(z, (x, *other.parameters()), cotangent)
        # Convolutions of float32 are TF32 on a GPU, on kernels that differ in their last bit.
        for a, b in zip((y, *found), (z, *expected), strict=True):
            torch.testing.assert_close(a, b, rtol=5e-3, atol=5e-3)
    torch.testing.assert_close(model.state_dict(), other.state_dict())
    torch.compile(model, fullgraph=True, backend=look)(x)
    assert any("isonorm.equilibrium" in target for target in targets), targets
    targets.clear()
    with torch.no_grad():
        torch.compile(model.eval(), fullgraph=True, backend=look)(x)
    assert targets and not any("isonorm" in target for target in targets), targets


def check_operator() -> None:
    """The operator as torch's own checks see it, where kernels take it and where they do not."""
    for dtype, through_v, scaled in (
        (torch.float32, True, True),
        (torch.float32, False, False),
        (torch.float64, True, False),
        (torch.float64, False, True),
    ):
        w, v, gamma = draw((4, 3, 3, 3), 2, dtype, True)
        w, gamma, v = w.requires_grad_(), gamma.requires_grad_(), v.requires_grad_(through_v)
        scales = gamma if scaled else None
        torch.library.opcheck(torch.ops.isonorm.equilibrium.default, (w, v, scales, 2, True, R))
