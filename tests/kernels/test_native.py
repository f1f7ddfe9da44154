"""The explicit path in C: where tiles and chunks end, in vectors of any width, by any number of
threads. That it is the reference in every layout, ``test_explicit`` asks as of plain torch.
"""

from __future__ import annotations

import re
import threading

import pytest
import torch
from torch import Tensor

import isonorm
from isonorm import area as areas
from isonorm import operation as operations
from isonorm.functional import normalize
from isonorm.kernels.choice import LARGEST_NATIVE_GROUP, NATIVE_PADDING
from isonorm.kernels.native import build, in_native_code, library
from isonorm.roots import make_root
from isonorm.roots.newton import reference as paper
from isonorm.roots.recurrence import UNWATCHED_STEPS
from tests.kernels.paths import (
    assert_paths_agree,
    assert_same,
    channels_last,
    contiguous,
    correlated,
    needs_native_code,
    passes,
    transposed,
)

pytestmark = [needs_native_code, pytest.mark.usefixtures("poisoned_memory")]

NEWTON = operations.whiten("newton")
NATIVE = ["native"]  # which raises where it cannot run
#: Around one vector, two, and what matrices are padded to; and the largest.
GROUP_SIZES = [2, 3, 7, 8, 15, 16, 17, 31, 33, 48, 63, 64, 65, 100, 127, LARGEST_NATIVE_GROUP]


#: The numbers that the sources define, and what they are told.
SIZES = {"PAD": NATIVE_PADDING} | {
    name: int(size)
    for source in build.SOURCES + build.HEADERS
    for name, size in re.findall(r"^#define (\w+) (\d+)$", (build.HERE / source).read_text(), re.M)
}


