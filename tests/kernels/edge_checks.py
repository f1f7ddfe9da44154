"""The kernels at the edges: no examples, gaps, tracers, the ends of float16, large means."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from unittest.mock import patch

import torch
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import isonorm
from isonorm import area, operation
from isonorm.kernels import plain
from isonorm.kernels.plan import Problem, Sums, make_plan
from isonorm.recovery import Affine
from tests.kernels.checks import (
    BOTH,
    DEVICE,
    TOLERANCE,
    check,
    make_inputs,
    must_agree,
    passes,
    relative_error,
)
from tests.kernels.fused_checks import check_fused


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
    with isonorm.backend("triton"):  # nothing of each sequence, at strides that had something
        nothing = torch.ones(5, 8, 7, device=DEVICE, dtype=torch.float16)[:, :, :0]
        y, _ = isonorm.functional.normalize(nothing, area=area.batch(4), operation=newton)
        assert y.shape == nothing.shape
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
    """Slices keep the order of their strides, and the fast path's operator takes what it is given:
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
        (with_gaps, residual),  # what is remembered of such strides is a copy's
        (x.clone(), residual),
    ):
        y, _ = torch.ops.isonorm.train(leaf.requires_grad_(), weight, bias, added, plan)
        found.append([y, *torch.autograd.grad(y, leaf, dy)])
    *gapped, want = found
    for got in gapped:
        for g, w in zip(got, want, strict=True):
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
    from isonorm.kernels.gpu.fast_path import Prepared  # where there is Triton

    x, dy, _, weight, bias = make_inputs((5, 12, 4, 3), torch.float32, "nchw")
    want = passes(x, dy, weight, bias, area.batch(4), operation.whiten("newton", 3), "triton")
    layer = isonorm.IterNorm(12, group_size=4, num_iters=3, eps=1e-2).to(DEVICE)
    with torch.no_grad():
        layer.weight.copy_(weight)
        layer.bias.copy_(bias)
    inner, computed = Prepared.backward, []

    def backward(*args):
        found = inner(*args)
        computed.append(found[0])
        return found

    Prepared.backward = backward
    try:
        layer(x).backward(dy)
    finally:
        Prepared.backward = inner
    assert computed == [None]
    torch.testing.assert_close(layer.weight.grad, want[4])
    torch.testing.assert_close(layer.bias.grad, want[5])


def check_gradients_of_full_whitening(draws: int = 12) -> None:
    """Whatever the eigenvalues: in float32 the polynomials' own derivative can be wrong by 1 % in
    pairs of channels, by bad luck by more.
    """
    worst = 0.0
    for _ in range(draws):
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


def check_narrow_tiles() -> None:
    """16-bit images of few bytes side by side: 7 × 7, whose numbers are loaded one by one, and
    14 × 14, by four, both compiled for their positions, unlike 17 × 17. Every program has several
    tiles, of which it loads the next ahead; the last is not full.
    """
    newton, where = operation.whiten("newton", 3), area.batch(13)  # five groups, none shared
    check((6, 65, 7, 7), where, newton, torch.float16, "nchw")
    check_fused((6, 65, 7, 7), where, newton, torch.float16, "nchw", "silu", True)
    check_fused((3, 65, 14, 14), where, newton, torch.float16, "nchw", "relu", True)
    check((2, 26, 17, 17), where, newton, torch.float16, "nchw")
    check((3, 64, 7, 7), area.batch(64), newton, torch.float16, "nchw")  # two eights for each warp
    # examples with statistics of their own, whose samples are a group's channels
    x = torch.randn(3, 12, 5, 7, device=DEVICE).half().to(memory_format=torch.channels_last)
    with isonorm.backend("triton"):
        got, _ = isonorm.functional.normalize(x, area=area.group(4), operation=newton)
    with isonorm.backend("torch"):
        want, _ = isonorm.functional.normalize(x.double(), area=area.group(4), operation=newton)
    assert relative_error(got, want) < TOLERANCE[torch.float16]
    with patch("isonorm.kernels.gpu.layout.FARTHEST", 0):  # addresses of 64 bits, of a new pass
        check((6, 65, 7, 7), where, operation.whiten("newton", 2), torch.float16, "nchw")


