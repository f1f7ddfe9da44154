"""Which module feeds which: a model's forward, read with torch.fx.

>>> from torch import nn
>>> links = read(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU()))
>>> links.before("1"), links.after("1"), links.calls("1")
(('0',), ('2',), 1)

Modules go by their names in ``model.named_modules()``; what is no module (a function, the model's
input or output) by a label in angle brackets, such as ``"<add>"`` or ``"<output>"``.
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.fx import Graph, Node, Proxy, Tracer
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.normalization import GroupNorm, LayerNorm
from torch.utils import _pytree as pytree

from ..layers.running import RunningTransform

#: Called, never looked into, whatever their subclass does.
LEAVES = (
    _ConvNd,
    nn.Linear,
    nn.modules.batchnorm._NormBase,
    GroupNorm,
    LayerNorm,
    RunningTransform,
)

#: The label of a flatten that keeps the first axis only, however it is written.
FLATTEN = "<flatten(1)>"

#: Reading these says nothing of a tensor's values.
_SHAPE_ONLY = {"shape", "ndim", "dtype", "device", "size", "dim", "numel"}


class Untraceable(RuntimeError):
    """The model's own forward cannot be followed; the message says why in one sentence."""


class Links:
    """The calls of one forward and what runs between them. See ``read``.

    ``opaque`` maps each module whose forward could not be followed to the reason. Such a module
    counts as one call, and what lies inside it is ``unseen``.
    """

    def __init__(self, graph: Graph, model: nn.Module, opaque: dict[str, str]) -> None:
        self.opaque = opaque
        self._calls: dict[str, list[Node]] = {}
        for node in graph.nodes:
            if node.op == "call_module":
                self._calls.setdefault(node.target, []).append(node)
        self._modules = dict(model.named_modules())
        self._unseen = self._find_unseen()

    def _find_unseen(self) -> dict[int, str]:
        """Modules inside a leaf, by identity: a name outside it leads to the same module."""
        found: dict[int, str] = {}
        for name in self._calls:
            why = (
                self.opaque.get(name) or f"{type(self._modules[name]).__name__} is not looked into"
            )
            for inside in list(self._modules[name].modules())[1:]:
                found.setdefault(id(inside), f"it lies inside {name!r}: {why}")
        return found

    @property
    def order(self) -> tuple[str, ...]:
        """The modules that are called, by first call."""
        return tuple(self._calls)

    def calls(self, name: str) -> int:
        """How often a module is called in one forward."""
        return len(self._calls.get(name, ()))

    def unseen(self, name: str) -> str | None:
        """Why nothing is known of a module that lies inside one not looked into; else None."""
        return self._unseen.get(id(self._modules[name]))

    def before(self, name: str, through: Callable[[str], bool] | None = None) -> tuple[str, ...]:
        """What makes the first input of a module, over all its calls, each named once.

        ``through`` names modules and labels to be looked past, to what made *their* first input.
        """
        found: list[str] = []
        for node in self._calls.get(name, ()):
            source = self._first_input(node)
            while source is not None and through is not None and through(_label(source)):
                source = self._first_input(source)
            found.append("<nothing>" if source is None else _label(source))
        return tuple(dict.fromkeys(found))

    def after(self, name: str, through: Callable[[str], bool] | None = None) -> tuple[str, ...]:
        """What uses the output of a module, over all its calls, each named once.

        A module that takes it elsewhere than as its first input is named ``"<argument of …>"``.
        """
        found: list[str] = []
        pending = list(self._calls.get(name, ()))
        while pending:
            node = pending.pop()
            for user in node.users:
                if _reads_shape_only(user):
                    continue
                label = _label(user)
                uses = self._uses(user, node)
                if through is not None and through(label) and uses == [label]:
                    pending.append(user)
                else:
                    found += uses
        return tuple(dict.fromkeys(found))

    def beside(self, name: str) -> tuple[str, ...]:
        """What else uses the tensors that are a module's first input, over all its calls."""
        found: list[str] = []
        for call in self._calls.get(name, ()):
            source = self._first_input(call)
            for user in source.users if source is not None else ():
                if user.target != name and not _reads_shape_only(user):
                    found += self._uses(user, source)
        return tuple(dict.fromkeys(found))

    def _uses(self, user: Node, node: Node) -> list[str]:
        label = _label(user)
        if user.op != "call_module":
            return [label]
        first = self._first_input(user)
        uses = [label] if first is node else []
        others = [n for n in _inputs(user)]
        if first is not None:
            others.remove(first)
        return uses + [f"<argument of {label}>"] * (node in others)

    def _first_input(self, node: Node) -> Node | None:
        first: Any = node.args[0] if node.args else None
        if not node.args and node.op == "call_module":
            parameters = inspect.signature(self._modules[node.target].forward).parameters  # type: ignore[index]
            first = node.kwargs.get(next(iter(parameters), ""))
        return first if isinstance(first, Node) else None


