"""Shared set-up: one thread a worker, a fixed seed a test, and no GPU tests without a GPU."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator

import pytest
import torch
from hypothesis import HealthCheck, settings

# xdist runs one worker a core; threads on top of that only get in each other's way.
torch.set_num_threads(1)
os.environ.setdefault("OMP_NUM_THREADS", "1")

settings.register_profile(
    "repo",
    deadline=None,
    print_blob=True,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],  # which a loaded machine is, without a fault
)
settings.load_profile("repo")


@pytest.fixture(autouse=True)
def _seed() -> None:
    if torch.cuda.is_initialized():
        torch.manual_seed(0)
    else:  # which would put down for every device it has not met who called it, frame by frame
        torch.default_generator.manual_seed(0)


@pytest.fixture(autouse=True)
def _compiler_as_it_was() -> Iterator[None]:
    """A monitor that a test leaves open runs everything eagerly, also what other tests compile."""
    yield
    if "torch._dynamo" in sys.modules:
        torch.compiler.set_stance("default")


def pytest_collection_finish() -> None:
    """What is there now, thousands of tests and all of torch, stays to the end: the garbage
    collector need not look through it again and again.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="module")
def _what_a_module_leaves_stays() -> Iterator[None]:
    """What its tests imported and cached: torch's compiler alone is as large as all before."""
    yield
    gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    gc.unfreeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="needs a GPU")
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(skip)
