"""Shared set-up: one thread a worker, a fixed seed a test, and no GPU tests without a GPU."""

from __future__ import annotations

import os

import pytest
import torch
from hypothesis import settings

# xdist runs one worker a core; threads on top of that only get in each other's way.
torch.set_num_threads(1)
os.environ.setdefault("OMP_NUM_THREADS", "1")

settings.register_profile("repo", deadline=None, print_blob=True, derandomize=True)
settings.load_profile("repo")


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="needs a GPU")
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(skip)
