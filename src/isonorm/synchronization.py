"""Statistics over several processes: their groups by name, and one differentiable sum.

Every sum travels in float64, forward and backward, so that ranks may compute in different dtypes.
A backend that gets sums of different lengths ends the process or hangs. So between CPUs the first
message of every sum has one length. It begins with a digest of the pass, and ranks that do not
agree raise on all of them. Reading the digest would make a GPU's host wait, so that there only the
first of equal sums is checked.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor

from .exact import leading, product_error
from .statistics import Statistics


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


# torch.compile cannot look up process groups and takes the answer of the first call for a constant:
# torch.distributed has to be initialized before.
is_shared._dynamo_marked_constant = True  # type: ignore[attr-defined]


#: Numbers in the first message of a sum that is checked.
FIRST_MESSAGE = 2048
#: Bits of each of the two parts of a digest: their squares add up exactly over 8192 ranks.
_DIGEST_BITS = 20
#: The sums on which the ranks of a group have agreed.
_agreed: WeakKeyDictionary[dist.ProcessGroup, set[str]] = WeakKeyDictionary()


def _sum_over_ranks(tensor: Tensor, name: str, what: str) -> Tensor:
    """Return the sum of a (n,) tensor of float64 over the ranks, which must all mean the same."""
    _refuse_join()
    group = resolve_group(name) or dist.group.WORLD
    assert group is not None
    agreed, described = _agreed.setdefault(group, set()), f"{tensor.numel()} numbers of {what}"
    if not tensor.is_cpu and described in agreed:
        return _summed(tensor.clone(), group, described)
    digest = tensor.new_tensor(_digest(described))
    part = min(FIRST_MESSAGE - len(digest), len(tensor))
    first = tensor.new_zeros(FIRST_MESSAGE)
    first[: len(digest)] = digest
    first[len(digest) :][:part] = tensor[:part]
    first = _summed(first, group, described)
    _check_agreement(first[: len(digest)].tolist(), group, described)
    if not tensor.is_cpu:
        agreed.add(described)
    total = first[len(digest) :][:part]
    if part == len(tensor):
        return total.clone()
    return torch.cat([total, _summed(tensor[part:].clone(), group, described)])


def _summed(tensor: Tensor, group: dist.ProcessGroup, described: str) -> Tensor:
    """Sum a tensor over ranks, in place."""
    try:
        dist.all_reduce(tensor, group=group)
    except RuntimeError as why:
        raise RuntimeError(
            f"not every rank took part in a sum over ranks ({described}): run synchronized layers "
            "equally often and in one order, all in training or all in eval, and look for an "
            f"error on another rank; torch.distributed says: {why}"
        ) from why
    return tensor


@lru_cache(maxsize=512)
def _digest(described: str) -> list[float]:
    """Return a digest in two parts, each with its square: the mean of squares over ranks is the
    square of the mean only where all are equal.
    """
    bits = int.from_bytes(hashlib.sha256(described.encode()).digest()[:5], "big")
    parts = bits >> _DIGEST_BITS, bits & ((1 << _DIGEST_BITS) - 1)
    return [float(number) for part in parts for number in (part, part**2)]


def _check_agreement(sums: list[float], group: dist.ProcessGroup, described: str) -> None:
    """Raise, on all ranks alike, where their digests differ."""
    size = dist.get_world_size(group)
    pairs = zip(sums[::2], sums[1::2], strict=True)
    if all(total**2 == size * squares for total, squares in pairs):
        return
    theirs = [""] * size
    dist.all_gather_object(theirs, described, group=group)
    ranks: dict[str, list[str]] = {}
    for rank, text in zip(dist.get_process_group_ranks(group), theirs, strict=True):
        ranks.setdefault(text, []).append(str(rank))
    sent = "; ".join(f"rank {', '.join(numbers)}: {text}" for text, numbers in ranks.items())
    raise RuntimeError(
        "ranks that share statistics must run the same layers, made alike, with as many channels, "
        f"in one order, each forward and backward; they send {sent}."
    )


def _refuse_join() -> None:
    """Refuse DDP's ``join``: a rank that has run out of batches takes part in DDP's sums alone."""
    module = getattr(torch.nn.parallel.DistributedDataParallel, "_active_ddp_module", None)
    config = getattr(module, "_join_config", None)
    if config is not None and config.enable and not config.throw_on_early_termination:
        raise RuntimeError(
            "synchronized normalization cannot run inside DistributedDataParallel's join(), where "
            "ranks without batches do not take part in its sums: use "
            "join(throw_on_early_termination=True), or give every rank as many batches (they may "
            "be empty)."
        )


class _AllReduce(torch.autograd.Function):
    """Sum over ranks. Its derivative is the sum over ranks again, to any order."""

    @staticmethod
    def forward(ctx, tensor: Tensor, name: str, what: str) -> Tensor:
        ctx.name, ctx.what = name, what
        return _sum_over_ranks(tensor, name, what)

    @staticmethod
    def backward(ctx, *grads: Tensor) -> tuple[Tensor, None, None]:
        return _AllReduce.apply(grads[0], ctx.name, _derivative_of(ctx.what)), None, None


def _derivative_of(what: str) -> str:
    return f"the derivative of {what}"


@torch.library.custom_op("isonorm::all_reduce", mutates_args=())
def _all_reduce_op(tensor: Tensor, name: str, what: str) -> Tensor:
    """The same for a compiler, which cannot look into it."""
    return _sum_over_ranks(tensor.detach(), name, what)


@_all_reduce_op.register_fake
def _(tensor, name, what):
    return torch.empty_like(tensor)


def _setup_context(ctx, inputs, output) -> None:
    _, ctx.name, ctx.what = inputs


_all_reduce_op.register_autograd(
    lambda ctx, grad: (_all_reduce_op(grad, ctx.name, _derivative_of(ctx.what)), None, None),
    setup_context=_setup_context,
)


def all_reduce(tensors: list[Tensor], name: str, what: str) -> list[Tensor]:
    """Return the sums of several tensors over ranks, differentiably, each in its dtype.

    ``what`` says which sums they are: ranks must agree on it, as on the number of numbers.
    """
    packed = torch.cat([t.reshape(-1).double() for t in tensors])
    summed = (
        _all_reduce_op(packed, name, what)
        if torch.compiler.is_compiling()
        else _AllReduce.apply(packed, name, what)
    )
    parts = summed.split([t.numel() for t in tensors])
    return [part.view(t.shape).to(t.dtype) for part, t in zip(parts, tensors, strict=True)]


def _on_device(count: Tensor | int, like: Tensor) -> Tensor:
    """(1,) A number where the statistics are, without waiting for the device."""
    if isinstance(count, Tensor):
        return count.to(like.device, torch.float64).reshape(1)
    return torch.full((1,), count, dtype=torch.float64, device=like.device)


def reduce_across(name: str, parts: list[Statistics], centers: bool, what: str) -> list[Statistics]:
    """Return the statistics of all ranks together, by one sum whose size does not depend on their
    number. Their means are in float64.

    A sum over ranks needs a pivot that all of them know beforehand, so each rank re-expresses its
    centered moments about zero. So that nothing is lost there, whatever the mean, sums travel as
    two float64 numbers: 24 leading bits, whose sum over ranks is exact, and the rest. A rank
    without samples contributes nothing, whatever its mean.
    """
    dtype = parts[0].cov.dtype
    packed: list[Tensor] = []
    for part in parts:
        n = _on_device(part.count, part.mean)
        mean, row, column = _with_row_and_column(part.mean.double())
        first, square = mean * n, column * row
        second, tail = square * n, (product_error(column, row) + part.cov.double()) * n
        first_lead, second_lead = leading(first, 29), leading(second, 29)
        packed += [
            n,
            first_lead,
            first - first_lead + product_error(mean, n),
            second_lead,
            second - second_lead + (product_error(square, n) + tail),
        ]
    sums = all_reduce(packed, name, what)
    # Only where the answer is open, and can be waited for: a compiler would have to know it.
    asks = centers and parts[0].count <= 1 and not torch.compiler.is_compiling()
    if asks and sums[0].item() == 1:
        raise ValueError(
            "expected more than one value to normalize together; got one over all ranks: "
            "use a larger batch or input."
        )
    merged = []
    for n, f_lead, f_rest, s_lead, s_rest in zip(*(sums[k::5] for k in range(5)), strict=True):
        n = n.reshape(())
        m = n.clamp(min=1)
        mean, row, column = _with_row_and_column((f_lead + f_rest) / m)
        cov = (s_lead + s_rest) / m - column * row
        with torch.no_grad():  # the same, without its cancellation
            square, mean_n = column * row, mean * m
            rest = (f_lead - mean_n) + (f_rest - product_error(mean, m))
            cross = column * rest.unsqueeze(-2)
            errors = product_error(square, m) + product_error(column, row) * m + cross + cross.mT
            exact = ((s_lead - square * m) + (s_rest - errors)) / m
        merged.append(Statistics(n, mean, (cov + (exact - cov).detach()).to(dtype)))
    return merged


def _with_row_and_column(v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return v, v.unsqueeze(-2), v.unsqueeze(-1)
