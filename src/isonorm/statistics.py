"""What a batch knows about itself: count, mean and centered covariance, as a monoid.

One ``merge`` (Chan, Golub & LeVeque 1979) combines tiles, chunks and populations. Where sums are
taken about a pivot near the mean, ``about_mean`` moves them to it. Sums about zero appear only
where nothing is centered, and in ``synchronization``, where ranks have no other pivot in common.

Index legend: b problems, d features, m samples.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import reduce
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .area import Area
from .symbolic import is_traced

#: Features of a problem below which libraries add products one after the other, so that rounding
#: grows with the number of samples, up to a thousandfold: those are added in float64.
FEW_FEATURES = 16

#: Samples beyond which products are cut, and their parts added: the same for many features.
MOST_SAMPLES = 1 << 12


class Statistics(NamedTuple):
    """Statistics of b problems with d features.

    ``cov`` is the biased covariance (divided by ``count``), without eps. Where a normalization does
    not center, ``mean`` is zero and ``cov`` the second moment; where it only centers, ``cov`` is
    one; for p-norms other than 2, ``cov`` is the σ² estimated from them.
    """

    count: Tensor | int
    mean: Tensor  # (b, d)
    cov: Tensor  # (b, d, d)

    def unbiased_cov(self) -> Tensor:
        """Σ·m/(m − 1), the estimate that running statistics average, as torch's running variance
        does.
        """
        if isinstance(self.count, Tensor):
            return self.cov * (self.count / (self.count - 1).clamp(min=1)).to(self.cov.dtype)
        return self.cov * (self.count / max(self.count - 1, 1))


class Measured(NamedTuple):
    """Statistics of a batch with the rest of the mean: what its rounding has left out.

    Whitening stretches directions without variance most of all, and there this rest would be all of
    the output. x − μ is exact far from zero, so that it can be taken off products afterwards.
    """

    count: Tensor | int
    mean: Tensor  # (b, d)
    cov: Tensor  # (b, d, d)
    rest: Tensor | None  # (b, d); None where no matrix multiplies deviations

    def exact(self) -> Statistics:
        """Return the statistics with the mean and its rest as one number of float64."""
        mean = self.mean.double()
        mean = mean if self.rest is None else mean + self.rest.double()
        return Statistics(self.count, mean, self.cov)


def measured_about(pivot: Tensor, about_pivot: Statistics, keeps_rest: bool) -> Measured:
    """Return statistics whose mean was relative to a pivot."""
    count, delta, cov = about_pivot
    mean = pivot + delta
    return Measured(count, mean, cov, delta - (mean - pivot) if keeps_rest else None)


def rounded(exact: Statistics, keeps_rest: bool) -> Measured:
    """Return statistics in the dtype of their covariance from a mean in float64."""
    count, mean, cov = exact
    leading = mean.to(cov.dtype)
    rest = (mean - leading).detach().to(cov.dtype) if keeps_rest else None
    return Measured(count, leading, cov, rest)


def working_dtype(x: Tensor) -> torch.dtype:
    """The dtype of statistics and d × d work for an input: float64 for float64, float32 for
    everything else.
    """
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def no_autocast(x: Tensor) -> AbstractContextManager:
    """The statistics' own precision, whatever is asked for outside; a meta tensor has none."""
    if x.is_meta:
        return nullcontext()
    return torch.autocast(x.device.type, enabled=False)


def merge(left: Statistics, right: Statistics) -> Statistics:
    """The statistics of two sets of samples together, without ever leaving the neighborhood of
    their means. A set may be empty.

    >>> x = torch.randn(3, 4, 90, dtype=torch.float64) + 1e4
    >>> whole, parts = measure(x), merge(measure(x[..., :20]), measure(x[..., 20:]))
    >>> torch.allclose(whole.cov, parts.cov) and torch.allclose(whole.mean, parts.mean)
    True
    """
    count = left.count + right.count
    samples = count.clamp(min=1) if isinstance(count, Tensor) else max(count, 1)
    share = right.count / samples
    delta = right.mean - left.mean
    mean = left.mean + delta * share
    cov = left.cov + (right.cov - left.cov) * share + _outer(delta) * (share * (1 - share))
    return Statistics(count, mean, cov)


