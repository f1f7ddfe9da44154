"""The Triton kernels against float64, by functions that tests on a GPU and the interpreter share.

They look up ``INTERPRETING`` where they are imported: a process interprets, or has a GPU.
"""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import isonorm
from isonorm import area, operation
from isonorm.kernels import INTERPRETING, autograd
from isonorm.kernels.plan import make_plan
from isonorm.recovery import Affine, Coloring

DEVICE = "cpu" if INTERPRETING else "cuda"
BOTH = ("triton", "torch")

#: Relative error against float64: the rounding of the output (2⁻⁹, 2⁻¹²) and of the operands of
#: each product; for float32 that of its sums, which tensor cores cut off where others round.
TOLERANCE = {torch.bfloat16: 8e-3, torch.float16: 1e-3, torch.float32: 2e-5}
#: Exact roots amplify the rounding of a float32 covariance by its condition number.
EXACT_TOLERANCE = TOLERANCE | {torch.float32: 5e-4}

SHAPES = [
    pytest.param((40, 16), 16, id="no-positions"),
    pytest.param((5, 12, 4, 3), 5, id="remainder-of-2"),
    pytest.param((3, 40, 7, 9), 16, id="odd-positions-half-group-left"),
    pytest.param((7, 5, 6), 2, id="expanded-cotangent-remainder-of-1"),
    pytest.param((6, 20, 9, 9), 20, id="group-not-a-power-of-two"),
]
OPERATIONS = [
    operation.standardize(),
    operation.scale(),
    operation.whiten("newton", 5),
    operation.whiten("newton", 0),
    operation.whiten("polar"),
    operation.whiten("cholesky"),
]


#: Areas beside the batch, with operations that they have.
WITHIN_EXAMPLES = [
    pytest.param(area.instance(5), operation.whiten("newton", 5), id="instance-whitening"),
    pytest.param(area.instance(4), operation.whiten("polar"), id="instance-full-whitening"),
    pytest.param(area.instance(5), operation.whiten("cholesky"), id="instance-cholesky"),
    pytest.param(area.instance(), operation.standardize(), id="instance"),
    pytest.param(area.group(4), operation.whiten("newton", 5), id="group-whitening"),
    pytest.param(area.group(4), operation.standardize(), id="group"),
    pytest.param(area.group(3), operation.scale(), id="group-rms"),
    pytest.param(area.layer(), operation.standardize(), id="layer"),
    pytest.param(area.batch_group(3), operation.standardize(), id="batch-group"),
]

COLORED = [
    (area.batch(5), operation.whiten("newton", 5), None),
    (area.instance(5), operation.whiten("newton", 5), "silu"),
    (area.batch(4), operation.whiten("cholesky"), "relu"),
]
FUSED = [("relu", False), ("relu", True), ("silu", False), ("silu", True), ("identity", True)]


def passes(x, dy, weight, bias, where, op, backend, act=None):
    """y, μ, Σ, dx, dγ and dβ by one backend."""
    inputs = [t.detach().requires_grad_() for t in (x, weight, bias)]
    with isonorm.backend(backend):
        y, statistics = isonorm.functional.normalize(
            inputs[0],
            area=where,
            operation=op,
            recovery=Affine(inputs[1], inputs[2]),
            act=act,
            eps=1e-2,
        )
    return [y, statistics.mean, statistics.cov, *torch.autograd.grad(y, inputs, dy)]


def make_inputs(shape, dtype, layout):
    """An activation with a mean, two more of its shape, γ and β."""
    channels = shape[1]
    broadcast = (1, channels) + (1,) * (len(shape) - 2)
    scale = torch.rand(channels, device=DEVICE).view(broadcast) + 0.5
    x = torch.randn(shape, device=DEVICE) * scale + 3 * scale
    like_x = [x.to(dtype), *(torch.randn(shape, device=DEVICE).to(dtype) for _ in range(2))]
    if layout == "channels_last" and len(shape) == 4:
        like_x = [t.contiguous(memory_format=torch.channels_last) for t in like_x]
    weight, bias = torch.rand(channels, device=DEVICE) + 0.5, torch.randn(channels, device=DEVICE)
    return *like_x, weight, bias


def relative_error(got, want) -> float:
    assert got.shape == want.shape
    return ((got.double() - want).norm() / want.norm().clamp(min=1e-12)).item()


def must_agree(got, want, tolerance, *about) -> None:
    """What ``passes`` gives by a kernel, and in float64."""
    for name, g, w in zip(("y", "mean", "cov", "dx", "dγ", "dβ"), got, want, strict=True):
        assert relative_error(g, w) < tolerance, (name, relative_error(g, w), *about)


def check(shape, where, op, dtype, layout) -> None:
    x, dy, _, weight, bias = make_inputs(shape, dtype, layout)
    dy = dy[:, :, :1].expand_as(x) if len(shape) == 3 else dy  # a cotangent with strides of its own
    got = passes(x, dy, weight, bias, where, op, "triton")
    exact = [t.double() for t in (x, dy, weight, bias)]
    want = passes(*exact, where, op, "torch")
    assert got[0].dtype == dtype and got[0].stride() == x.stride()
    tolerances = EXACT_TOLERANCE if op.method in ("polar", "cholesky") else TOLERANCE
    must_agree(got, want, tolerances[dtype])


