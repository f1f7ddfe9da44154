"""torch.fx that stops at layers: norms, convolutions, linear ones, and what cannot be traced."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterable
from types import CodeType, FunctionType, MethodType
from typing import Any

from torch import Tensor, nn
from torch.fx import Node, Proxy, Tracer
from torch.nn.modules.conv import _ConvNd
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from ..layers.fixed import FixedMap, Merged
from ..layers.kinds import is_norm
from ..layers.running import RunningTransform

#: Called, never looked into, whatever their subclass does.
LEAVES = (
    _ConvNd,
    nn.Linear,
    nn.modules.batchnorm._NormBase,
    nn.GroupNorm,
    nn.LayerNorm,
    RunningTransform,
    FixedMap,
    Merged,
)

#: Reading these says nothing of a tensor's values.
_SHAPE_ONLY = {
    "shape", "ndim", "dtype", "device", "size", "dim", "numel", "layout", "stride", "is_contiguous",
    "requires_grad", "is_leaf", "is_cuda", "is_meta", "is_floating_point", "is_complex",
}  # fmt: skip

#: By these a forward reads what a norm holds.
_STATE = {
    "weight", "bias", "running_mean", "running_var", "running_cov", "parameters", "buffers",
    "named_parameters", "named_buffers", "state_dict", "_parameters", "_buffers",
}  # fmt: skip


class LayerTracer(Tracer):
    """Traces a model called with its required arguments alone.

    A module inside whose forward tracing fails becomes a single call, and ``opaque`` holds the
    reason by its name. ``read_values`` holds the readers of tensors that are no node of the graph,
    by identity; ``read_parameters`` those in modules inside which tracing fails, by name.
    """

    def __init__(self) -> None:
        super().__init__()
        self.leaves: set[nn.Module] = set()  # further ones
        self.opaque: dict[str, str] = {}
        self.read_values: dict[int, str] = {}
        self.read_parameters: dict[str, str] = {}

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        if isinstance(attr_val, Tensor) and not isinstance(attr_val, nn.Parameter):
            self.read_values.setdefault(id(attr_val), self._reader())
        return super().getattr(attr, attr_val, parameter_proxy_cache)

    def _reader(self) -> str:
        """Return a label for the module whose forward runs now."""
        return f"<forward of {self.scope.module_path or 'the model'}>"

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        if m in self.leaves:
            return True
        if isinstance(m, _ConvNd | nn.Linear) and any(map(is_norm, m.modules())):
            return module_qualified_name in self.opaque  # torch's ConvBn2d: its norm is to be seen
        return (
            isinstance(m, LEAVES)
            or module_qualified_name in self.opaque
            or super().is_leaf_module(m, module_qualified_name)
        )

    def create_args_for_root(self, root_fn, is_module, concrete_args=None):
        """Placeholders for required arguments; the others keep their defaults."""
        positional: list[Any] = [self.root]
        named: dict[str, Any] = {}
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

        @functools.wraps(root_fn)  # some versions of torch ask for its annotations
        def root(*arguments: Any) -> Any:
            return root_fn(*arguments, **named)

        return root, positional

    def call_module(self, m: nn.Module, forward: Callable[..., Any], args, kwargs) -> Any:
        name = self.path_of_module(m)
        if self.is_leaf_module(m, name):
            if name not in self.opaque:
                _check_arguments(m, args, kwargs)
            return super().call_module(m, forward, args, kwargs)
        hooked = has_hooks(m)
        if hooked:  # hooks see a value, or change it: they are not run, but nothing passes them by
            args, kwargs = self._observe((args, kwargs), name)
            forward = m.forward
        last = next(iter(reversed(self.graph.nodes)), None)
        stack = self.module_stack.copy()
        try:
            result = super().call_module(m, forward, args, kwargs)
        except Exception as error:
            self.module_stack = stack  # torch.fx leaves the modules in it that raised
            self._forget_since(last, name)
            self.opaque[name] = brief(error)
            result = super().call_module(m, forward, args, kwargs)
        return self._observe(result, name) if hooked else result

    def _forget_since(self, last: Node | None, name: str) -> None:
        for node in list(reversed(self.graph.nodes)):
            if node is last:
                break
            for read in node.all_input_nodes if not reads_shape_only(node) else ():
                if read.op in ("get_attr", "call_module"):
                    self.read_parameters.setdefault(str(read.target), f"<forward of {name}>")
            if node.op != "get_attr":  # the tracer remembers these and hands them out again
                self.graph.erase_node(node)

    def _observe(self, values: Any, name: str) -> Any:
        def watched(proxy: Proxy) -> Proxy:
            seen = self.create_proxy("call_function", _hook, (proxy,), {})
            seen.node.meta["label"] = f"<hook of {name}>"
            return seen

        return pytree.tree_map_only(Proxy, watched, values)


class ValuesWatched(TorchFunctionMode):
    """A mode that notes which tensors, not proxies of them, go into torch's functions."""

    def __init__(self, tracer: LayerTracer) -> None:
        super().__init__()
        self.read_values = tracer.read_values

    def __torch_function__(self, func, types, args=(), kwargs=None):
        name = getattr(func, "__name__", "?")
        if name == "__get__":
            name = getattr(func.__self__, "__name__", "?")
        if name not in _SHAPE_ONLY:
            for value in pytree.tree_leaves((args, kwargs)):
                if isinstance(value, Tensor):
                    self.read_values.setdefault(id(value), f"<{name}>")
        return func(*args, **(kwargs or {}))


