"""What a batch knows about itself: count, mean and centred covariance, as a monoid.

One ``merge`` (Chan, Golub & LeVeque 1979) combines tiles, chunks and populations; sums of squares
about anything but the mean appear only inside ``reduce_across``, where ranks must agree on one
pivot before they can add.

Index legend: b problems, d features, m samples.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from .area import Area


class Statistics(NamedTuple):
    """Statistics of b problems with d features.

    ``cov`` is the biased covariance (divided by ``count``), without eps. Where a normalization does
    not center, ``mean`` is zero and ``cov`` the second moment; where it only centers, ``cov`` is
    one.
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
    """The statistics of two sets of samples together, without ever leaving the neighbourhood of
    their means.

    >>> x = torch.randn(3, 4, 90, dtype=torch.float64) + 1e4
    >>> whole, parts = measure(x), merge(measure(x[..., :20]), measure(x[..., 20:]))
    >>> torch.allclose(whole.cov, parts.cov) and torch.allclose(whole.mean, parts.mean)
    True
    """
    count = left.count + right.count
    share = right.count / count
    delta = right.mean - left.mean
    mean = left.mean + delta * share
    cov = left.cov + (right.cov - left.cov) * share + _outer(delta) * (share * (1 - share))
    return Statistics(count, mean, cov)


def measure(problems: Tensor, center: bool = True) -> Statistics:
    """The statistics of a (b, d, m) tensor, in its dtype, written as the definition."""
    m = problems.shape[-1]
    if not center:
        return Statistics(m, torch.zeros_like(problems[..., 0]), problems @ problems.mT / m)
    mean = problems.mean(-1)
    centred = problems - mean.unsqueeze(-1)
    return about_mean(Statistics(m, mean, centred @ centred.mT / m), centred.mean(-1))


def about_mean(about_pivot: Statistics, delta: Tensor) -> Statistics:
    """Statistics about the mean from those about a pivot that is δ away from it.

    A mean that was rounded is such a pivot: far from zero its error is not small beside the
    deviations, while δ, the mean of what is left, is exact.
    """
    count, pivot, moment = about_pivot
    return Statistics(count, pivot + delta, moment - _outer(delta))


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


def group_name(process_group: dist.ProcessGroup | str | None) -> str:
    """The name a layer keeps of its process group ("" for none): unlike the group, it copies and
    pickles.
    """
    if process_group is None or process_group == "":
        return ""
    if process_group == "world":
        return "world"
    name = getattr(process_group, "group_name", None)
    if isinstance(process_group, str) and dist.is_available() and dist.is_initialized():
        try:
            name = _group_of(process_group).group_name  # a name, as a layer's repr shows it
        except RuntimeError:
            name = None
    if not isinstance(name, str):
        raise ValueError(
            "process_group must be a torch.distributed process group, 'world', or None for no "
            f"synchronization; got {process_group!r}."
        )
    return name


def _group_of(name: str) -> dist.ProcessGroup:
    return dist.distributed_c10d._resolve_process_group(name)  # pyright: ignore


def resolve_group(name: str) -> dist.ProcessGroup | None:
    """The process group of that name; None where there is nobody to talk to."""
    if not name or not dist.is_available() or not dist.is_initialized():
        return None
    group = dist.group.WORLD if name == "world" else _group_of(name)
    return group if group is not None and dist.get_world_size(group) > 1 else None


def is_shared(name: str) -> bool:
    """Whether a group of that name has other ranks to talk to."""
    return resolve_group(name) is not None


# For the compiler, which cannot look up a group, the answer of the first call.
is_shared._dynamo_marked_constant = True  # type: ignore[attr-defined]


class _AllReduce(torch.autograd.Function):
    """Sum over ranks. Its derivative is the sum over ranks again, to any order."""

    @staticmethod
    def forward(ctx, tensor: Tensor, name: str) -> Tensor:
        ctx.name = name
        tensor = tensor.clone()
        dist.all_reduce(tensor, group=resolve_group(name))
        return tensor

    @staticmethod
    def backward(ctx, *grads: Tensor) -> tuple[Tensor, None]:
        return _AllReduce.apply(grads[0], ctx.name), None


