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
import inspect
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor, nn
from torch.fx import Graph, Node
from torch.utils import _pytree as pytree

from .tracing import LayerTracer, brief

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

    def __init__(
        self, graph: Graph, model: nn.Module, opaque: dict[str, str], read_buffers: set[int]
    ) -> None:
        self.opaque = opaque
        self._nodes = list(graph.nodes)
        self._calls: dict[str, list[Node]] = {}
        for node in graph.nodes:
            if node.op == "call_module":
                self._calls.setdefault(node.target, []).append(node)
        self._modules = dict(model.named_modules())
        named = dict(model.named_parameters())
        self._read = {
            id(named.get(str(node.target)))
            for node in graph.nodes
            if node.op == "get_attr" and not all(map(_reads_shape_only, node.users))
        } | read_buffers
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

    def by_keyword(self, name: str) -> bool:
        """Whether a call names the module's first input."""
        return any(not node.args for node in self._calls.get(name, ()))

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

    def meanwhile(self, name: str, through: Callable[[str], bool]) -> tuple[str, ...]:
        """What runs between a call of a module and the last use of its output, over all calls.

        ``through`` names modules and labels whose output is that of the module.
        """
        found: list[str] = []
        for call in self._calls.get(name, ()):
            outputs, last = [call], 0
            while outputs:
                for user in outputs.pop().users:
                    last = max(last, self._nodes.index(user))
                    if through(_label(user)):
                        outputs.append(user)
            for node in self._nodes[self._nodes.index(call) + 1 : last]:
                computes = node.op not in ("placeholder", "get_attr")
                if computes and not _reads_shape_only(node) and not through(_label(node)):
                    found.append(_label(node))
        return tuple(dict.fromkeys(found))

    def arguments(self, name: str) -> tuple[str, ...]:
        """What a module is given beside its first input, over all its calls."""
        found: list[str] = []
        for call in self._calls.get(name, ()):
            others = _inputs(call)
            if (first := self._first_input(call)) is not None:
                others.remove(first)
            found += map(_label, others)
        return tuple(dict.fromkeys(found))

    def reads(self, tensor: Tensor) -> bool:
        """Whether code outside the leaves uses a parameter's or a buffer's values itself."""
        return id(tensor) in self._read

    def _uses(self, user: Node, node: Node) -> list[str]:
        label = _label(user)
        if user.op != "call_module":
            return [label]
        first = self._first_input(user)
        uses = [label] if first is node else []
        others = _inputs(user)
        if first is not None:
            others.remove(first)
        return uses + [f"<argument of {label}>"] * (node in others)

    def _first_input(self, node: Node) -> Node | None:
        first: Any = node.args[0] if node.args else None
        if not node.args and node.op == "call_module":
            parameters = inspect.signature(self._modules[node.target].forward).parameters  # type: ignore[index]
            first = node.kwargs.get(next(iter(parameters), ""))
        return first if isinstance(first, Node) else None


def read_modes(model: nn.Module) -> tuple[Links, Links]:
    """The forward in training and in eval: a change to the model is for both."""
    return read(model, training=True), read(model, training=False)


def read(model: nn.Module, *, training: bool | None = None) -> Links:
    """Follows a model's forward, called with its required arguments alone, in the given mode
    (None: its present one).

    Norms, convolutions, linear layers and torch's own layers are single calls; everything else is
    looked into, and where that fails (a branch on a value, say) it becomes one call, too, and
    ``opaque``. Raises ``Untraceable`` where it is the model's own forward that fails. The model is
    left as it is: a copy that shares its parameters is traced.
    """
    if "forward" in vars(model):
        raise Untraceable("its forward was replaced on the object, so its class does not tell it")
    memo = uncopied(model) | {id(parameter): parameter for parameter in model.parameters()}
    tracer = LayerTracer()
    try:
        subject = copy.deepcopy(model, memo)  # type: ignore[arg-type]
        if training is not None:
            subject.train(training)
        graph = tracer.trace(subject)
    except Exception as error:
        raise Untraceable(
            f"{type(model).__name__}.forward cannot be followed: {brief(error)}"
        ) from error
    names = {n for n, b in _buffers(subject) if id(b) in tracer.read_buffers}
    return Links(graph, model, tracer.opaque, {id(b) for n, b in _buffers(model) if n in names})


def _buffers(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Under every name they have."""
    return model.named_buffers(remove_duplicate=False)


def uncopied(model: nn.Module) -> dict[int, Any]:
    """A memo for ``copy.deepcopy``, of what it refuses: a copy has the process groups themselves,
    and tensors that were computed (by hooks, or kept for somebody to see) without their graph.
    """
    memo: dict[int, Any] = {}
    for module in model.modules():
        for key, value in vars(module).items():
            if key == "process_group" and value:
                memo[id(value)] = value
            elif isinstance(value, Tensor) and not value.is_leaf:
                memo[id(value)] = value.detach()
    return memo


def _inputs(node: Node) -> list[Node]:
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
        rows, columns = shape if len(shape) == 2 else (None, None)
        return columns is not None and bool(columns == -1) and _is_batch_size(rows, node.args[0])
    return False


def _is_batch_size(size: Any, x: Any) -> bool:
    """x.size(0) or x.shape[0]."""
    if not isinstance(size, Node):
        return False
    if size.target == "size":
        return size.args == (x, 0)
    of = size.args[0] if size.args else None
    if not isinstance(of, Node) or size.args[1:] != (0,):
        return False
    whole_sizes: list[tuple] = [("size", (x,)), (getattr, (x, "shape"))]
    return (of.target, of.args) in whole_sizes


def _reads_shape_only(node: Node) -> bool:
    if node.op == "call_method":
        return node.target in _SHAPE_ONLY
    return node.target is getattr and node.args[1] in _SHAPE_ONLY