def check_large_groups(dtype, layout) -> None:
    """Matrices that take all the registers and the shared memory there are: float32 in two launches
    where it must be accurate ("highest"), and in TF32 or two bfloat16 where not.
    """
    x, dy, _, weight, bias = make_inputs((6, 200, 5, 7), dtype, layout)
    where, op = area.batch(100), operation.whiten("newton", 5)
    want = passes(*(t.double() for t in (x, dy, weight, bias)), where, op, "torch")
    before = torch.get_float32_matmul_precision()
    float32 = dtype == torch.float32
    # "high" rounds operands to TF32's 11 bits
    tolerances = {"high": 1e-3 if float32 else TOLERANCE[dtype]}
    if float32:
        tolerances["highest"] = TOLERANCE[dtype]
    try:
        for precision, tolerance in tolerances.items():
            torch.set_float32_matmul_precision(precision)
            got = passes(x, dy, weight, bias, where, op, "triton")
            must_agree(got, want, tolerance, precision)
    finally:
        torch.set_float32_matmul_precision(before)


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


def check_edges() -> None:
    """One example, none, parameters with strides and dtypes of their own, gaps in the input."""
    newton, standardize = operation.whiten("newton", 3), operation.standardize()
    for shape, where, op in (
        ((1, 5, 4, 5), area.layer(), standardize),
        ((2, 6, 4, 5), area.batch_group(1), standardize),
        ((0, 5, 4, 5), area.layer(), standardize),
        ((0, 5, 4, 5), area.instance(3), newton),
        ((0, 5, 4, 5), area.batch(3), newton),
        ((0, 5, 4, 5), area.batch(3), operation.whiten("polar")),
    ):
        check(shape, where, op, torch.float32, "channels_last")
    x, dy, residual, weight, bias = make_inputs((3, 6, 4, 5), torch.float32, "nchw")
    for where, op in ((area.batch(4), newton), (area.group(3), standardize)):
        parameters = weight[:1].expand(6), torch.stack([bias, bias], 1)[:, 0]
        for chosen in (parameters, (weight.double(), bias.double())):
            got = passes(x, dy, *chosen, where, op, "triton")
            want = passes(*(t.double() for t in (x, dy, *chosen)), where, op, "torch")
            for g, w in zip(got, want, strict=True):
                assert relative_error(g, w) < TOLERANCE[torch.float32]
    with_gaps = torch.stack([x, dy], -1)[..., 0].requires_grad_()
    plan = make_plan(area.batch(4), newton, 1e-2, "", "triton", "silu")
    found = []
    for leaf in (with_gaps, x.clone().requires_grad_()):
        y, *_ = torch.ops.isonorm.normalize(leaf, weight, bias, None, residual, plan.encode())
        found.append([y, *torch.autograd.grad(y, leaf, dy)])
    for g, w in zip(*found, strict=True):
        torch.testing.assert_close(g, w)


def check_formats() -> None:
    """Slices keep the order of their strides, and the shortcut's operator takes what it is given:
    input with gaps, a residual that lies otherwise.
    """
    newton = operation.whiten("newton", 3)
    *images, weight, bias = make_inputs((3, 8, 4, 6), torch.float32, "channels_last")
    for part in (slice(None), slice(4)), (slice(None),) * 2 + (slice(None, None, 2),):
        x, dy, _ = (t[part] for t in images)
        chosen = weight[: x.shape[1]], bias[: x.shape[1]]
        got, want = (passes(x, dy, *chosen, area.batch(4), newton, by) for by in BOTH)
        assert got[0].stride() == want[0].stride() and got[0].stride(1) == 1
        torch.testing.assert_close(got[0], want[0])
        torch.testing.assert_close(got[3], want[3])

    x, dy, residual, weight, bias = make_inputs((3, 8, 4, 6), torch.float32, "nchw")
    plan = make_plan(area.batch(4), newton, 1e-2, "", "triton", "silu").encode()
    with_gaps = torch.stack([x, dy], -1)[..., 0]
    found = []
    for leaf, added in (
        (with_gaps, residual.contiguous(memory_format=torch.channels_last)),
        (x.clone(), residual),
    ):
        y, _ = torch.ops.isonorm.train(leaf.requires_grad_(), weight, bias, added, plan)
        found.append([y, *torch.autograd.grad(y, leaf, dy)])
    for g, w in zip(*found, strict=True):
        torch.testing.assert_close(g, w)


