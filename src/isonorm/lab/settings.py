"""Settings of torch, for a block."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def torch_threads(threads: int) -> Iterator[None]:
    """torch with so many threads inside the block, and as many as before after it."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def float32_products(precision: str) -> Iterator[None]:
    """torch's ``float32_matmul_precision`` inside the block, and what it was after it."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@contextmanager
def without_advice_on_tf32() -> Iterator[None]:
    """No word from the compiler, inside the block, that TF32 would be faster than float32: whoever
    asked for float32 has chosen.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "TensorFloat32 tensor cores", UserWarning)
        yield
