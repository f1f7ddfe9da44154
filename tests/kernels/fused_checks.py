"""Activation, residual and coloring inside the kernels, against their composition in float64."""

from __future__ import annotations

import torch

import isonorm
from isonorm import area, operation
from isonorm.kernels import autograd
from isonorm.kernels.plan import make_plan
from isonorm.recovery import Affine, Coloring
from tests.kernels.checks import DEVICE, EXACT_TOLERANCE, TOLERANCE, make_inputs, relative_error

COLORED = [
    (area.batch(5), operation.whiten("newton", 5), None),
    (area.instance(5), operation.whiten("newton", 5), "silu"),
    (area.batch(4), operation.whiten("cholesky"), "relu"),
]
FUSED = [("relu", False), ("relu", True), ("silu", False), ("silu", True), ("identity", True)]


def check_fused(shape, where, op, dtype, layout, act, with_residual) -> None:
    """An activation and a residual inside the kernels, against the same composed in float64."""
    x, dy, residual, weight, bias = make_inputs(shape, dtype, layout)
    inputs = [t.detach().requires_grad_() for t in (x, weight, bias, residual)]
    if not with_residual:
        del inputs[3]
    options = {"area": where, "operation": op, "eps": 1e-2}
    with isonorm.backend("triton"):
        y, _ = isonorm.functional.normalize(
            inputs[0],
            recovery=Affine(inputs[1], inputs[2]),
            act=act,
            residual=inputs[3] if with_residual else None,
            **options,
        )
    assert y.dtype == dtype and y.stride() == x.stride()
    got = [y, *torch.autograd.grad(y, inputs, dy)]

    exact = [t.detach().double().requires_grad_() for t in inputs]
    with isonorm.backend("torch"):
        s, _ = isonorm.functional.normalize(
            exact[0], recovery=Affine(exact[1], exact[2]), **options
        )
    s = s + exact[3] if with_residual else s
    if act == "relu":  # near zero rounding decides: the gradient must pass where the output did
        want_y = torch.relu(s)
        passed = torch.where(y > 0, s, 0)
    else:
        want_y = passed = torch.nn.functional.silu(s) if act == "silu" else s
    want = [want_y, *torch.autograd.grad(passed, exact, dy.double())]
    names = ("y", "dx", "dγ", "dβ", "dresidual")[: len(got)]
    tolerances = EXACT_TOLERANCE if op.method == "polar" else TOLERANCE
    for name, g, w in zip(names, got, want, strict=True):
        assert relative_error(g, w) < tolerances[dtype], (name, relative_error(g, w))


def check_colored(where, op, act) -> None:
    """A learnable matrix for each group, the last of them shorter, against float64."""
    x, dy, _, _, bias = make_inputs((3, 12, 4, 5), torch.float32, "channels_last")
    groups, size = sum(block.groups for block in where.partition(12)), where.partition(12)[0].size
    color = torch.randn(groups, size, size, device=DEVICE)
    found = []
    for backend, dtype in (("triton", torch.float32), ("torch", torch.float64)):
        leaves = [t.detach().to(dtype).requires_grad_() for t in (x, color, bias)]
        with isonorm.backend(backend):
            y, _ = isonorm.functional.normalize(
                leaves[0],
                area=where,
                operation=op,
                recovery=Coloring(leaves[1], leaves[2]),
                act=act,
                eps=1e-2,
            )
        found.append([y, *torch.autograd.grad(y, leaves, dy.to(dtype))])
    for name, got, want in zip(("y", "dx", "dΓ", "dβ"), *found, strict=True):
        assert relative_error(got, want) < TOLERANCE[torch.float32], name


def check_twice_differentiated(act, with_residual) -> None:
    """A Hessian-vector product through the fused layer, against the composition in float64."""
    found = []
    x, direction, residual, weight, bias = make_inputs((6, 4, 5), torch.float32, "nchw")
    cotangent = torch.randn_like(x)
    for backend, dtype in (("triton", torch.float32), ("torch", torch.float64)):
        leaves = [t.detach().to(dtype).requires_grad_() for t in (x, weight, bias, residual)]
        with isonorm.backend(backend):
            y, _ = isonorm.functional.normalize(
                leaves[0],
                area=area.batch(2),
                operation=operation.whiten("newton", 3),
                recovery=Affine(leaves[1], leaves[2]),
                act=act,
                residual=leaves[3] if with_residual else None,
            )
        wanted = leaves if with_residual else leaves[:3]
        grads = torch.autograd.grad(y, wanted, cotangent.to(dtype), create_graph=True)
        mixed = (grads[0] * direction.to(dtype)).sum() + (grads[-1] * grads[-1]).sum()
        found.append(torch.autograd.grad(mixed, leaves, allow_unused=True))
    for got, want in zip(*found, strict=True):
        want = torch.zeros(()) if want is None else want
        got = torch.zeros(()) if got is None else got
        assert torch.allclose(got.double(), want.double(), rtol=1e-3, atol=1e-3)


def check_fused_operators() -> None:
    """Schema, fakes, autograd and AOT dispatch of the operators with something fused."""
    x, dy, residual, weight, bias = make_inputs((6, 5, 4), torch.float32, "nchw")
    for act, extra in (("relu", True), ("silu", True)):
        plan = make_plan(area.batch(2), operation.whiten("newton", 3), 1e-2, "", "triton", act)
        leaves = [t.detach().requires_grad_() for t in (x, weight, bias, residual)]
        arguments = (*leaves[:3], None, leaves[3] if extra else None, plan.encode())
        torch.library.opcheck(torch.ops.isonorm.normalize.default, arguments)
        y, _ = autograd.run(*leaves[:3], None, plan, leaves[3] if extra else None)
        compiled, *_ = torch.ops.isonorm.normalize(*arguments)
        wanted = leaves if extra else leaves[:3]
        for a, b in zip(
            torch.autograd.grad(y, wanted, dy),
            torch.autograd.grad(compiled, wanted, dy),
            strict=True,
        ):
            torch.testing.assert_close(a, b)