def check_tracers() -> None:
    """Who sees operators alone, and perhaps no numbers, finds the kernels inside one."""
    x = torch.randn(5, 8, 3, 4, device=DEVICE)
    layer = isonorm.IterNorm(8, group_size=4, act="relu").to(DEVICE)
    layer(x)  # so that there is a launch that asks for nothing but addresses
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        assert layer(mode.from_tensor(x)).shape == x.shape

    def normalize(x):
        return isonorm.functional.normalize(x, area=area.batch(4), operation="whiten")[0]

    with isonorm.backend("triton"):
        for mode in ("real", "fake", "symbolic"):
            traced = make_fx(normalize, tracing_mode=mode)(x)
            assert "isonorm.normalize" in traced.code
            torch.testing.assert_close(traced(2 * x), normalize(2 * x))


def check_parameters_alone() -> None:
    """Of input that wants no gradient none is computed."""
    from isonorm.kernels.gpu.express import Express  # where there is Triton

    x, dy, _, weight, bias = make_inputs((5, 12, 4, 3), torch.float32, "nchw")
    want = passes(x, dy, weight, bias, area.batch(4), operation.whiten("newton", 3), "triton")
    layer = isonorm.IterNorm(12, group_size=4, num_iters=3, eps=1e-2).to(DEVICE)
    with torch.no_grad():
        layer.weight.copy_(weight)
        layer.bias.copy_(bias)
    inner, computed = Express.backward, []

    def backward(*args):
        found = inner(*args)
        computed.append(found[0])
        return found

    Express.backward = backward
    try:
        layer(x).backward(dy)
    finally:
        Express.backward = inner
    assert computed == [None]
    torch.testing.assert_close(layer.weight.grad, want[4])
    torch.testing.assert_close(layer.bias.grad, want[5])


def check_gradients_of_full_whitening() -> None:
    """Whatever the eigenvalues: in float32 the polynomials' own derivative can be wrong by 1 % in
    pairs of channels, by bad luck by more.
    """
    worst = 0.0
    for _ in range(12):
        x, dy, _, weight, bias = make_inputs((7, 6, 6), torch.float32, "nchw")
        where, op = area.batch(2), operation.whiten("polar")
        got = passes(x, dy, weight, bias, where, op, "triton")
        want = passes(*(t.double() for t in (x, dy, weight, bias)), where, op, "torch")
        worst = max(worst, relative_error(got[3], want[3]))
    assert worst < 1e-5, worst


def check_range_of_float16() -> None:
    """dΣ is as large as dy/x²: far beyond float16 where x is small, and below it where x is
    large.
    """
    for size in (1e-3, 6e3):
        x, dy, *_ = make_inputs((64, 16), torch.float32, "nchw")
        x = ((x - x.mean(0)) * size).half()
        where, op = area.batch(16), operation.whiten("newton", 7)
        inputs = [t.detach().requires_grad_() for t in (x, x.double())]
        grads = []
        for leaf, backend in zip(inputs, ("triton", "torch"), strict=True):
            with isonorm.backend(backend):
                y, _ = isonorm.functional.normalize(leaf, area=where, operation=op, eps=1e-9)
            grads.append(torch.autograd.grad(y, leaf, (dy * 8).to(leaf.dtype))[0])
        assert relative_error(*grads) < 3e-3, (size, relative_error(*grads))


def check_large_means(dtype) -> None:
    """16-bit input that is multiplied as it lies, far from zero: the mean's share comes off."""
    for where, op, act in (
        (area.batch(5), operation.whiten("newton", 5), "silu"),
        (area.instance(5), operation.whiten("newton", 5), None),
        (area.batch(5), operation.whiten("polar"), "silu"),
    ):
        x, dy, _, weight, bias = make_inputs((3, 12, 4, 5), dtype, "channels_last")
        inputs = (x + 100, dy, weight, bias)
        got = passes(*inputs, where, op, "triton", act)
        want = passes(*(t.double() for t in inputs), where, op, "torch", act)
        must_agree(got, want, 2 * TOLERANCE[dtype], op, act)


def check_synchronized(rank: int, meeting: str) -> None:
    """Two processes, each with some examples, against one with all of them."""
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    torch.manual_seed(0)
    x, dy, _, weight, bias = make_inputs((5, 6, 4, 5), torch.float32, "nchw")
    mine = slice(0, 3) if rank == 0 else slice(3, 5)
    for where, op in (
        (area.batch(4), operation.whiten("newton", 5)),
        (area.batch_group(2), operation.standardize()),
    ):
        found = []
        for rows, dtype, group in ((mine, torch.float32, "world"), (..., torch.float64, None)):
            leaf = x[rows].to(dtype).requires_grad_()
            recovery = Affine(weight.to(dtype), bias.to(dtype))
            with isonorm.backend("torch" if group is None else "triton"):
                y, statistics = isonorm.functional.normalize(
                    leaf, area=where, operation=op, recovery=recovery, process_group=group
                )
            dx, *_ = torch.autograd.grad(y, leaf, dy[rows].to(dtype))
            found.append((y, dx, *statistics[1:]))
        (y, dx, *statistics), (whole_y, whole_dx, *whole) = found
        for g, w in (
            (y, whole_y[mine]),
            (dx, whole_dx[mine]),
            *zip(statistics, whole, strict=True),
        ):
            assert relative_error(g, w) < TOLERANCE[torch.float32]
    dist.barrier()
    dist.destroy_process_group()


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
