"""The Triton kernels against float64, by functions that tests on a GPU and the interpreter share.

They look up ``INTERPRETING`` where they are imported: a process interprets, or has a GPU.
"""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

import isonorm
from isonorm import area, operation
from isonorm.kernels.choice import INTERPRETING
from isonorm.recovery import Affine

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
    pytest.param((5, 72, 3, 5), 64, id="last-group-of-8-beside-64"),
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
