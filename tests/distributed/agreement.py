"""Batches cut into the shares of ranks, and whether these did together what one process does."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import torch

from tests.distributed.layers import CHANNELS
from tests.distributed.tasks import Batches, Results

#: Examples on each rank, positions of an example.
SHARES = {
    "equal": ((4, 4), (3, 3)),
    "unequal": ((5, 2, 1), (5, 7)),  # enough positions for the layout by rows
    "last-empty": ((4, 0), (2, 2)),
    "first-empty": ((0, 3, 4), (3, 3)),
    "one-each": ((1, 1, 1), ()),
}

FLOAT64 = {"rtol": 1e-10, "atol": 1e-10}


def make_batches(
    sizes: tuple[int, ...],
    positions: tuple[int, ...],
    dtype: torch.dtype = torch.float64,
    mean: float = 0.5,
    count: int = 2,
) -> tuple[Batches, list[Batches]]:
    """Batches with correlated channels: whole, and as the shares of the ranks."""
    generator = torch.Generator().manual_seed(4)
    random = lambda *shape: torch.randn(shape, generator=generator, dtype=torch.float64)  # noqa: E731
    mix = torch.eye(CHANNELS) + 0.2 * random(CHANNELS, CHANNELS)
    whole = []
    for _ in range(count):
        x = torch.einsum("dc,nc...->nd...", mix, random(sum(sizes), CHANNELS, *positions)) + mean
        whole.append((x.to(dtype), random(*x.shape).to(dtype)))
    cut = [[t.split(sizes) for t in batch] for batch in whole]
    return whole, [[(x[r], c[r]) for x, c in cut] for r in range(len(sizes))]


def assert_agree(
    results: list[Results], expected: Results, parts: Iterable[str] | None = None, **tolerance
) -> None:
    """Outputs and input gradients side by side, parameter gradients in sum, statistics each.

    ``parts`` names the ones to compare: y, dx, parameters, or a buffer; by default all.
    """
    for key, whole in expected.items():
        ranks = [result[key] for result in results]
        pairs = [
            (what, f"{what} {i}", torch.cat([rank[what][i] for rank in ranks]), tensor)
            for what in ("y", "dx")
            for i, tensor in enumerate(whole[what])
        ]
        for name, tensor in whole["parameters"].items():
            total = torch.stack([rank["parameters"][name] for rank in ranks]).sum(0)
            pairs.append(("parameters", f"gradient of {name}", total, tensor))
        for name, tensor in whole["buffers"].items():
            first, *others = (rank["buffers"][name] for rank in ranks)
            pairs.append((name, name, first, tensor))
            # to the last bit: ranks never drift apart
            assert all(torch.equal(first, other) for other in others), f"{key}: {name} differs"
        for part, title, actual, tensor in pairs:
            if parts is None or part in parts:
                explain = partial("{}, {}: {}".format, key, title)
                torch.testing.assert_close(actual, tensor, **tolerance, msg=explain)