def _hook(value):
    """Stands for the hooks of a module in a graph that is read, never run."""
    raise NotImplementedError


def names_of_state(modules: Iterable[nn.Module]) -> str:
    """Return a name by which forwards that cannot be followed may read what a norm holds; empty
    where there is none. Code of torch and of this package is not looked at.

    >>> names_of_state([nn.Linear(2, 2)])
    ''
    """
    pending: list[tuple[type, Any]] = []
    for module in modules:
        pending += [(type(module), vars(module).get("forward"))]
        pending += _functions_named("forward", type(module))
    seen: set[FunctionType] = set()
    while pending:
        kind, value = pending.pop()
        function = value.fget if isinstance(value, property) else _plain(value)
        function = inspect.unwrap(function) if isinstance(function, FunctionType) else None
        if function is None or function in seen:
            continue
        seen.add(function)
        if function.__module__.partition(".")[0] in ("torch", "isonorm"):
            continue
        pending += [(kind, held) for held in inspect.getclosurevars(function).nonlocals.values()]
        codes = [function.__code__]
        while codes:
            code = codes.pop()
            strings = [constant for constant in code.co_consts if isinstance(constant, str)]
            if found := _STATE.intersection([*code.co_names, *strings]):
                return min(found)
            codes += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
            for name in code.co_names:  # methods and functions that are called
                pending += _functions_named(name, kind)
                pending.append((kind, function.__globals__.get(name)))
    return ""


def _functions_named(name: str, kind: type) -> list[tuple[type, Any]]:
    """Return what a class and its bases, which ``super()`` reaches, call by a name."""
    return [(kind, vars(base)[name]) for base in kind.__mro__ if name in vars(base)]


def _plain(value: Any) -> Any:
    """Return the function of a method; other values as they are."""
    methods = (MethodType, classmethod, staticmethod)
    return value.__func__ if isinstance(value, methods) else value


def reads_shape_only(node: Node) -> bool:
    """Return whether a node reads a tensor's shape, dtype or device, and none of its values."""
    if node.op == "call_method":
        return node.target in _SHAPE_ONLY
    return node.target is getattr and node.args[1] in _SHAPE_ONLY


def _check_arguments(module: nn.Module, args: Any, kwargs: Any) -> None:
    """Raise the TypeError that a call of a leaf would raise, which tracing does not run."""
    try:
        takes = inspect.signature(module.forward)
    except ValueError:  # builtin: nothing is known of it
        return
    try:
        takes.bind(*args, **kwargs)
    except TypeError as error:
        raise TypeError(f"{type(module).__name__}.forward() {error}") from None


def has_hooks(module: nn.Module) -> bool:
    """Whether forward hooks would run with a module's call, and could see or change values."""
    return bool(module._forward_hooks or module._forward_pre_hooks)


def without_addresses(text: str) -> str:
    """Return text in which equal objects read the same."""
    return re.sub(r" at 0x[0-9a-f]+", "", text)


def brief(error: Exception) -> str:
    """The first sentence of an error, on one line."""
    lines = without_addresses(str(error)).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
