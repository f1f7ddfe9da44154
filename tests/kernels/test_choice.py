"""Which path runs, and why."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import isonorm
from isonorm import area as areas
from isonorm import operation as operations
from isonorm.functional import normalize
from isonorm.kernels import choose, native
from isonorm.kernels.choice import (
    BACKENDS,
    INTERPRETING,
    LARGEST_NATIVE_GROUP,
    SMALLEST_NATIVE_GROUP,
)
from isonorm.operation import Operation
from tests.kernels.paths import needs_native_code
from tests.processes import python

WHITEN, AREA = operations.whiten(), areas.batch(6)
X = torch.randn(6, 12)


def chosen(operation: Operation = WHITEN) -> str:
    return choose(X, area=AREA, operation=operation).backend


not_interpreting = pytest.mark.skipif(INTERPRETING, reason="the interpreter stands in for a GPU")
#: What nothing but plain torch runs on a CPU, and the word of the reason that tells why.
PLAIN = {
    "another dtype": (WHITEN, AREA, X.bfloat16(), "bfloat16"),
    "no matrices": (operations.standardize(), AREA, X, "whitens groups of channels"),
    "features that are groups": (WHITEN, areas.group(2), X, "whitens groups of channels"),
    "large groups": (WHITEN, areas.batch(), torch.randn(4, LARGEST_NATIVE_GROUP + 1), "not 129"),
    "another device": (WHITEN, AREA, X.to("meta"), "the input is on meta"),
}


@not_interpreting
@needs_native_code
def test_native_code_runs_on_a_cpu():
    assert choose(X, area=AREA, operation=WHITEN) == ("native", "a C compiler is there")
    assert choose(X.double(), area=AREA, operation=WHITEN).backend == "native"
    assert choose(X, area=areas.instance(6), operation=WHITEN).backend == "native"
    large = areas.batch(2 * LARGEST_NATIVE_GROUP)  # of as many as there are, which is 12
    assert choose(X, area=large, operation=WHITEN).backend == "native"
    with isonorm.backend("native"):
        assert choose(X, area=AREA, operation=WHITEN) == ("native", "asked for")


@not_interpreting
@needs_native_code
@pytest.mark.parametrize("size", [1, SMALLEST_NATIVE_GROUP - 1, SMALLEST_NATIVE_GROUP])
def test_many_small_groups_are_plain_torchs_unless_native_code_is_asked_for(size):
    """Of few, and of small inputs, calls cost more than padding does."""
    area, large = areas.batch(size), torch.empty(64, 60, 20, 20)
    choice = choose(large, area=area, operation=WHITEN)
    if size < SMALLEST_NATIVE_GROUP:
        assert choice.backend == "torch" and f"so many groups of {size} channel" in choice.reason
    else:
        assert choice.backend == "native"
    assert choose(X, area=area, operation=WHITEN).backend == "native"
    with isonorm.backend("native"):
        assert choose(large, area=area, operation=WHITEN).backend == "native"


@not_interpreting
@pytest.mark.parametrize(("operation", "area", "x", "why"), PLAIN.values(), ids=PLAIN.keys())
def test_plain_torch_runs_the_rest_and_says_why(operation, area, x, why):
    choice = choose(x, area=area, operation=operation)
    assert choice.backend == "torch" and why in choice.reason
    with isonorm.backend("native"), pytest.raises(RuntimeError, match=f"'native' .*{why}"):
        choose(x, area=area, operation=operation)


@not_interpreting
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch.jit
@needs_native_code
def test_what_is_watched_or_exported_is_plain_torch():
    """Who counts operations sees them, and who loads a trace need not have native code."""

    class Noting(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            noted.append(choose(x, area=AREA, operation=WHITEN))
            return 2 * x

    class Watching(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    noted: list = []
    with Watching():
        Noting()(X)
    torch.jit.trace(Noting(), X, check_trace=False)
    torch.export.export(Noting(), (X,))
    watched, traced, *exported = noted
    assert watched.backend == traced.backend == "torch"
    assert "watched" in watched.reason and "exported" in traced.reason
    assert exported and all(choice.backend != "native" for choice in exported)


@needs_native_code
def test_native_code_runs_or_gives_the_reason(monkeypatch):
    with isonorm.backend("native"):
        normalize(X, area=AREA, operation=WHITEN)
        monkeypatch.setattr(native, "why_not", lambda dtype: "there is no GCC")
        with pytest.raises(RuntimeError, match="'native' was asked for, but there is no GCC"):
            normalize(X, area=AREA, operation=WHITEN)
    choice = choose(X, area=AREA, operation=WHITEN)
    assert INTERPRETING or choice == ("torch", "there is no GCC")


@pytest.mark.parametrize(
    "transform",
    [torch.func.vmap, torch.func.grad, torch.func.jacrev, torch.func.jacfwd, torch.func.hessian],
    ids=lambda transform: transform.__name__,
)
def test_the_reference_runs_under_transforms(transform):
    seen = set()

    def function(x: Tensor) -> Tensor:
        choice = choose(x, area=AREA, operation=WHITEN)
        seen.add((choice.backend, "torch.func" in choice.reason))
        return (x**2).sum()

    with isonorm.backend("torch"):
        transform(function)(torch.randn(3, 2))
        assert seen == {("reference", True)}
        assert chosen() == "torch"


def test_the_reference_runs_in_forward_mode():
    with forward_ad.dual_level():
        choice = choose(X, area=AREA, operation=WHITEN)
    assert choice.backend == "reference"
    assert "forward-mode" in choice.reason


@pytest.mark.parametrize("operation", [operations.standardize(1), operations.center()], ids=repr)
def test_the_reference_runs_what_is_not_quadratic(operation):
    with isonorm.backend("torch"):
        choice = choose(X, area=AREA, operation=operation)
    assert choice.backend == "reference"
    assert repr(operation) in choice.reason


def test_the_environment_names_the_backend():
    """One process, reloading the choice for each value of the variable."""
    program = """