def read(model: nn.Module) -> Links:
    """Follows a model's forward, called with its required arguments alone, in its present mode.

    Norms, convolutions, linear layers and torch's own layers are single calls; everything else is
    looked into, and where that fails (a branch on a value, say) it becomes one call, too, and
    ``opaque``. Raises ``Untraceable`` where it is the model's own forward that fails. The model is
    left as it is: a copy that shares its parameters is traced.
    """
    if "forward" in vars(model):
        raise Untraceable("its forward was replaced on the object, so its class does not tell it")
    memo = {id(parameter): parameter for parameter in model.parameters()}
    tracer = _Tracer()
    try:
        subject = copy.deepcopy(model, memo)  # type: ignore[arg-type]
        graph = tracer.trace(subject)
    except Exception as error:
        raise Untraceable(
            f"{type(model).__name__}.forward cannot be followed: {_brief(error)}"
        ) from error
    return Links(graph, model, tracer.opaque)


class _Tracer(Tracer):
    def __init__(self) -> None:
        super().__init__()
        self.opaque: dict[str, str] = {}

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return (
            isinstance(m, LEAVES)
            or module_qualified_name in self.opaque
            or super().is_leaf_module(m, module_qualified_name)
        )

    def create_args_for_root(self, root_fn, is_module, concrete_args=None):
        """Placeholders for required arguments; the others keep their defaults."""
        positional, named = [self.root], {}
        for parameter in list(inspect.signature(root_fn).parameters.values())[1:]:
            if parameter.default is not parameter.empty or parameter.kind in (
                parameter.VAR_POSITIONAL,
                parameter.VAR_KEYWORD,
            ):
                continue
            proxy = self.create_proxy("placeholder", parameter.name, (), {})
            if parameter.kind is parameter.KEYWORD_ONLY:
                named[parameter.name] = proxy
            else:
                positional.append(proxy)
        return functools.partial(root_fn, **named), positional

    def call_module(self, m: nn.Module, forward: Callable[..., Any], args, kwargs) -> Any:
        name = self.path_of_module(m)
        if self.is_leaf_module(m, name):
            return super().call_module(m, forward, args, kwargs)
        hooked = has_hooks(m)
        if hooked:  # hooks see a value, or change it: they are not run, but nothing passes them by
            args, kwargs = self._observe((args, kwargs), name)
            forward = m.forward
        last = next(iter(reversed(self.graph.nodes)), None)
        try:
            result = super().call_module(m, forward, args, kwargs)
        except Exception as error:
            self._forget_since(last)
            self.opaque[name] = _brief(error)
            result = super().call_module(m, forward, args, kwargs)
        return self._observe(result, name) if hooked else result

    def _forget_since(self, last: Node | None) -> None:
        for node in list(reversed(self.graph.nodes)):
            if node is last:
                break
            if node.op != "get_attr":  # the tracer remembers these and hands them out again
                self.graph.erase_node(node)

    def _observe(self, values: Any, name: str) -> Any:
        def watched(proxy: Proxy) -> Proxy:
            seen = self.create_proxy("call_function", _hook, (proxy,), {})
            seen.node.meta["label"] = f"<hook of {name}>"
            return seen

        return pytree.tree_map_only(Proxy, watched, values)


def _hook(value):
    """Stands for the hooks of a module in a graph that is read, never run."""
    raise NotImplementedError


def has_hooks(module: nn.Module) -> bool:
    """Whether forward hooks would run with a module's call, and could see or change values."""
    return bool(module._forward_hooks or module._forward_pre_hooks)


def _inputs(node: Node) -> Iterable[Node]:
    return [a for a in pytree.tree_leaves((node.args, node.kwargs)) if isinstance(a, Node)]


def _label(node: Node) -> str:
    if "label" in node.meta:
        return node.meta["label"]
    if node.op == "call_module":
        return str(node.target)
    if node.op == "placeholder":
        return "<input>"
    if node.op in ("output", "get_attr"):
        return "<output>" if node.op == "output" else "<attribute>"
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "?")
    return FLATTEN if _flattens(node, name) else f"<{name}>"


def _flattens(node: Node, name: str) -> bool:
    """flatten(x, 1), and view or reshape to (n, -1)."""
    shape = node.args[1:]
    if name == "flatten":
        start = node.kwargs.get("start_dim", shape[0] if shape else 0)
        end = node.kwargs.get("end_dim", shape[1] if len(shape) > 1 else -1)
        return (start, end) == (1, -1)
    if name in ("view", "reshape"):
        if len(shape) == 1 and isinstance(shape[0], tuple | list):
            shape = tuple(shape[0])
        return len(shape) == 2 and shape[1] == -1 and _is_batch_size(shape[0], node.args[0])
    return False


def _is_batch_size(size: Any, x: Any) -> bool:
    """x.size(0) or x.shape[0]."""
    if not isinstance(size, Node):
        return False
    if size.target == "size":
        return size.args == (x, 0)
    of = size.args[0] if size.args else None
    whole = isinstance(of, Node) and (
        (of.target == "size" and of.args == (x,))
        or (of.target is getattr and of.args == (x, "shape"))
    )
    return whole and size.args[1:] == (0,)


def _reads_shape_only(node: Node) -> bool:
    if node.op == "call_method":
        return node.target in _SHAPE_ONLY
    return node.target is getattr and node.args[1] in _SHAPE_ONLY


def _brief(error: Exception) -> str:
    """The first sentence of an error, on one line."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
