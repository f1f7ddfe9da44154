"""What whitening does to the axes: PCA's swap between batches (DBN Section 3.1), and Newton's steps
stretch each eigendirection at its own pace (IterNorm Section 3.1).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import combinations
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ._data import draw_distinct, examples
from ._state import in_training, random_state_kept
from .conditioning import wide


class AxisSwaps(NamedTuple):
    """For every pair of batches; (pairs,)."""

    swapped: Tensor  # share of output axes that resemble another axis of the other batch more
    similarity: Tensor  # mean over axes of |correlation| with the same axis in the other batch


@random_state_kept()
@torch.no_grad()
def axis_swaps(
    norm: nn.Module | Callable[..., Any],
    data: Tensor | Iterable[Any],
    *,
    batch_size: int,
    num_batches: int,
    num_shared: int | None = None,
    generator: torch.Generator | None = None,
) -> AxisSwaps:
    """Stochastic axis swapping (DBN Definition 3.1): whether an axis of the output keeps its
    meaning from batch to batch.

    Every batch holds the same ``num_shared`` points (None: half the batch; DBN Fig. 1's blue ones)
    and others that differ. An output axis is what the shared points look like along it: it has
    swapped between two batches when it is correlated more with another axis of the second batch
    than with itself there. Chance would swap (C − 1)/C of them. Without a ``generator``, which is
    on the CPU, batches are drawn from torch's own, which stays as it was.

    >>> import isonorm
    >>> x = torch.randn(2000, 8)  # no direction has more variance than another
    >>> sizes = dict(batch_size=64, num_batches=5)
    >>> pca = axis_swaps(isonorm.DBN(8, method="pca"), x, **sizes)
    >>> zca = axis_swaps(isonorm.DBN(8, method="zca"), x, **sizes)
    >>> bool(pca.swapped.mean() > 0.4), zca.swapped.max().item()
    (True, 0.0)
    """
    x, call = examples(data), in_training(norm)
    shared = batch_size // 2 if num_shared is None else num_shared
    if not 2 < shared < batch_size <= len(x):
        raise ValueError(
            "expected 2 < num_shared < batch_size ≤ the number of examples; got "
            f"num_shared={shared}, batch_size={batch_size} and {len(x)} examples."
        )
    if num_batches < 2:
        raise ValueError(f"num_batches must be at least 2, to compare; got {num_batches}.")
    order = draw_distinct(len(x), len(x), 1, generator)[0].to(x.device)
    same, rest = x[order[:shared]], x[order[shared:]]
    outputs = []
    for _ in range(num_batches):
        others = draw_distinct(len(rest), batch_size - shared, 1, generator)[0].to(x.device)
        y = call(torch.cat([same, rest[others]]))[:shared]
        outputs.append(_standardized(y.transpose(0, 1).flatten(1)))
    swapped, similarity = [], []
    for a, b in combinations(outputs, 2):
        correlation = (a @ b.T).abs()
        own = correlation.diagonal()
        swaps = (correlation.amax(1) > own).to(own.dtype)
        swapped.append(swaps.where(own.isfinite(), own).mean())  # NaN stays NaN
        similarity.append(own.mean())
    return AxisSwaps(torch.stack(swapped), torch.stack(similarity))


def _standardized(rows: Tensor) -> Tensor:
    rows = wide(rows)
    centered = rows - rows.mean(1, keepdim=True)
    return centered / centered.norm(dim=1, keepdim=True).clamp(min=torch.finfo(rows.dtype).tiny)


def newton_convergence(eigenvalues: Tensor, num_iters: int) -> Tensor:
    """(T + 1, d): the eigenvalues of IterNorm's output after 0, 1, …, T Newton steps, from the d
    eigenvalues of Σ + εI; whitening is where all are 1.

    Σ and its powers share eigenvectors, so Eq. 3 acts on each eigenvalue by itself:
    p ← (3p − p³·λ/tr Σ)/2 from p = 1, and the output's is p²·λ/tr Σ. The small ones grow by 9/4 a
    step until they are large, which is why few steps leave them alone.

    >>> newton_convergence(torch.tensor([8.0, 1.0, 1.0]), 4)[:, 1]
    tensor([0.1000, 0.2103, 0.4091, 0.6865, 0.9186])
    """
    eigenvalues = torch.as_tensor(eigenvalues)
    bad = bool((eigenvalues < 0).any()) or not bool((eigenvalues > 0).any())
    if eigenvalues.dim() != 1 or bad or num_iters < 0:
        raise ValueError(
            "expected eigenvalues (d,), none below 0 and one above, and num_iters ≥ 0; got shape "
            f"{tuple(eigenvalues.shape)} and num_iters={num_iters}."
        )
    share = eigenvalues / eigenvalues.sum()
    p = torch.ones_like(share)
    steps = [share]
    for _ in range(num_iters):
        p = (3 * p - p**3 * share) / 2
        steps.append(p.square() * share)
    return torch.stack(steps)
