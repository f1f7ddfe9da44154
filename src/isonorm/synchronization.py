"""Statistics over several processes: their groups by name, and one differentiable collective."""

from __future__ import annotations

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


def _on_device(count: Tensor | int, like: Tensor) -> Tensor:
    """(1,) A number where the statistics are, without waiting for the device."""
    if isinstance(count, Tensor):
        return count.to(like.device, torch.float64).reshape(1)
    return torch.full((1,), count, dtype=torch.float64, device=like.device)


def reduce_across(name: str, parts: list[Statistics], centers: bool) -> list[Statistics]:
    """The statistics of all ranks together, in one collective whose size does not depend on their
    number.

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
    sums = all_reduce(packed, name)
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
        merged.append(Statistics(n, mean.to(dtype), (cov + (exact - cov).detach()).to(dtype)))
    return merged


def _with_row_and_column(v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return v, v.unsqueeze(-2), v.unsqueeze(-1)
