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
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.fx import Graph, Node
from torch.nn.parameter import is_lazy
from torch.nn.utils.parametrize import ParametrizationList
from torch.utils import _pytree as pytree

from .tracing import LayerTracer, ValuesWatched, brief, reads_shape_only, without_addresses
from .tree import Changes, Hung, held, innermost

#: The label of a flatten that keeps the first axis only, however it is written.
FLATTEN = "<flatten(1)>"


class Untraceable(RuntimeError):
    """The model's own forward cannot be followed; the message says why in one sentence.
    ``so_far`` has what ran before.
    """

    def __init__(self, message: str, so_far: Links | None = None) -> None:
        super().__init__(message)
        self.so_far = so_far


class Links:
    """The calls of one forward and what runs between them. See ``read``.

    ``opaque`` maps each module whose forward could not be followed to the reason. Such a module
    counts as one call, and what lies inside it is ``unseen``.
    """

    def __init__(self, graph: Graph, model: nn.Module, tracer: LayerTracer) -> None:
        self.opaque = tracer.opaque
        #: What runs, as text: equal for forwards that run the same on modules of the same names
        self.program = [without_addresses(str(node.format_node())) for node in graph.nodes]
        self._nodes = list(graph.nodes)
        self._calls: dict[str, list[Node]] = {}
        for node in graph.nodes:
            if node.op == "call_module":
                self._calls.setdefault(node.target, []).append(node)
        self._modules = dict(model.named_modules())
        self._readers = self._find_readers(model, tracer)
        self._unseen = self._find_unseen()

    def _find_readers(self, model: nn.Module, tracer: LayerTracer) -> dict[int, list[str]]:
        """Return what uses the values of parameters and buffers outside the leaves, by identity."""
        found: dict[int, list[str]] = {}
        named = dict([*model.named_parameters(), *_buffers(model)])

        def note(target: str, readers: list[str]) -> None:
            module = self._modules.get(target)
            if isinstance(module, ParametrizationList):  # of a layer's weight, read as it is used
                tensors = [*module.parameters(), *module.buffers()]
            else:
                tensors = [named[target]] if target in named else []
            for tensor in tensors:
                found.setdefault(id(tensor), []).extend(readers)

        for node in self._nodes:
            if node.op in ("get_attr", "call_module"):
                users = [user for user in node.users if not reads_shape_only(user)]
                note(str(node.target), list(map(_label, users)))
        for name, reader in tracer.read_parameters.items():
            note(name, [reader])
        for name, tensor in [*tracer.root.named_parameters(), *_buffers(tracer.root)]:
            if id(tensor) in tracer.read_values:
                note(name, [tracer.read_values[id(tensor)]])
        return found

    def _find_unseen(self) -> dict[int, str]:
        """Modules inside a leaf, by identity: a name outside it leads to the same module."""
        found: dict[int, str] = {}
        for name in self._calls:
            why = (
                self.opaque.get(name) or f"{type(self._modules[name]).__name__} is not looked into"
            )
            leaf = self._modules[name]
            inside = set(leaf.modules())
            for module in list(inside):
                inside.update(m for m in held(vars(module)) if isinstance(m, nn.Module))
            for module in inside - {leaf}:
                found.setdefault(id(module), f"it lies inside {name!r}: {why}")
        return found

    @property
    def order(self) -> tuple[str, ...]:
        """The modules that are called, by first call."""
        return tuple(self._calls)

    def calls(self, name: str) -> int:
        """How often a module is called in one forward."""
        return len(self._calls.get(name, ()))

    def unseen(self, module: str | nn.Module) -> str | None:
        """Return why nothing is known of a module inside one that is not looked into; else None."""
        found = self._modules[module] if isinstance(module, str) else module
        return self._unseen.get(id(found))

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
                if reads_shape_only(user):
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
                if computes and not reads_shape_only(node) and not through(_label(node)):
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

    def readers(self, *tensors: Tensor) -> tuple[str, ...]:
        """Return the labels of what uses values of parameters or buffers outside the leaves."""
        found = [label for tensor in tensors for label in self._readers.get(id(tensor), ())]
        return tuple(dict.fromkeys(found))

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


class Known(NamedTuple):
    """What could be followed of a model's forward: its links by mode (True is training), and the
    failures of modes that could not.
    """

    links: dict[bool | None, Links]
    failures: dict[bool | None, Untraceable]

    @property
    def why_not(self) -> str:
        """Why a mode could not be followed; empty where all could."""
        return next(map(str, self.failures.values()), "")

    def readers(self, *tensors: Tensor) -> tuple[str, ...]:
        """Return what uses values of parameters or buffers outside the leaves, in any mode."""
        parts = (*self.links.values(), *(failure.so_far for failure in self.failures.values()))
        found = [label for part in parts if part is not None for label in part.readers(*tensors)]
        return tuple(dict.fromkeys(found))

    def unseen(self, module: nn.Module) -> str:
        """Return why the calls of a module are not known; empty where they are."""
        return self.why_not or next(
            filter(None, (links.unseen(module) for links in self.links.values())), ""
        )