def padded(n: int) -> int:
    return -(-n // SIZES["PAD"]) * SIZES["PAD"]


def tile(group_size: int) -> int:
    """Samples in a tile of many, as ``tile.h`` has it."""
    return SIZES["TILE"] // padded(group_size) // SIZES["PAD"] * SIZES["PAD"]


def chunk(group_size: int) -> int:
    """Samples in a chunk, as ``passes.c`` has it."""
    d, each = padded(group_size), tile(group_size)
    numbers = max(SIZES["CHUNK"], SIZES["CHUNK_ROWS"] * d * d)
    return -(-(numbers // d) // each) * each


@pytest.mark.parametrize("layout", [contiguous, channels_last], ids=lambda layout: layout.__name__)
@pytest.mark.parametrize("group_size", GROUP_SIZES)
def test_groups_of_any_size(group_size, layout):
    """Two of them and a last one that is smaller."""
    x = layout(correlated(3, 2 * group_size + group_size // 2, 43))
    assert_paths_agree(x, areas.batch(group_size), NEWTON, backends=NATIVE)
    assert_paths_agree(x, areas.instance(group_size), NEWTON, backends=NATIVE)


ENDS = {
    "one less than a tile": tile(16) - 1,
    "a tile": tile(16),
    "a sample more": tile(16) + 1,
    "one less than a chunk": chunk(16) - 1,
    "a chunk": chunk(16),
    "another sample": chunk(16) + 1,
    "chunks and a half": 5 * chunk(16) // 2,
}


@pytest.mark.parametrize(
    "layout", [contiguous, channels_last, transposed], ids=lambda layout: layout.__name__
)
@pytest.mark.parametrize("examples", [1, 3, "all"])
@pytest.mark.parametrize("samples", ENDS.values(), ids=ENDS.keys())
def test_tiles_and_chunks_end_anywhere(samples, examples, layout):
    """Within an example, or with a few samples of each."""
    n = samples if examples == "all" else examples
    x = layout(correlated(n, 18, -(-samples // n)))
    assert_paths_agree(x, areas.batch(16), NEWTON, backends=NATIVE)


def test_no_samples_are_no_problem():
    for shape in ((0, 4, 5), (3, 4, 0)):
        x = torch.randn(shape, requires_grad=True)
        with isonorm.backend("native"):
            y, statistics = normalize(x, area=areas.instance(2), operation=NEWTON)
        (dx,) = torch.autograd.grad(y, x, torch.randn_like(y))
        assert y.shape == dx.shape == shape
        assert not statistics.mean.any() and not statistics.cov.any()


@pytest.fixture
def thread_count_restored():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("thread_count_restored")
@pytest.mark.parametrize("area", [areas.batch(24), areas.instance(24)], ids=repr)
def test_threads_do_not_change_a_bit(area, monkeypatch):
    monkeypatch.setattr(library, "LEAST_TO_SHARE", 1)
    x = correlated(5, 60, 23, 29).float()
    parameters = [torch.randn(60), torch.randn(60)]
    found = []
    for threads in (1, 2, 3, 8):
        torch.set_num_threads(threads)
        found.append(passes("native", x, area, NEWTON, parameters))
    for name, one in found[0].items():
        assert all(torch.equal(several[name], one) for several in found[1:]), name


@pytest.mark.parametrize("capability", ["DEFAULT", "AVX2"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_vectors_of_every_width(dtype, capability, monkeypatch):
    """Of those that this CPU has."""
    order = ["DEFAULT", "AVX2", "AVX512"]
    own = torch.backends.cpu.get_cpu_capability()
    if own not in order or order.index(capability) > order.index(own):
        pytest.skip(f"this CPU has {own}")
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    library.load.cache_clear()
    try:
        path = next(build.libraries(dtype))
        monkeypatch.undo()
        assert next(build.libraries(dtype)) != path or own == capability
        parameters = [torch.rand(40) + 0.5, torch.randn(40)]
        for layout in (contiguous, channels_last):
            x = layout(correlated(3, 40, 43).to(dtype))
            for area in (areas.batch(19), areas.instance(19)):
                got = passes("native", x, area, NEWTON, [p.to(dtype) for p in parameters])
                exact = [p.double() for p in parameters]
                want = passes("reference", x.double(), area, NEWTON, exact)
                tolerance = {torch.float64: 1e-10, torch.float32: 1e-4}[dtype]
                assert_same({name: value.double() for name, value in got.items()}, want, tolerance)
    finally:
        library.load.cache_clear()


@pytest.mark.parametrize("num_iters", UNWATCHED_STEPS)
def test_newton_is_the_papers_and_its_derivative_autograds(num_iters):
    """Of a padded matrix, of one with an eigenvalue of zero, and of a large one."""
    root = make_root("newton", num_iters)
    sigma = torch.stack([torch.cov(correlated(90, 21).T) for _ in range(3)])
    sigma[1, 3] = sigma[1, :, 3] = 0
    sigma[2] *= 1e6
    dw = torch.randn_like(sigma)
    leaf = sigma.clone().requires_grad_()
    want = paper(leaf, num_iters) if num_iters <= 7 else root(leaf)
    (dsigma,) = torch.autograd.grad(want, leaf, dw)
    w, memo = library.newton(sigma, num_iters)
    assert memo.shape == root.memo_shape(3, 21)
    got = library.newton_backward(dw, sigma, w, memo, num_iters)
    for problem in range(3):
        symmetric = (dsigma[problem] + dsigma[problem].mT) / 2
        for g, e in ((w[problem], want[problem]), (got[problem], symmetric)):
            assert (g - e).norm() < 1e-11 * e.norm()
    assert torch.equal(got, got.mT)


@pytest.mark.parametrize("num_iters", [14, 15, 100])
def test_long_iterations_that_need_watching_are_left_to_plain_torch(num_iters):
    """Duplicated channels: an eigenvalue that rounding left below zero would grow by 9/4 a step."""
    root, native_root = (
        make_root("newton", num_iters),
        in_native_code(make_root("newton", num_iters)),
    )
    assert (type(native_root) is type(root)) == (num_iters > 14)
    x = torch.randn(64, 6)[:, [0, 1, 2, 0, 1, 2]].requires_grad_()
    with isonorm.backend("native"):
        y, _ = normalize(x, area="batch", operation=operations.whiten("newton", num_iters))
    (dx,) = torch.autograd.grad(y, x, torch.randn_like(y))
    assert y.isfinite().all() and dx.isfinite().all() and y.abs().max() < 10


@pytest.mark.parametrize("samples", [1, 2, 15, 16, 17, 40])
def test_problems_with_few_samples_work_in_little_room(samples):
    """Tiles are no longer than what there is: the work is a problem's, not a tile's."""
    x = torch.randn(4, 6, samples, dtype=torch.float64)
    run = library.Pass(areas.instance(3), areas.Block(0, 2, 3).view(x))
    mean, cov, _ = run.moments()
    problems = x.view(8, 3, samples)
    torch.testing.assert_close(mean, problems.mean(-1))
    want = torch.stack([torch.cov(p, correction=0).view(3, 3) for p in problems])
    torch.testing.assert_close(cov, want, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_what_is_not_finite_stays_within_its_group(value):
    x = torch.randn(6, 8, 3, 5)
    x[2, 1, 0, 0] = value
    with isonorm.backend("native"):
        y, _ = normalize(x, area=areas.batch(4), operation=NEWTON)
    assert y[:, :4].isnan().all() and y[:, 4:].isfinite().all()


def test_without_a_recovery_and_through_the_statistics_alone():
    x = correlated(6, 10, 7).requires_grad_()
    dy, dcov, found = torch.randn_like(x), torch.randn(3, 4, 4).double(), []
    for backend in ("native", "reference"):
        with isonorm.backend(backend):
            y, statistics = normalize(x, area=areas.batch(4), operation=NEWTON)
        (through_y,) = torch.autograd.grad(y, x, dy, retain_graph=True)
        (through_cov,) = torch.autograd.grad(statistics.cov, x, dcov)
        found.append([y, through_y, through_cov])
    for got, want in zip(*found, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)


def test_layers_in_several_threads_share_nothing():
    layers = [isonorm.IterNorm(40, group_size=20) for _ in range(4)]
    inputs = [torch.randn(8, 40, 11, 11) for _ in layers]
    expected = [layer(x) for layer, x in zip(layers, inputs, strict=True)]
    found: dict[int, list[Tensor]] = {}

    def work(number: int) -> None:
        found[number] = [layers[number](inputs[number]) for _ in range(20)]

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(layers))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, want in enumerate(expected):
        assert all(torch.equal(y, want) for y in found[number])


@pytest.mark.usefixtures("thread_count_restored")
def test_threads_that_share_problems_have_their_own_room(monkeypatch):
    monkeypatch.setattr(library, "LEAST_TO_SHARE", 1)
    x = torch.randn(64, 48, 100)
    sigma, found = x @ x.mT / 100, []
    for threads in (1, 4):
        torch.set_num_threads(threads)
        w, memo = library.newton(sigma, 5)
        found.append([w, memo, library.newton_backward(sigma, sigma, w, memo, 5)])
    assert all(map(torch.equal, *found))