import importlib, os
import isonorm.kernels.choice as choices, torch

def choice():
    return choices.choose(torch.randn(4, 2), area="batch", operation="whiten").backend

print(choice())
for name in ("torch", "cuda"):
    os.environ["ISONORM_BACKEND"] = name
    try:
        importlib.reload(choices)
        print(choice())
    except ValueError as error:
        print(error)
"""
    ended = python("-c", program, more={"ISONORM_BACKEND": "reference"})
    assert ended.code == 0, ended
    asked, then, wrong = ended.output.splitlines()
    assert (asked, then) == ("reference", "torch")
    names = "auto, reference, torch, native, triton"
    assert wrong == f"ISONORM_BACKEND must be one of {names}; got 'cuda'."


@pytest.fixture
def pool() -> Iterator[list[ThreadPoolExecutor]]:
    """Two threads, each with steps of its own to take when it is asked to."""
    threads = [ThreadPoolExecutor(1), ThreadPoolExecutor(1)]
    yield threads
    for thread in threads:
        thread.shutdown()


@pytest.mark.parametrize("first_to_leave", [0, 1])
def test_a_choice_is_its_threads_whoever_leaves_first(pool, first_to_leave):
    blocks = [isonorm.backend("reference"), isonorm.backend("torch")]
    before = chosen()

    def now() -> list[str]:
        return [chosen(), *(thread.submit(chosen).result() for thread in pool)]

    for thread, block in zip(pool, blocks, strict=True):
        thread.submit(block.__enter__).result()
    assert now() == [before, "reference", "torch"]
    expected = ["reference", "torch"]
    for i in (first_to_leave, 1 - first_to_leave):
        pool[i].submit(blocks[i].__exit__, None, None, None).result()
        expected[i] = before
        assert now() == [before, *expected]


@pytest.mark.parametrize("order", [(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1)])
def test_blocks_of_one_thread_may_end_in_any_order(order):
    """As those do in which generators and coroutines wait."""
    names, before = ["reference", "torch", "reference"], chosen()
    blocks = [isonorm.backend(name) for name in names]
    for block in blocks:
        block.__enter__()
    still = dict(enumerate(names))
    for i in order:
        blocks[i].__exit__(None, None, None)
        del still[i]
        assert chosen() == (list(still.values()) or [before])[-1]


def test_a_block_may_end_in_another_thread(pool):
    """As that of a generator does which a garbage collector ends there."""
    block, before = isonorm.backend("reference"), chosen()
    pool[0].submit(block.__enter__).result()
    pool[1].submit(block.__exit__, None, None, None).result()
    assert chosen() == pool[0].submit(chosen).result() == pool[1].submit(chosen).result() == before


def recomputed(x: Tensor, device: str) -> list[str]:
    """The choices of a checkpointed function, first and in backward."""
    seen: list[str] = []

    def function(x: Tensor) -> Tensor:
        seen.append(choose(x, area=AREA, operation=WHITEN).backend)
        return x.sin()

    x = x.to(device).requires_grad_()
    y = checkpoint(function, x, use_reentrant=False)
    y.backward(torch.randn_like(y))
    return seen


def test_recomputation_takes_the_callers_choice_beside_another_threads(pool):
    other = isonorm.backend("reference")
    pool[0].submit(other.__enter__).result()
    assert recomputed(X, "cpu") == [chosen()] * 2
    with isonorm.backend("torch"):
        assert recomputed(X, "cpu") == ["torch"] * 2
    assert pool[0].submit(recomputed, X, "cpu").result() == ["reference"] * 2
    pool[0].submit(other.__exit__, None, None, None).result()


@pytest.mark.gpu
def test_autograds_own_threads_take_the_choice_that_is_in_force():
    for name in ("reference", "torch"):
        with isonorm.backend(name):
            assert recomputed(X, "cuda") == [name] * 2
    assert recomputed(X, "cuda") == ["triton"] * 2


def test_compiled_code_follows_the_threads_choice(pool):
    def function(x: Tensor) -> Tensor:
        return x + BACKENDS.index(choose(x, area=AREA, operation=WHITEN).backend)

    def plus() -> int:
        return int(compiled(torch.zeros(6, 12))[0, 0])

    compiled = torch.compile(function, fullgraph=True, backend="eager")
    auto, reference = plus(), BACKENDS.index("reference")
    with isonorm.backend("reference"):
        assert (plus(), pool[0].submit(plus).result()) == (reference, auto)
    assert plus() == auto
