"""Activations that a norm can apply itself: those that alone follow it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import nn

from .graph import Links, Untraceable, read_modes
from .transplant import FUSIBLE, does_nothing, has_any_hooks
from .tree import Hung, kept_aside, modules_of


class Fusion(NamedTuple):
    """The activation module that alone follows a norm, or why there is none to fuse."""

    act: Hung | None
    reason: str = ""


def following(model: nn.Module, norms: Sequence[Hung]) -> list[Fusion]:
    """What each norm could apply itself.

    >>> model = nn.Sequential(nn.BatchNorm1d(4), nn.ReLU())
    >>> following(model, modules_of(model)[:1])[0].act.name
    '1'
    """
    try:
        modes = read_modes(model)
    except Untraceable as error:
        return [Fusion(None, str(error)) for _ in norms]
    by_name = {hung.name: hung for hung in modules_of(model)}
    aside = kept_aside(model)
    return [_following_in_all(modes, hung, by_name, aside) for hung in norms]


def _following_in_all(
    modes: Sequence[Links], norm: Hung, by_name: dict[str, Hung], aside: set[nn.Module]
) -> Fusion:
    """In training and in eval, as far as the norm is called there."""
    in_use = [links for links in modes if links.calls(norm.name) or links.unseen(norm.name)]
    found = [_following(norm, links, by_name) for links in in_use]
    if not found:
        return Fusion(None, "the model's forward does not call it")
    if refused := [fusion for fusion in found if fusion.act is None]:
        return refused[0]
    act = found[0].act
    assert act is not None
    if act.module in aside:
        return Fusion(None, f"{act.name!r} is also kept in a list or dict")
    others = [links for links in modes if links not in in_use and links.calls(act.name)]
    if others or found[-1].act is not act:
        return Fusion(None, f"{act.name!r} is used elsewhere, too")
    return Fusion(act)


def _following(norm: Hung, links: Links, by_name: dict[str, Hung]) -> Fusion:
    why = links.unseen(norm.name)
    if why:
        return Fusion(None, why)
    if has_any_hooks(norm.module):
        return Fusion(None, "its hooks would see the activation's output")

    def passes(label: str) -> bool:
        found = by_name.get(label)
        return found is not None and does_nothing(found.module)

    after = links.after(norm.name, through=passes)
    if len(after) != 1 or after[0] not in by_name:
        return Fusion(None, f"it is followed by {' and '.join(after) or 'nothing'}")
    act = by_name[after[0]]
    if type(act.module) not in FUSIBLE:
        return Fusion(None, f"it is followed by {type(act.module).__name__}, no ReLU or SiLU")
    if has_any_hooks(act.module):
        return Fusion(None, f"{act.name!r} has hooks")
    if links.before(act.name, through=passes) != (norm.name,) or links.unseen(act.name):
        return Fusion(None, f"{act.name!r} is used elsewhere, too")
    return Fusion(act)
