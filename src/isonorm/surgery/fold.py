"""``fold``: a network for inference, in which norms are part of their convolutions."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import TypeVar

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from ..layers.fixed import Merged
from ..layers.kinds import is_norm
from ..weights.equinorm import EquiConv2d, EquiLinear
from ..weights.state import EquilibriumState
from . import graph
from .absorb import LAYERS, merge_after, merge_before
from .fates import Fate, FoldReport
from .graph import FLATTEN, Known, Links
from .maps import EvalMap, eval_map, has_forward_of, own_forward
from .report import Refused
from .tracing import brief, has_hooks, names_of_state
from .tree import KEPT_ASIDE, check_module, innermost, kept_aside, modules_of

#: Functions that write to nothing that was there before. Arithmetic is none of them: torch.fx sees
#: ``x += 1``, which is in place, as an addition.
READERS = {"<cat>", "<getitem>", FLATTEN}

Model = TypeVar("Model", bound=nn.Module)


def fold(model: Model) -> Model:
    """A copy in eval mode with every norm merged into the convolution or linear layer it follows or
    precedes, where that is exact; elsewhere the norm becomes a grouped 1 × 1 convolution.

    >>> import torch, isonorm
    >>> net = nn.Sequential(nn.Conv2d(3, 8, 3), isonorm.IterNorm(8), nn.ReLU()).eval()
    >>> folded = isonorm.fold(net)
    >>> x = torch.randn(2, 3, 6, 6)
    >>> torch.allclose(folded(x), net(x), atol=1e-6)
    True
    >>> print(folded.fold_report)
    1 of 1 norms merged
      merged       1 (IterNorm) → 0

    The model itself is left alone. The copy has its classes and names; ``fold_report`` tells what
    became of each norm, and why. Merged are norms over the batch: isonorm's layers, torch's
    BatchNorm and SyncBatchNorm, timm's BatchNormAct2d. Others normalize each example by itself and
    stay. What feeds what is read with torch.fx, for a call with the required arguments alone; where
    a module's forward cannot be followed, nothing inside it is merged.
    """
    check_module(model)
    if isinstance(model, torch.jit.ScriptModule):
        raise TypeError(
            "a scripted model cannot be folded: fold the one it was made from, then trace that "
            "with torch.jit.trace."
        )
    model = innermost(model)  # type: ignore[assignment]
    with torch.inference_mode(False):
        folding = _Folding(_copy(model).eval())
        folding.run()
    folding.model.fold_report = folding.report()  # type: ignore[assignment]
    return folding.model  # type: ignore[return-value]


def _copy(model: Model) -> Model:
    tensors = (*model.named_parameters(), *model.named_buffers())
    if lazy := next((name for name, tensor in tensors if is_lazy(tensor)), None):
        raise ValueError(
            f"the model is lazy, and {lazy!r} has no shape yet: pass a batch through it first."
        )
    try:
        return copy.deepcopy(model, graph.uncopied(model))
    except Exception as error:
        raise TypeError(
            f"the model holds what cannot be copied, and fold needs a copy: {brief(error)}"
        ) from error


class _Folding:
    """One fold. ``maps`` holds the norms whose fate is open, by name."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.modules = dict(model.named_modules())
        self.names = tuple(self.modules)
        self.maps: dict[str, EvalMap] = {}
        self.fates: dict[str, Fate] = {}
        #: What code that cannot be followed reads of some module
        self.read_unseen = ""
        #: Modules that return their input as it is
        self.passing = {
            name
            for name, module in self.modules.items()
            if isinstance(module, nn.Identity | nn.modules.dropout._DropoutNd)
            if not has_hooks(module)
        }

    def report(self) -> FoldReport:
        return FoldReport(self.fates[name] for name in self.names if name in self.fates)

    def run(self) -> None:
        why = "it is the whole model"
        if is_norm(self.model):
            known = Known({}, {})
        else:
            known = graph.follow(self.model, False)
            opaque = [self.modules[n] for links in known.links.values() for n in links.opaque]
            if known.why_not:
                opaque = [self.model]
            self.read_unseen = names_of_state(m for part in opaque for m in part.modules())
            if self._fuse_weights(known):
                known = graph.follow(self.model, False)
        self._find_maps(known)
        links = known.links.get(False)
        if known.why_not:
            why = f"nothing is merged across modules, since {known.why_not}"
        if links is not None:
            seen = [name for name in links.order if not links.unseen(name)]
            order = [name for name in seen if name in self.maps]
            behind = self._try(order, lambda name: self._into_previous(name, links))
            ahead = self._try(order[::-1], lambda name: self._into_next(name, links))
        fixed: dict[str, nn.Module] = {}
        for name, norm in list(self.maps.items()):
            try:
                fixed[name] = norm.as_module()
            except Refused as reason:
                self._settle(name, "left", None, note=str(reason))
        self._leave_unfit(known, fixed)
        for name, module in fixed.items():
            if links is not None:
                why = links.unseen(name) or f"{behind[name]}; {ahead[name]}"
            self._settle(name, "convolution", module, note=why)

    def _try(self, order: list[str], attempt: Callable[[str], None]) -> dict[str, str]:
        """Attempts a merge for each norm that is left; the reasons where there was none."""
        reasons = {}
        for name in order:
            if name in self.maps:
                try:
                    attempt(name)
                except Refused as refusal:
                    reasons[name] = str(refusal)
        return reasons

    def _fuse_weights(self, known: Known) -> bool:
        """Replace layers that normalize their weights by the plain ones that they are in eval;
        return whether there were any.
        """
        aside = kept_aside(self.model)
        plain: dict[str, nn.Module] = {}
        for name, module in self.modules.items():
            if not isinstance(module, EquilibriumState):
                continue
            if why := _why_not_fused(module) or self._why_not_replaced(name, known, aside):
                self._settle(name, "left", None, note=why)
            else:
                plain[name] = module.fuse()
        self._leave_unfit(known, plain)
        for name, layer in plain.items():
            self._settle(name, "merged", layer, into=f"a {type(layer).__name__}")
        return bool(plain)

    def _find_maps(self, known: Known) -> None:
        aside = kept_aside(self.model)
        for name, module in self.modules.items():
            if not is_norm(module):
                continue
            try:
                if has_hooks(module):
                    raise Refused("it has hooks, which see or change what it computes")
                if why := self._why_not_replaced(name, known, aside):
                    raise Refused(why)
                self.maps[name] = eval_map(module)
            except Refused as reason:
                self._settle(name, "left", None, note=str(reason))
        probes: dict[str, nn.Module] = {}
        for name, norm in self.maps.items():
            probes[name] = Merged("", None, None, len(norm.c))
        self._leave_unfit(known, probes)

    def _why_not_replaced(self, name: str, known: Known, aside: set[nn.Module]) -> str:
        """Return why no other module can stand in a module's place; empty where one can."""
        module, links = self.modules[name], known.links.get(False)
        if module in aside:
            return KEPT_ASIDE
        if readers := known.readers(*module.parameters()):
            return f"its parameters are also used by {' and '.join(readers)}"
        if readers := known.readers(*module.buffers()):
            return f"its statistics are also used by {' and '.join(readers)}"
        if links is None or links.unseen(name):
            read = self.read_unseen
            return f"code that cannot be followed reads {read!r} of something" if read else ""
        if not links.calls(name):
            return "it is not called in eval"
        return ""

    def _leave_unfit(self, known: Known, new: dict[str, nn.Module]) -> None:
        """Leave modules of which the code around them asks for more than for their output; take
        them from the new ones.
        """
        hung = {name: found for found in modules_of(self.model) for name in found.names}
        names = [name for name in new if name in hung]
        swaps = [[(hung[name], new[name])] for name in names]
        for index, why in graph.unfit(self.model, known, swaps).items():
            name = names[index]
            self._settle(name, "left", None, note=f"the code around it is made for it: {why}")
            new.pop(name)

    def _into_previous(self, name: str, links: Links) -> None:
        layer = self._layer(links.before(name, self._passes), "it follows", links)
        if (users := links.after(layer, self._passes)) != (name,):
            raise Refused(f"{layer!r} also feeds {_names(set(users) - {name})}")
        if _is_linear(self.modules[layer]) and isinstance(
            self.modules[name], nn.BatchNorm2d | nn.BatchNorm3d
        ):
            raise Refused(f"its channels are the second axis, those of {layer!r} the last")
        norm, note = self.maps[name], self._untied(layer)
        merge_after(self.modules[layer], norm, layer)
        if norm.act is None and not links.arguments(name):
            self.passing.add(name)
        place = self._place(name, layer, norm.act)
        self._settle(name, "merged", place, into=layer, note=note)

    def _into_next(self, name: str, links: Links) -> None:
        if self.maps[name].act is not None:
            raise Refused("its activation comes before what it feeds")
        if links.arguments(name):
            raise Refused("a residual is added to it before what it feeds")
        flattened = any(map(self._flattens, links.after(name, self._passes)))
        passes = self._passes_flattened if flattened else self._passes
        layer = self._layer(links.after(name, passes), "it feeds", links)
        if (sources := links.before(layer, passes)) != (name,):
            raise Refused(f"{layer!r} is also fed by {_names(set(sources) - {name})}")
        if flattened and not _is_linear(self.modules[layer]):
            raise Refused(f"it is flattened before {layer!r}")
        # From now on the layer reads the tensor itself, later than the norm did.
        meanwhile = links.meanwhile(name, passes)
        if writers := [label for label in meanwhile if not self._only_reads(label)]:
            raise Refused(f"{_names(writers)} runs between it and {layer!r}, perhaps in place")
        note = self._untied(layer)
        merge_before(self.modules[layer], self.maps[name], layer, flattened=flattened)
        self.passing.add(name)
        place = self._place(name, layer, None, flattened)
        self._settle(name, "merged", place, into=layer, note=note)

    def _kinds(self, names: Iterable[str]) -> str:
        """Names with the classes of modules: '2' (ReLU)."""
        shown = {n: f"{n!r} ({type(self.modules[n]).__name__})" for n in names if n in self.modules}
        return ", ".join(shown.get(name, name) for name in sorted(names))

    def _layer(self, found: tuple[str, ...], relation: str, links: Links) -> str:
        """The one layer to merge into."""
        if len(found) != 1 or not isinstance(self.modules.get(found[0]), LAYERS):
            raise Refused(f"{relation} {self._kinds(found) if found else 'nothing'}")
        layer = found[0]
        if unseen := links.unseen(layer):
            raise Refused(f"{relation} {layer!r}, and {unseen}")
        tensors = [*self.modules[layer].parameters(), *self.modules[layer].buffers()]
        if readers := links.readers(*tensors):
            raise Refused(f"the weight of {layer!r} is also used by {' and '.join(readers)}")
        return layer

    def _untied(self, layer: str) -> str:
        """What to say of a weight that others share, and that will be the layer's own."""
        own = set(map(id, self.modules[layer].parameters()))
        inside = set(self.modules[layer].modules())  # its parametrizations
        others = [
            name
            for name, module in self.modules.items()
            if module not in inside and any(id(p) in own for p in module.parameters(recurse=False))
        ]
        return f"the weight of {layer!r} is no longer that of {_names(others)}" if others else ""

    def _passes(self, name: str) -> bool:
        return name in self.passing

    def _passes_flattened(self, name: str) -> bool:
        return name in self.passing or self._flattens(name)

    def _flattens(self, name: str) -> bool:
        module = self.modules.get(name)
        if not isinstance(module, nn.Flatten):
            return name == FLATTEN
        return (module.start_dim, module.end_dim) == (1, -1) and not has_hooks(module)

    def _only_reads(self, label: str) -> bool:
        module = self.modules.get(label)
        if module is None or has_hooks(module):
            return label in READERS
        torchs = type(module).__module__.startswith("torch.nn.modules")
        writes = getattr(module, "inplace", False)
        return isinstance(module, LAYERS) or is_norm(module) or (torchs and not writes)

    def _place(
        self, name: str, layer: str, act: nn.Module | None, flattened: bool = False
    ) -> Merged:
        """What stands where a norm stood that is part of a layer now."""
        size = getattr(self.modules[layer], "kernel_size", ())
        ndim = None if flattened else 2 + len(size)
        return Merged(layer, ndim, act, self.modules[name].num_features)  # type: ignore[arg-type]

    def _settle(
        self, name: str, became: str, new: nn.Module | None, *, into: str = "", note: str = ""
    ) -> None:
        old = self.modules[name]
        self.fates[name] = Fate(name, type(old).__name__, became, into, note)
        self.maps.pop(name, None)
        if new is None:
            return
        self.modules[name] = new.eval()
        if old is self.model:
            self.model = new
        for parent in list(self.model.modules()):
            for key, child in list(parent._modules.items()):  # under every name it has
                if child is old:
                    setattr(parent, key, new)


def _is_linear(layer: nn.Module) -> bool:
    return isinstance(layer, nn.Linear)


def _why_not_fused(module: EquilibriumState) -> str:
    """What keeps a layer that normalizes its kernel from becoming a plain one; nothing, mostly."""
    if has_hooks(module):
        return "it has hooks"
    of_convolutions = getattr(type(module), "_conv_forward", EquiConv2d._conv_forward)
    usual = has_forward_of(module, EquiConv2d, EquiLinear)  # all convolutions have the same
    if not usual or of_convolutions is not EquiConv2d._conv_forward:
        return own_forward(module)
    if module.running_v is None:
        return "it has no fixed map in eval: every input is normalized by its own statistics"
    return ""


def _names(names: Iterable[str]) -> str:
    return ", ".join(name if name.startswith("<") else repr(name) for name in sorted(names))