def measure(problems: Tensor, center: bool = True) -> Statistics:
    """The statistics of a (b, d, m) tensor, in its dtype, written as the definition."""
    m = problems.shape[-1]
    if not center:
        return Statistics(m, torch.zeros_like(problems[..., 0]), _second_sums(problems) / m)
    mean = problems.mean(-1)
    centered = problems - mean.unsqueeze(-1)
    return about_mean(Statistics(m, mean, _second_sums(centered) / m), centered.mean(-1))


def _second_sums(x: Tensor) -> Tensor:
    if adds_in_float64(x.shape[-2], x):
        return _gram(x.double()).to(x.dtype)
    # A graph is for any number of samples, so that it cannot have a certain number of parts.
    if x.dtype != torch.float32 or torch.compiler.is_compiling() or is_traced():
        return _gram(x)
    return reduce(Tensor.add, map(_gram, x.split(MOST_SAMPLES, -1)))


def _gram(x: Tensor) -> Tensor:
    return x @ x.transpose(-1, -2)  # mT: not in older ONNX exports


def adds_in_float64(d: int, x: Tensor) -> bool:
    """Whether sums of products of so many features need more than the numbers' own precision."""
    has_float64 = x.device.type in ("cpu", "cuda")
    return 1 < d < FEW_FEATURES and x.dtype == torch.float32 and has_float64


def about_mean(about_pivot: Statistics, delta: Tensor) -> Statistics:
    """Statistics about the mean from those about a pivot that is δ away from it.

    A mean that was rounded is such a pivot: far from zero its error is not small beside the
    deviations, while δ, the mean of what is left, is exact.
    """
    count, pivot, moment = about_pivot
    cov = torch.addcmul(moment, delta.unsqueeze(-1), delta.unsqueeze(-2), value=-1)
    return Statistics(count, pivot + delta, cov)


def _outer(v: Tensor) -> Tensor:
    return v.unsqueeze(-1) * v.unsqueeze(-2)


def join_vectors(parts: list[Tensor]) -> Tensor:
    """(b, d) from the blocks' (bᵢ, dᵢ)."""
    d = parts[0].shape[-1]
    return (
        parts[0] if len(parts) == 1 else torch.cat([F.pad(p, (0, d - p.shape[-1])) for p in parts])
    )


def join_matrices(parts: list[Tensor]) -> Tensor:
    """(b, d, d) from the blocks' (bᵢ, dᵢ, dᵢ).

    A shorter last group is computed apart. Kept with the others it is the leading corner of its
    matrix; the rest is identity (zeros in a vector) and never read.

    >>> join_matrices([torch.zeros(1, 2, 2), torch.full((1, 1, 1), 7.0)])[1]
    tensor([[7., 0.],
            [0., 1.]])
    """
    if len(parts) == 1:
        return parts[0]
    d = parts[0].shape[-1]
    joined = []
    for part in parts:
        rest = d - part.shape[-1]
        outside = torch.ones(rest, dtype=part.dtype, device=part.device)
        joined.append(F.pad(part, (0, rest, 0, rest)) + torch.diag(F.pad(outside, (d - rest, 0))))
    return torch.cat(joined)


def split_statistics(
    statistics: Statistics, area: Area, batch: int, channels: int, positions: int
) -> list[Statistics]:
    """The statistics of each block of an (N, C, S) input, without padding."""
    places = area.places(batch, channels, positions)
    b, d = places[-1].rows.stop, places[0].d
    if statistics.mean.shape != (b, d) or statistics.cov.shape != (b, d, d):
        raise ValueError(
            f"statistics do not fit area {area!r} of an input with {channels} channels: expected "
            f"mean {(b, d)} and cov {(b, d, d)}; got {tuple(statistics.mean.shape)} and "
            f"{tuple(statistics.cov.shape)}."
        )
    return [
        Statistics(statistics.count, statistics.mean[rows, :d], statistics.cov[rows, :d, :d])
        for _, rows, d in places
    ]
