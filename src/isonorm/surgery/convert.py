"""``convert``: other norms in a model that exists; ``revert``: BatchNorm again."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor, nn

from .. import registry
from ..checks import check_flag
from ..layers import BatchNorm, Normalize
from ..recovery import Modulation
from ..synchronization import resolve_group
from .activations import Fusion, following
from .graph import Known, difference, follow, unfit
from .pairs import convert_pairs
from .report import Change, Conversion, Left, Refused, is_same, short
from .sources import Source, as_target, at_home, place_at, read
from .transplant import FUSIBLE, Graft, acts, graft
from .tree import Changes, Hung, Sharing
from .warmstart import warm_start
from .where import Where, norms_of, select

#: The attribute in which a converted layer keeps what makes the norm it goes back to.
ORIGIN = "_converted_from"
#: Makes a norm from its number of channels.
Factory = Callable[[int], nn.Module]
#: Makes the successor of a module, which was read as a source.
Make = Callable[[nn.Module, Source], nn.Module]


def convert(
    model: nn.Module,
    to: str | Factory,
    *,
    where: Where = "all",
    fuse_act: bool = False,
    **options: Any,
) -> Conversion:
    """Replaces the norms of a model, in place, and reports what changed and what was left.

    >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU())
    >>> print(convert(model, "iternorm"))
    1 norm changed, none left.
      1  BatchNorm2d(8)  →  IterNorm(8)  same in eval

    Args:
        model: its BatchNorm, SyncBatchNorm, InstanceNorm and GroupNorm layers, timm's norms with an
            activation inside, and isonorm's own layers are replaced.
        to: a name of ``list_norms()``, which may have options as in "dbn:group_size=32", a class,
            or a factory called with the number of channels alone, such as
            ``lambda c: isonorm.IterNorm(c, group_size=16)``. "equinorm" makes an ``EquiConv`` or
            ``EquiLinear`` of each BatchNorm and the layer that alone feeds it.
        where: "all"; "first"; a shell pattern for names, such as ``"layer1.*"``; a class; a
            function of name and module; or a list of such.
        fuse_act: also let a norm apply the ReLU or SiLU module that alone follows it.
        options: keywords of the new layers, such as ``group_size=32``, where ``to`` is a name or a
            class.

    Parameters stay the same objects. They, the statistics, eps, momentum, mode, device, dtype and
    hooks carry over, and γ makes up for the new root, so that in eval a model that had BatchNorm
    computes what it did before; the report says where it does not. A norm that the model's forward
    does more with than call it is left, as far as torch.fx can follow that; ``unknown`` of the
    report names the norms where it cannot. An error leaves the model as it was.
    """
    if isinstance(to, str) and to.lower() == "equinorm":
        if fuse_act:
            raise ValueError("EquiNorm's layers apply no activation: leave fuse_act out.")
        if options:
            raise TypeError(f"EquiNorm's layers take no options here: leave {min(options)} out.")
        return convert_pairs(model, where)
    factory = target_factory(to, options)
    return replace_norms(
        model, lambda _, source: factory(source.norm.num_features), where, fuse_act=fuse_act
    )


def revert(model: nn.Module, *, to: str | Factory | None = None) -> Conversion:
    """Puts BatchNorm in the place of isonorm's batch-area layers, in place.

    Each standardizes with the diagonal of the running covariance. γ and β make every channel keep
    its mean, variance and sign in eval; what whitening did between channels is lost, and is only
    nothing right after ``convert``, which this then undoes. A layer that was converted becomes what
    it was before; others become ``to``, by default ``isonorm.BatchNorm``, which is for inputs of
    any rank; ``to=torch.nn.BatchNorm2d`` leaves no trace of isonorm.

    >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))
    >>> _ = convert(model, "iternorm")
    >>> print(revert(model))
    1 norm changed, none left.
      1  IterNorm(8)  →  BatchNorm2d(8)  same in eval
    """

    chosen = None if to is None else target_factory(to)

    def batchnorm(module: nn.Module, source: Source) -> nn.Module:
        if not isinstance(module, Normalize):
            raise Refused("it is not one of isonorm's layers")
        if not module.area.spans_batch:
            raise Refused(
                f"{module.area!r} does not span the batch, so there is no BatchNorm to go back to"
            )
        if chosen is not None:
            return chosen(module.num_features)
        origin = module.__dict__.get(ORIGIN, BatchNorm)
        if origin is not BatchNorm and module.process_group:
            group = resolve_group(module.process_group)
            return nn.SyncBatchNorm(module.num_features, process_group=group)
        if isinstance(origin, partial) and not _suffices(origin, source.norm):
            origin = origin.func  # what it did not have it needs by now
        return origin(module.num_features)

    return replace_norms(model, batchnorm, "all")


def target_factory(to: str | Factory, options: dict[str, Any] | None = None) -> Factory:
    """Return what makes the new norms; raise before any is made where there is no such norm."""
    if isinstance(to, str):
        return registry.norm_maker(to, options or {})
    if isinstance(to, nn.Module):
        raise TypeError(
            f"each norm needs a layer of its own, so `to` is a name, a class or a factory; got the "
            f"layer {short(to)}: pass lambda channels: … instead."
        )
    if not callable(to):
        raise TypeError(f"`to` must be a name, a class or a factory; got {to!r}.")
    if not options:
        return to
    if not isinstance(to, type):
        raise TypeError(
            f"options go to a name or a class, and `to` is a factory: let it take {min(options)} "
            "itself."
        )
    return registry.layer_maker(to, options)


def replace_norms(
    model: nn.Module, make: Make, where: Where = "all", *, fuse_act: bool = False
) -> Conversion:
    """Lets ``make`` produce the successor of every norm that ``where`` selects."""
    check_flag("fuse_act", fuse_act)
    norms = norms_of(model)
    chosen = select(norms, where)
    sharing, known = Sharing(model), follow(model, True, False)
    grafts: dict[Hung, Graft] = {}
    reasons: dict[Hung, str] = {}
    for hung in norms:
        try:
            if hung not in chosen:
                raise Refused("`where` does not select it")
            with torch.inference_mode(False), at_home(hung, model):
                source = read(hung.module)
                if why := sharing.why(hung.module):
                    raise Refused(why)
                made = _successor(hung, source, make, fuse_act, model)
            _check_readers(hung.module, made, known)
            grafts[hung] = made
        except Refused as reason:
            reasons[hung] = str(reason)
    if len({made.norm for made in grafts.values()}) < len(grafts):
        raise ValueError("the factory returned the same layer twice: each norm needs its own.")
    swaps = [[(hung, made.module)] for hung, made in grafts.items()]
    for index, why in unfit(model, known, swaps).items():
        hung, _ = swaps[index][0]
        reasons[hung] = f"the code around it is made for it: {why}"
        grafts.pop(hung)
    rows = _put(model, grafts, known, fuse_act)
    left = [Left(h.label, short(h.module), reasons[h]) for h in norms if h in reasons]
    unknown = {h.label: why for h in grafts if (why := known.unseen(h.module))}
    return Conversion(rows, left, unknown)


def _put(model: nn.Module, grafts: dict[Hung, Graft], known: Known, fuse_act: bool) -> list[Change]:
    """Put all new norms in their places, or none of them."""
    fusions = following(model, list(grafts)) if fuse_act else []
    rows = []
    with torch.inference_mode(False), Changes() as changes:
        for (hung, made), fusion in zip_longest(grafts.items(), fusions):
            note = _fuse(made, fusion, changes) if fusion else ""
            changes.put(hung, made.module)
            for tensor, value in made.writes:
                changes.write(tensor, value)
            rows.append(_change(hung, made, note))
        swap = [(hung, made.module) for hung, made in grafts.items()]
        if fusions and (why := difference(model, known, swap)):
            raise ValueError(
                f"the model asks for more of an activation: {why}: leave fuse_act out."
            )
    return rows


def _check_readers(module: nn.Module, made: Graft, known: Known) -> None:
    """Refuse a norm if other code reads a parameter or buffer whose value would change."""
    written = {id(tensor): value for tensor, value in made.writes}
    own = (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False))
    for name, before in own:
        after = getattr(made.norm, name, None)
        after = written.get(id(after), after)
        if isinstance(after, Tensor) and _equal(after, before):
            continue
        if readers := known.readers(before):
            raise Refused(f"its {name} is also used by {' and '.join(readers)}")


def _equal(after: Tensor, before: Tensor) -> bool:
    """Return whether two tensors are the same but for rounding."""
    if (after.dtype, after.shape, after.is_meta) != (before.dtype, before.shape, False):
        return False
    rounding = 8 * torch.finfo(after.dtype).eps if after.is_floating_point() else 0
    return torch.allclose(after, before, rtol=rounding, atol=0)


def _fuse(made: Graft, fusion: Fusion, changes: Changes) -> str:
    """Lets a new norm apply the activation that follows it; otherwise says why it does not."""
    if not isinstance(made.norm, Normalize):
        return "only isonorm's layers apply activations"
    if made.norm.act is not None:
        return ""
    if fusion.act is None:
        return f"no activation fused: {fusion.reason}"
    made.norm.act = FUSIBLE[type(fusion.act.module)]
    changes.put(fusion.act, nn.Identity())
    return ""


def _successor(hung: Hung, source: Source, make: Make, fuse_act: bool, model: nn.Module) -> Graft:
    module = hung.module
    try:
        norm = make(module, source)
        if not isinstance(norm, nn.Module):
            raise TypeError(f"the factory must return a torch.nn.Module; got {norm!r}.")
        if any(isinstance(place.parent, Modulation) for place in hung.places):
            _recover_nothing(norm)
        if type(module) is type(norm) and _is_already(source.norm, as_target(norm)):
            raise Refused("it is already that")
        norm.to(**place_at(hung, model))
        made = graft(module, source, norm, fuse_act=fuse_act)
    except (TypeError, ValueError) as error:
        raise type(error)(f"cannot replace {hung.name!r}: {error}") from error
    if isinstance(norm, Normalize):
        norm.__dict__[ORIGIN] = _origin(module)
    return made


def _recover_nothing(norm: nn.Module) -> None:
    """Takes γ and β from a norm that a modulation goes around, which has its own."""
    for name in norm._parameters:
        norm._parameters[name] = None
    if "affine" in vars(norm):
        norm.affine = False  # type: ignore[assignment]
    if isinstance(norm, Normalize):
        norm._recovery_class = None


def _is_already(old: Normalize, new: Normalize) -> bool:
    """Whether a new layer would bring nothing that the old one has not. What the old one lacks or
    has beyond that stays with it: a layer without γ is not given one that could not learn.
    """

    def parts(layer: Normalize) -> tuple:
        return layer.area, layer.operation, type(layer.recovery), layer.running

    dropped = [
        having(new) is None and having(old) is not None
        for having in (lambda n: n.recovery.gain, lambda n: n.bias, lambda n: n.running_mean)
    ]
    return (
        parts(old) == parts(new)
        and not any(dropped)
        and acts(new) in ("", acts(old))
        and new.process_group in ("", old.process_group)
        and new.check_finite <= old.check_finite
    )


def _origin(module: nn.Module) -> Factory:
    """What ``revert`` goes back to: the class, without the parameters that it did not have."""
    for kind in (nn.SyncBatchNorm, nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d):
        if isinstance(module, kind):
            if module.weight is None:
                return partial(kind, affine=False)
            return kind if module.bias is not None else partial(kind, bias=False)
    return module.__dict__.get(ORIGIN, BatchNorm)


def _suffices(origin: Factory, norm: Normalize) -> bool:
    """Whether a BatchNorm without some parameters can compute what a layer does, as to scale."""
    plain: Any = origin(norm.num_features)
    plain.eps = norm.eps
    if norm.running_mean is None:
        return False
    plain.to(norm.running_mean.device, norm.running_mean.dtype)
    return is_same(warm_start(norm, read(plain).norm).deviation)


def _change(hung: Hung, made: Graft, note: str) -> Change:
    notes = "; ".join(filter(None, (made.start.note, note)))
    return Change(hung.label, short(hung.module), short(made.norm), made.start.deviation, notes)
