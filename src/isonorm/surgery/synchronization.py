"""``convert_sync``: norms that share their statistics across processes."""

from __future__ import annotations

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from .. import checks
from ..layers import Normalize
from ..synchronization import group_name, resolve_group
from ..weights.state import EquilibriumState
from .convert import replace_norms
from .report import Change, Conversion, Left, Refused, short
from .sources import Source
from .tree import modules_of


def convert_sync(model: nn.Module, process_group: object = None) -> Conversion:
    """Lets every norm over the batch, and every layer in equilibrium, share its statistics with a
    process group, in place.

    isonorm's layers do so themselves; torch's BatchNorm becomes SyncBatchNorm. ``process_group`` is
    one of ``torch.distributed``, or None for all ranks. Call it before DistributedDataParallel.

    >>> import isonorm
    >>> model = nn.Sequential(nn.Linear(4, 8), isonorm.IterNorm(8))
    >>> print(convert_sync(model))
    1 norm changed, none left.
      1  IterNorm(8)  →  IterNorm(8)  same in eval: synchronized with 'world'
    """
    name = group_name("world" if process_group is None else process_group)  # type: ignore[arg-type]
    group = resolve_group(name) if isinstance(process_group, str) else process_group

    def synchronized(module: nn.Module, source: Source) -> nn.Module:
        if not isinstance(module, _BatchNorm):
            raise Refused(_reason(module))
        if isinstance(module, nn.SyncBatchNorm):
            raise Refused("it is synchronized already")
        return nn.SyncBatchNorm(module.num_features, process_group=group)

    report = replace_norms(model, synchronized)
    changed, left = list(report.changed), []
    note = f"synchronized with {name!r}"
    own = {hung.name: hung.module for hung in modules_of(model)}
    for row in report.left:
        layer = own[row.name.partition(" = ")[0]]
        reason = _synchronize(layer, name) if isinstance(layer, Normalize) else row.reason
        if reason:
            left.append(Left(row.name, row.module, reason))
        else:
            changed.append(Change(row.name, row.module, short(layer), 0.0, note))
    for hung in modules_of(model):
        if isinstance(hung.module, EquilibriumState):
            hung.module.process_group = name
            changed.append(Change(hung.label, short(hung.module), short(hung.module), 0.0, note))
    return Conversion(changed, left)


def _synchronize(layer: Normalize, name: str) -> str:
    """Why a layer cannot share its statistics; empty where it now does."""
    try:
        checks.check_synchronizable(layer.area, layer.operation)
    except ValueError as error:
        return str(error)
    layer.process_group = name
    return ""


def _reason(module: nn.Module) -> str:
    return f"{type(module).__name__} keeps no statistics of the batch"
