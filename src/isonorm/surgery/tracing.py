"""torch.fx that stops at layers: norms, convolutions, linear ones, and what cannot be traced."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.fx import Node, Proxy, Tracer
from torch.nn.modules.conv import _ConvNd
from torch.utils import _pytree as pytree

from ..layers.running import RunningTransform

#: Called, never looked into, whatever their subclass does.
LEAVES = (
    _ConvNd,
    nn.Linear,
    nn.modules.batchnorm._NormBase,
    nn.GroupNorm,
    nn.LayerNorm,
    RunningTransform,
)


class LayerTracer(Tracer):
    """Traces a model called with its required arguments alone.

    A module inside whose forward tracing fails becomes a single call, and ``opaque`` holds the
    reason by its name. ``read_buffers`` are those that code outside the leaves looked at, by
    identity: a graph has their values alone.
    """

    def __init__(self) -> None:
        super().__init__()
        self.opaque: dict[str, str] = {}
        self.read_buffers: set[int] = set()

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        if isinstance(attr_val, Tensor) and not isinstance(attr_val, nn.Parameter):
            self.read_buffers.add(id(attr_val))
        return super().getattr(attr, attr_val, parameter_proxy_cache)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
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
            self.opaque[name] = brief(error)
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


def brief(error: Exception) -> str:
    """The first sentence of an error, on one line."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