def check_long_walks() -> None:
    """So many tiles that programs which start first have more of them than others, where they lie
    as they do in channels_last, and where they are loaded ahead.
    """
    from isonorm.kernels.gpu.layout import layout  # where there is Triton

    newton, where = operation.whiten("newton", 2), area.batch(16)
    plan = make_plan(where, newton, 1e-2, "", "triton")
    with patch("isonorm.kernels.gpu.layout.multiprocessors", lambda device: 1):
        for shape, memory in (((45, 16, 10, 5), "channels_last"), ((33, 16, 14, 10), "nchw")):
            x, *_ = make_inputs(shape, torch.float16, memory)
            x = x.flatten(2)
            block, *_ = plan.problem_shapes(x)[0]
            found = layout(x.shape, x.stride(), x.dtype, x.device, block, plan, "highest")
            for name in ("apply_kernel", "backward_apply_kernel"):
                *_, front, front_tiles = found.launcher(name, {}).numbers
                tiles = -(-found.n * found.s // found.tuning(name).tile)
                assert front > 0 and tiles > front_tiles > tiles // 3  # and some for the others
            check(shape, where, newton, torch.float16, memory)
    # Five problems for eight programs: the front is one of each, and leaves three tiles of nine,
    # fewer than a program should have.
    with patch("isonorm.kernels.gpu.layout.multiprocessors", lambda device: 2):
        check((9, 80, 8, 8), where, newton, torch.float16, "channels_last")


def check_sizes_that_are_known() -> None:
    """Kernels are compiled for the positions of small maps, unless there are many sizes of them."""
    from isonorm.kernels.gpu.layout import MOST_KNOWN, layout  # where there is Triton

    plan = make_plan(area.batch(13), operation.whiten("newton", 3), 1e-5, "", "triton")

    def is_known(x) -> bool:
        block, *_ = plan.problem_shapes(x)[0]
        found = layout(x.shape, x.stride(), x.dtype, x.device, block, plan, "highest")
        return bool(found.constants["KNOWN"])

    def sequences(length: int):
        return torch.empty(5, 65, length, device=DEVICE, dtype=torch.float16)

    with patch("isonorm.kernels.gpu.layout._known", set()):
        assert [is_known(sequences(n)) for n in (49, 196, 289)] == [True, True, False]
        assert not is_known(sequences(49)[:, :, :0])
        for length in range(3, 3 + 2 * MOST_KNOWN, 2):
            is_known(sequences(length))
        assert is_known(sequences(49)) and not is_known(sequences(51))


def check_roots_for_bfloat16() -> None:
    """The kernels on matrices as they are for bfloat16 input, whose own products the interpreter
    cannot do: they take float32 and keep float16.
    """
    from isonorm.kernels.gpu.passes import Kinds, find_pass  # where there is Triton

    n, groups = 64, 3
    for size, steps in ((5, 0), (5, 1), (5, 2), (16, 5), (20, 7), (72, 3)):
        where, newton = area.batch(size), operation.whiten("newton", steps)
        plan = make_plan(where, newton, 1e-2, "", "triton")
        x = torch.randn(n, groups * size, 1, device=DEVICE, dtype=torch.bfloat16)
        block, b, d, m = plan.problem_shapes(x)[0]
        run = find_pass(x, block, plan, Kinds(torch.float32, None, None))
        assert run.root is not None and run.gradients is not None
        lay = run.lay

        def sums(first, second, lay=lay, d=d):
            """(b, d) and (b, d, d) as the streaming kernels leave them."""
            total = torch.zeros(lay.row, device=DEVICE)
            vectors = total[: lay.problems * lay.d].view(-1, lay.d)
            matrices = total[lay.problems * lay.d :].view(-1, lay.d, lay.d)
            for group in range(groups):
                program, place = divmod(group, lay.span)
                own = slice(place * d, place * d + d)
                vectors[program, own], matrices[program, own, own] = first[group], second[group]
            return total

        centered = x.double().view(n, groups, size).transpose(0, 1)
        weight = torch.rand(groups * size, device=DEVICE) + 0.5
        outer = torch.randn(b, d, d, device=DEVICE, dtype=torch.float64)
        f = torch.randn(b, d, device=DEVICE, dtype=torch.float64)
        mean, rest = torch.zeros(2, b, d, device=DEVICE)
        cov, w, a, slope = torch.empty(4, b, d, d, device=DEVICE)
        shift, gains = torch.empty_like(mean), torch.empty(2, *run.gain_shape, device=DEVICE)
        memo = torch.full(run.memo_shape, torch.nan, device=DEVICE)
        total = sums(centered.sum(1), centered.mT @ centered)
        run.root(*run.to_solve(total, mean, rest, cov, w, memo))
        outputs = (*gains, a, slope, shift)
        run.gradients(*run.to_differentiate(sums(f, outer), rest, cov, w, memo, weight, outputs))

        exact = replace(plan, backend="torch")
        want_mean = centered.mean(1)
        want_cov = centered.mT @ centered / n - want_mean.unsqueeze(2) * want_mean.unsqueeze(1)
        want_w, trail = plain.root(want_cov, exact)
        problem = Problem(block, b, d, m, want_mean, want_cov, want_w, trail)
        recovery = Affine(weight.double(), None)
        want = plain.gradients(problem, Sums(f, outer), recovery, exact, m)
        pairs = ((w, want_w), (a, want.a), (slope, want.slope), (shift, want.shift))
        for g, expected in pairs:
            assert relative_error(g, expected) < 5e-4, (size, steps, relative_error(g, expected))


def check_vanishing_gradients() -> None:
    """Gradients at the end of float32, as of a loss that is nearly nothing: small, and numbers."""
    x, dy, *_ = make_inputs((8, 4, 3), torch.float32, "nchw")
    with isonorm.backend("triton"):
        leaf = x.requires_grad_()
        y, _ = isonorm.functional.normalize(leaf, area=area.batch(4), operation="whiten")
    (dx,) = torch.autograd.grad(y, leaf, dy * 1e-41)
    assert dx.isfinite().all() and dx.abs().max() < 1e-37


def check_loads_stay_inside() -> None:
    """No program reads beside its input, also where the next tile is one that is not there."""
    for shape in ((6, 65, 7, 7), (3, 65, 14, 14)):
        surrounded, places = [], []
        for t in make_inputs(shape, torch.float16, "nchw")[:2]:
            around = torch.zeros(5 * t.numel(), dtype=t.dtype)
            inner = around[2 * t.numel() : 3 * t.numel()].view(shape).copy_(t)
            first, begin = around.data_ptr(), inner.data_ptr()
            places.append((first, begin, begin + inner.nbytes, first + around.nbytes))
            surrounded.append(inner)
        x, dy = surrounded
        weight, bias = torch.ones(65), torch.zeros(65)
        with watched_loads(places) as counts:
            passes(x, dy, weight, bias, area.batch(13), operation.whiten("newton"), "triton")
        assert sum(counts) >= 5 * x.numel()  # three times x, twice dy


@contextmanager
def watched_loads(places: list[tuple[int, int, int, int]]) -> Iterator[list[int]]:
    """How many numbers the interpreter's loads take, each of which must lie inside its place: that
    is where memory begins, where its tensor begins and ends, and where memory ends.
    """
    from triton.runtime.interpreter import interpreter_builder as builder

    counts, load = [], builder.create_masked_load

    def watched(pointers, mask, *rest):
        at = pointers.data[mask.data]
        for first, begin, end, last in places:
            near = at[(at >= first) & (at < last)]
            assert ((near >= begin) & (near < end)).all()
            counts.append(near.size)
        return load(pointers, mask, *rest)

    with patch.object(builder, "create_masked_load", watched):
        yield counts
