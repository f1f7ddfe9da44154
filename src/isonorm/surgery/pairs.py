"""Conversion to EquiNorm, which takes the place of two modules: a BatchNorm and the convolution, or
linear layer, that feeds it.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..weights import equinorm_from_pair
from .freezing import is_frozen
from .graph import Known, Links, Swap, follow, unfit
from .report import Change, Conversion, Left, Refused, short
from .sources import at_home, read
from .transplant import NormDropAct, has_any_hooks
from .tree import Changes, Hung, Sharing, modules_of
from .where import Where, norms_of, select


def convert_pairs(model: nn.Module, where: Where) -> Conversion:
    """Puts a layer in equilibrium in the place of every pair, and an identity in the norm's."""
    norms = norms_of(model)
    chosen = select(norms, where)
    by_name = {hung.name: hung for hung in modules_of(model)}
    known, sharing = follow(model, True, False), Sharing(model)
    swaps: dict[Hung, Swap] = {}
    reasons: dict[Hung, str] = {}
    for norm in norms:
        try:
            if known.why_not:
                raise Refused(known.why_not)
            if norm not in chosen:
                raise Refused("`where` does not select it")
            with torch.inference_mode(False), at_home(norm, model):
                feeding = _feeding(norm, known.links.values(), by_name)
                layer = _in_equilibrium(norm, feeding, sharing)
                _check_readers(norm.module, feeding.module, known)
                swaps[norm] = [(feeding, layer), (norm, _behind(norm.module))]
        except Refused as reason:
            reasons[norm] = str(reason)
    pairs = list(swaps)
    for index, why in unfit(model, known, list(swaps.values())).items():
        reasons[pairs[index]] = f"the code around it is made for it: {why}"
        swaps.pop(pairs[index])
    with Changes() as changes:
        for hung, new in (pair for swap in swaps.values() for pair in swap):
            changes.put(hung, new)
    left = [Left(n.label, short(n.module), reasons[n]) for n in norms if n in reasons]
    return Conversion([_change(norm, swap) for norm, swap in swaps.items()], left)


def _change(norm: Hung, swap: Swap) -> Change:
    (feeding, layer), _ = swap
    before = f"{type(feeding.module).__name__} and {short(norm.module)}"
    note = "its statistics are of the input: recalibrate, or train"
    return Change(f"{feeding.label}, {norm.label}", before, type(layer).__name__, None, note)


def _check_readers(norm: nn.Module, feeding: nn.Module, known: Known) -> None:
    """Refuse a pair if other code reads a parameter or buffer of it beside the kernel."""
    bias = feeding._parameters.get("bias")
    gone = [*norm.parameters(), *norm.buffers(), *([] if bias is None else [bias])]
    if readers := known.readers(*gone):
        raise Refused(
            f"parameters or statistics of the pair are also used by {' and '.join(readers)}"
        )


def _feeding(norm: Hung, modes: Iterable[Links], by_name: dict[str, Hung]) -> Hung:
    """The layer whose only reader is the norm, and which is all that the norm reads, in training
    and in eval.
    """
    if not isinstance(norm.module, _BatchNorm):
        raise Refused("EquiNorm takes the place of BatchNorm alone")
    read(norm.module)
    training, evaluation = (_feeding_in(norm, links, by_name) for links in modes)
    if training is not evaluation:
        raise Refused("it is fed by one layer in training, by another in eval")
    return training


def _feeding_in(norm: Hung, links: Links, by_name: dict[str, Hung]) -> Hung:
    why = links.unseen(norm.name)
    if why or not links.calls(norm.name):
        raise Refused(why or "the model's forward does not call it")
    before = links.before(norm.name)
    feeding = by_name.get(before[0]) if len(before) == 1 else None
    if feeding is None or not isinstance(
        feeding.module, nn.Conv1d | nn.Conv2d | nn.Conv3d | nn.Linear
    ):
        raise Refused(f"it is fed by {' and '.join(before)}, no convolution or linear layer")
    if links.after(feeding.name) != (norm.name,):
        raise Refused(f"{feeding.name!r} feeds others, too")
    if has_any_hooks(norm.module) or has_any_hooks(feeding.module):
        raise Refused("hooks are on the pair, which one layer could not tell apart")
    return feeding


def _in_equilibrium(norm: Hung, feeding: Hung, sharing: Sharing) -> nn.Module:
    conv: nn.Module = feeding.module
    if why := sharing.why(norm.module):
        raise Refused(why)
    if why := sharing.why(conv):
        raise Refused(f"it is fed by {feeding.name!r}, and {why}")
    if is_frozen(norm.module):
        raise Refused("it is frozen")
    if conv.weight[0].numel() == 1:  # pyright: ignore[reportIndexIssue]
        raise Refused(f"{feeding.name!r} has one weight for each output, which balances to zero")
    try:
        return equinorm_from_pair(conv, norm.module)
    except (TypeError, ValueError) as error:
        raise Refused(str(error)) from error


def _behind(norm: nn.Module) -> nn.Module:
    """What is left of a norm: nothing, or the drop and activation that were inside it."""
    source = read(norm)
    if source.drop is None and source.act is None:
        return nn.Identity()
    return NormDropAct(nn.Identity(), source.drop, source.act)
