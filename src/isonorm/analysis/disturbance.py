"""Stochastic normalization disturbance: how far a sample's normalized value depends on the company
it is normalized in (IterNorm, Section 4.1).

Index legend: N samples x, s batches for each, B examples in a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ._data import draw_distinct, examples
from ._state import in_training, random_state_kept

#: Numbers in one call: batches are normalized together up to this size. Larger ones gain nothing
#: by it, and lose the layers' explicit path.
_TOGETHER = 2**19


class Disturbance(NamedTuple):
    """Δ̂(x) of N samples, and the standard error of each over its s batches."""

    values: Tensor  # (N,)
    errors: Tensor  # (N,)

    @property
    def mean(self) -> float:
        """Δ̂_F, the operation's SND."""
        return self.values.mean().item()

    @property
    def error(self) -> float:
        """The standard error of the mean. Samples have batches of their own, so that their spread
        holds both sources of noise: which samples were drawn, and which batches. One sample has
        no spread: NaN.
        """
        n = len(self.values)
        return (self.values.std() / n**0.5).item() if n > 1 else float("nan")


def snd(
    norm: nn.Module | Callable[..., Any],
    data: Tensor | Iterable[Any],
    *,
    batch_size: int,
    num_samples: int,
    num_batches: int,
    generator: torch.Generator | None = None,
    chunk_size: int | None = None,
) -> Tensor:
    """Δ̂_F(x) of IterNorm Eq. 10 for ``num_samples`` samples x; its mean is the operation's SND.

    >>> import isonorm
    >>> x = torch.randn(1000, 16)
    >>> small = snd(isonorm.BatchNorm(16), x, batch_size=4, num_samples=20, num_batches=20)
    >>> large = snd(isonorm.BatchNorm(16), x, batch_size=64, num_samples=20, num_batches=20)
    >>> small.shape, bool(small.mean() > 3 * large.mean())
    (torch.Size([20]), True)

    Args:
        norm: a layer of this package or of torch, a whole network, or a function of a batch. A
            layer is measured in training mode, on a copy that speaks to no other rank.
        data: examples (M, C, *), or an iterable of batches, of which one pass is read.
        batch_size: B; the sample and B − 1 others, drawn without repetition, as in an epoch. So
            M examples disturb less than endless ones, by about √((M − B)/(M − 2)).
        num_samples: N, drawn from the data without repetition.
        num_batches: s, for each sample. Eq. 10 measures deviations from the mean of the same s
            outputs, which makes it small by √((s − 1)/s): 3 % at s = 16. The value is the
            paper's; divide by that factor to compare estimates with different s.
        generator: to draw from, on the CPU. None: torch's own, which stays as it was, so that the
            next call draws the same.
        chunk_size: how many batches are normalized together, by ``torch.vmap``; None: as many as
            have 2¹⁹ numbers. 1 calls ``norm`` batch by batch.
    """
    return snd_with_error(
        norm,
        data,
        batch_size=batch_size,
        num_samples=num_samples,
        num_batches=num_batches,
        generator=generator,
        chunk_size=chunk_size,
    ).values


@random_state_kept()
@torch.no_grad()
def snd_with_error(
    norm: nn.Module | Callable[..., Any],
    data: Tensor | Iterable[Any],
    *,
    batch_size: int,
    num_samples: int,
    num_batches: int,
    generator: torch.Generator | None = None,
    chunk_size: int | None = None,
) -> Disturbance:
    """:func:`snd` with its standard errors beside it.

    >>> import isonorm
    >>> x = torch.randn(1000, 16)
    >>> d = snd_with_error(isonorm.DBN(16), x, batch_size=64, num_samples=20, num_batches=20)
    >>> d.values.shape == d.errors.shape and 0 < d.error < d.mean
    True
    """
    x = examples(data)
    _check_sizes(len(x), batch_size, num_samples, num_batches, chunk_size)
    outputs = _outputs(in_training(norm), x, batch_size, num_samples, num_batches, generator,
                       chunk_size)  # fmt: skip
    outputs = outputs.to(torch.promote_types(outputs.dtype, torch.float32))
    distances = (outputs - outputs.mean(1, keepdim=True)).norm(dim=2)  # (N, s)
    return Disturbance(distances.mean(1), distances.std(1) / num_batches**0.5)


def _outputs(
    norm: Callable[[Tensor], Tensor],
    x: Tensor,
    batch_size: int,
    num_samples: int,
    num_batches: int,
    generator: torch.Generator | None,
    chunk_size: int | None,
) -> Tensor:
    """(N, s, numbers of a sample): F(X_j; x_i), each x_i in s batches of its own."""
    samples = draw_distinct(len(x), num_samples, 1, generator)[0]
    members = []  # drawn before anything is normalized: chunks do not change what is drawn
    for sample in samples:
        others = draw_distinct(len(x) - 1, batch_size - 1, num_batches, generator)
        others += others >= sample  # the sample itself is not drawn a second time
        members.append(torch.cat([sample.expand(num_batches, 1), others], dim=1))
    if chunk_size is None:
        chunk_size = max(1, _TOGETHER // (batch_size * x[0].numel()))
    found = [
        _first_rows(norm, x[part.to(x.device)]) for part in torch.cat(members).split(chunk_size)
    ]
    return torch.cat(found).view(num_samples, num_batches, -1)


def _first_rows(norm: Callable[[Tensor], Tensor], batches: Tensor) -> Tensor:
    """The normalized first example of each of (k, B, …) batches."""
    if len(batches) == 1:
        return norm(batches[0])[:1]
    try:
        return torch.vmap(lambda batch: norm(batch)[0], randomness="different")(batches)
    except Exception as error:
        error.add_note(
            "Batches were normalized together by torch.vmap; chunk_size=1 passes them one by one."
        )
        raise


def _check_sizes(
    population: int, batch_size: int, num_samples: int, num_batches: int, chunk_size: int | None
) -> None:
    if not 2 <= batch_size <= population:
        raise ValueError(
            f"batch_size must be between 2 and the {population} examples of the data; got "
            f"{batch_size}."
        )
    if not 1 <= num_samples <= population:
        raise ValueError(
            f"num_samples must be between 1 and the {population} examples of the data; got "
            f"{num_samples}."
        )
    if num_batches < 2:
        raise ValueError(f"num_batches must be at least 2, to differ at all; got {num_batches}.")
    if chunk_size is not None and chunk_size < 1:
        raise ValueError(f"chunk_size must be None or at least 1; got {chunk_size}.")