#: Modules to put in the places of others, together.
Swap = Sequence[tuple[Hung, nn.Module]]


def follow(model: nn.Module, *modes: bool | None, leaves: Iterable[nn.Module] = ()) -> Known:
    """Read a model's forward in some modes, as far as that is possible."""
    known = Known({}, {})
    for training in modes:
        try:
            known.links[training] = read(innermost(model), training=training, leaves=leaves)
        except Untraceable as error:
            known.failures[training] = error
    return known


def unfit(model: nn.Module, known: Known, swaps: Sequence[Swap]) -> dict[int, str]:
    """Return which swaps, by index, would make the code around them fail or do something else, and
    why: it asks for a class or an attribute, or calls a layer in a way that the new one does not
    take. The model is as it was afterwards. A forward that runs something else every time becomes
    one that cannot be followed.
    """
    found: dict[int, str] = {}
    rest = list(range(len(swaps)))
    together = [pair for swap in swaps for pair in swap]
    if together and difference(model, known, together) and difference(model, known, ()):
        for training in known.links:
            known.failures[training] = Untraceable("the forward runs something else every time")
        known.links.clear()
        return {}
    while rest and (more := _unfit_among(model, known, swaps, rest)):
        found |= more
        rest = [index for index in rest if index not in found]
    return found


def _unfit_among(
    model: nn.Module, known: Known, swaps: Sequence[Swap], indices: list[int]
) -> dict[int, str]:
    why = difference(model, known, [pair for index in indices for pair in swaps[index]])
    if not why or len(indices) == 1:
        return {index: why for index in indices if why}
    middle = len(indices) // 2
    halves = [
        _unfit_among(model, known, swaps, half) for half in (indices[:middle], indices[middle:])
    ]
    return halves[0] | halves[1] or dict.fromkeys(indices, why)


def difference(model: nn.Module, known: Known, swap: Swap) -> str:
    """Return how the forward differs with modules in the places of others; empty where it is the
    same calls and functions, up to the same failures.
    """
    with Changes() as changes:
        for hung, module in swap:
            changes.put(hung, module)
        after = follow(model, *known.links, *known.failures, leaves=[new for _, new in swap])
        changes.undo()
    for training, links in after.links.items():
        before = known.links.get(training)
        if before is None:
            return "it can be followed then"
        if other := [why for name, why in links.opaque.items() if before.opaque.get(name) != why]:
            return other[0]
        if links.program != before.program:
            return "it runs something else then"
    for training, failure in after.failures.items():
        if str(failure) != str(known.failures.get(training)):
            return str(failure)
    return ""


def read_modes(model: nn.Module) -> tuple[Links, Links]:
    """The forward in training and in eval: a change to the model is for both."""
    return read(model, training=True), read(model, training=False)


def read(
    model: nn.Module, *, training: bool | None = None, leaves: Iterable[nn.Module] = ()
) -> Links:
    """Follows a model's forward, called with its required arguments alone, in the given mode
    (None: its present one).

    Norms, convolutions, linear layers, torch's own layers and ``leaves`` are single calls;
    everything else is looked into, and where that fails (a branch on a value, say) it becomes one
    call, too, and ``opaque``. Raises ``Untraceable`` where it is the model's own forward that
    fails. The model is left as it is: a copy that shares its parameters is traced.
    """
    if "forward" in vars(model):
        raise Untraceable("its forward was replaced on the object, so its class does not tell it")
    memo: dict[int, Any] = uncopied(model)
    memo |= {id(parameter): parameter for parameter in model.parameters()}
    tracer = LayerTracer()
    try:
        with _random_numbers_kept():
            subject = copy.deepcopy(model, memo)
            if training is not None:
                subject.train(training)
            tracer.leaves = {memo[id(leaf)] for leaf in leaves}
            with ValuesWatched(tracer):
                graph = tracer.trace(subject)
    except Exception as error:
        message = f"{type(model).__name__}.forward cannot be followed: {brief(error)}"
        so_far = Links(tracer.graph, model, tracer) if hasattr(tracer, "graph") else None
        raise Untraceable(message, so_far) from error
    return Links(graph, model, tracer)


@contextmanager
def _random_numbers_kept() -> Iterator[None]:
    """Leave the generators as they are, so that two tracings draw the same numbers."""
    state = random.getstate()
    with torch.random.fork_rng(devices=[]):
        try:
            yield
        finally:
            random.setstate(state)


def _buffers(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Under every name they have."""
    return model.named_buffers(remove_duplicate=False)


def uncopied(model: nn.Module) -> dict[int, Any]:
    """A memo for ``copy.deepcopy``, of what it refuses: a copy has the process groups themselves,
    and tensors that were computed (by hooks, or kept for somebody to see) without their graph.
    """
    memo: dict[int, Any] = {}
    for module in model.modules():
        own = {key: value for key, value in vars(module).items() if key != "_modules"}
        if own.get("process_group"):
            memo[id(own["process_group"])] = own["process_group"]
        for value in held(own):
            if isinstance(value, Tensor) and not value.is_leaf and not is_lazy(value):
                memo[id(value)] = value.detach().clone()
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