@torch.library.custom_op("isonorm::all_reduce", mutates_args=())
def _all_reduce_op(tensor: Tensor, name: str) -> Tensor:
    """The same for a compiler, which cannot look into it."""
    return _AllReduce.apply(tensor.detach(), name)


@_all_reduce_op.register_fake
def _(tensor, name):
    return torch.empty_like(tensor)


def _setup_context(ctx, inputs, output) -> None:
    _, ctx.name = inputs


_all_reduce_op.register_autograd(
    lambda ctx, grad: (_all_reduce_op(grad, ctx.name), None), setup_context=_setup_context
)


def all_reduce(tensors: list[Tensor], name: str) -> list[Tensor]:
    """Sums of several tensors over ranks in one collective, differentiable."""
    packed = torch.cat([t.reshape(-1) for t in tensors])
    summed = (
        _all_reduce_op(packed, name)
        if torch.compiler.is_compiling()
        else _AllReduce.apply(packed, name)
    )
    parts = summed.split([t.numel() for t in tensors])
    return [part.view(t.shape) for part, t in zip(parts, tensors, strict=True)]


def _leading(a: Tensor, dropped: int) -> Tensor:
    """a without its last ``dropped`` bits (Veltkamp)."""
    a = a.detach()
    t = a * (2.0**dropped + 1)
    return t - (t - a)


def _product_error(a: Tensor, b: Tensor) -> Tensor:
    """a·b − float(a·b), exactly (Dekker)."""
    a, b = a.detach(), b.detach()
    ah, bh = _leading(a, 27), _leading(b, 27)
    al, bl = a - ah, b - bh
    return ((ah * bh - a * b) + ah * bl + al * bh) + al * bl


def _on_device(count: Tensor | int, like: Tensor) -> Tensor:
    """(1,) A number where the statistics are, without waiting for the device."""
    if isinstance(count, Tensor):
        return count.to(like.device, torch.float64).reshape(1)
    return torch.full((1,), count, dtype=torch.float64, device=like.device)


def reduce_across(name: str, parts: list[Statistics], centers: bool) -> list[Statistics]:
    """The statistics of all ranks together, in one collective whose size does not depend on their
    number.

    A sum over ranks needs a pivot that all of them know beforehand, so each rank re-expresses its
    centred moments about zero. So that nothing is lost there, whatever the mean, sums travel as two
    float64 numbers: 24 leading bits, whose sum over ranks is exact, and the rest. A rank without
    samples contributes nothing, whatever its mean.
    """
    dtype = parts[0].cov.dtype
    packed: list[Tensor] = []
    for part in parts:
        n = _on_device(part.count, part.mean)
        mean, row, column = _vectors(part.mean.double())
        first, square = mean * n, column * row
        second, tail = square * n, (_product_error(column, row) + part.cov.double()) * n
        first_lead, second_lead = _leading(first, 29), _leading(second, 29)
        packed += [
            n,
            first_lead,
            first - first_lead + _product_error(mean, n),
            second_lead,
            second - second_lead + (_product_error(square, n) + tail),
        ]
    sums = all_reduce(packed, name)
    if centers and parts[0].count <= 1 and sums[0].item() == 1:  # only where the answer is open
        raise ValueError(
            "expected more than one value to normalize together; got one over all ranks: "
            "use a larger batch or input."
        )
    merged = []
    for n, f_lead, f_rest, s_lead, s_rest in zip(*(sums[k::5] for k in range(5)), strict=True):
        n = n.reshape(())
        m = n.clamp(min=1)
        mean, row, column = _vectors((f_lead + f_rest) / m)
        cov = (s_lead + s_rest) / m - column * row
        with torch.no_grad():  # the same, without its cancellation
            square, mean_n = column * row, mean * m
            rest = (f_lead - mean_n) + (f_rest - _product_error(mean, m))
            cross = column * rest.unsqueeze(-2)
            errors = _product_error(square, m) + _product_error(column, row) * m + cross + cross.mT
            exact = ((s_lead - square * m) + (s_rest - errors)) / m
        merged.append(Statistics(n, mean.to(dtype), (cov + (exact - cov).detach()).to(dtype)))
    return merged


def _vectors(v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return v, v.unsqueeze(-2), v.unsqueeze(-1)
