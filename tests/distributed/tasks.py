"""What ranks are asked to do, one function a task.

The functions run on every rank (see ``worker.py``) and many of them, without a process group, in
the test's own process, where they see the whole batch and so say what is right.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterable
from functools import partial
from itertools import product
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import isonorm
from isonorm import area, operation
from tests.distributed.collectives import collectives
from tests.distributed.layers import CHANNELS, LAYERS, equiconv, make

BACKENDS = ("torch", "reference")

Batches = list[tuple[Tensor, Tensor]]  # inputs, each with the cotangent of its output
Results = dict[str, dict[str, Any]]  # by layer and implementation: what ``step`` gives


def buffers(module: nn.Module) -> dict[str, Tensor]:
    return {name: buffer.clone() for name, buffer in module.named_buffers()}


def gradients(module: nn.Module) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}


def step(
    layer: nn.Module, batches: Batches, call: Callable[[Tensor], Tensor] | None = None
) -> dict[str, Any]:
    """Forward and backward on each batch, by ``call`` where that is not the layer itself: outputs,
    gradients (those of the parameters add up) and the state afterwards.
    """
    outputs, input_gradients = [], []
    for x, cotangent in batches:
        x = x.clone().requires_grad_()
        y = layer(x) if call is None else call(x)
        y.backward(cotangent)
        outputs.append(y.detach())
        input_gradients.append(x.grad)
    return {
        "y": outputs,
        "dx": input_gradients,
        "parameters": gradients(layer),
        "buffers": buffers(layer),
    }


def train(
    batches: Batches, process_group: object, names: Iterable[str] = tuple(LAYERS), **options
) -> Results:
    """Each layer trained on the batches by each implementation."""
    results = {}
    for name, backend in product(names, BACKENDS):
        layer = make(name, batches[0][0].dtype, process_group, **options)
        with isonorm.backend(backend):
            results[f"{name}, {backend}"] = step(layer, batches)
    return results


def train_in_groups(batches: Batches, names: Iterable[str]) -> Results:
    """Ranks 0 and 2 share statistics, rank 1 keeps its own; the group as an object and by name."""
    pair, single = dist.new_group([0, 2]), dist.new_group([1])
    group = single if dist.get_rank() == 1 else pair
    return {
        f"{what}, by {how}": result
        for how, given in (("object", group), ("name", group.group_name))
        for what, result in train(batches, given, names).items()
    }


def train_copies(batches: Batches, name: str) -> tuple[Results, bytes]:
    """The same training by a layer, its deep copy and its pickle; and that pickle."""
    layer = make(name, batches[0][0].dtype, dist.group.WORLD)
    pickled = pickle.dumps(layer)
    layers = {"itself": layer, "copy": copy.deepcopy(layer), "pickle": pickle.loads(pickled)}
    return {how: step(one, batches) for how, one in layers.items()}, pickled


def train_compiled(batches: Batches, groups: dict[str, str]) -> Results:
    """Layers compiled in one piece, by the way each is told its group."""
    results = {}
    for name, by in groups.items():
        torch._dynamo.reset()
        layer = make(name, batches[0][0].dtype, dist.group.WORLD if by == "object" else "world")
        compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
        results[name] = step(layer, batches, compiled)
    return results


def train_before_tanh(
    batches: Batches, process_group: object, names: Iterable[str], recompute: bool
) -> Results:
    """With or without activation checkpointing, whose second forward has to get as far as tanh."""
    results = {}
    for name in names:
        layer = make(name, batches[0][0].dtype, process_group)
        call = lambda x, layer=layer: layer(x).tanh()  # noqa: E731
        again = partial(checkpoint, call, use_reentrant=False)
        results[name] = step(layer, batches, again if recompute else call)
    return results


def train_model(batches: Batches, process_group: object, examples: int) -> dict[str, Any]:
    """A network with two normalizations: gradient descent on the mean loss of each batch.

    Data parallelism averages gradients over ranks, so a rank's loss is its part of the batch's
    mean times the number of ranks, whatever its share of the examples.
    """
    torch.manual_seed(5)
    model = nn.Sequential(
        nn.Linear(CHANNELS, CHANNELS),
        make("iternorm", torch.float64, process_group),
        nn.ReLU(),
        nn.Linear(CHANNELS, CHANNELS),
        make("dbn-zca", torch.float64, process_group),
        nn.ReLU(),
        nn.Linear(CHANNELS, CHANNELS),
    ).double()
    parallel, world_size = model, 1
    if dist.is_initialized():
        # Buckets of a few numbers: their reductions run in between those of the layers.
        parallel = DistributedDataParallel(model, bucket_cap_mb=1e-4)
        world_size = dist.get_world_size()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for x, target in batches:
        loss = (parallel(x) - target).square().sum() * (world_size / examples)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach() / world_size)
    return {"losses": torch.stack(losses), "state": model.state_dict()}


def differentiate_twice(batches: Batches, process_group: object, names: Iterable[str]) -> Results:
    """Gradients of dx·v + Σ dp·u, where dx and dp are gradients themselves."""
    results = {}
    (inputs, cotangent), (v, _) = batches
    for name, backend in product(names, BACKENDS):
        layer = make(name, inputs.dtype, process_group)
        generator = torch.Generator().manual_seed(2)
        x = inputs.clone().requires_grad_()
        with isonorm.backend(backend):
            y = layer(x)
            wanted = [x, *layer.parameters()]
            dx, *dps = torch.autograd.grad(y, wanted, cotangent, create_graph=True)
            total = (dx * v).sum()
            for dp in dps:
                u = torch.randn(dp.shape, generator=generator, dtype=dp.dtype)
                total = total + (dp * u).sum()
            total.backward()
        results[f"{name}, {backend}"] = {
            "y": [y.detach()],
            "dx": [dx.detach(), x.grad],
            "parameters": gradients(layer),
            "buffers": buffers(layer),
        }
    return results


def differentiate_statistics(batches: Batches, process_group: object, part: float) -> Results:
    """A loss that looks at the statistics, too; each rank contributes its part of that."""
    results = {}
    inputs, cotangent = batches[0]
    for backend in BACKENDS:
        generator = torch.Generator().manual_seed(3)
        x = inputs.clone().requires_grad_()
        with isonorm.backend(backend):
            y, (count, mean, cov) = isonorm.functional.normalize(
                x,
                area=area.batch(3),
                operation=operation.whiten("zca"),
                process_group=process_group,
            )
            loss = (y * cotangent).sum()
            for tensor in (mean, cov):
                u = torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype)
                loss = loss + part * (tensor * u).sum()
            loss.backward()
        count = torch.as_tensor(count, dtype=torch.float64)
        results[backend] = {
            "y": [y.detach()],
            "dx": [x.grad],
            "parameters": {},
            "buffers": {"count": count, "mean": mean.detach(), "cov": cov.detach()},
        }
    return results


def count_collectives(
    batches: Batches, names: Iterable[str] = tuple(LAYERS)
) -> dict[str, list[int]]:
    """The bytes of each collective of one step, for each layer and implementation."""
    results = {}
    for name, backend in product(names, BACKENDS):
        layer = make(name, batches[0][0].dtype, "world")
        with isonorm.backend(backend), collectives() as sent:
            step(layer, batches[:1])
        results[f"{name}, {backend}"] = sent
    return results


def count_collectives_of_one_group(sizes: tuple[int, int]) -> dict[str, list[int]]:
    """The bytes of each collective of a batch (N, C) whitened in one group of all C channels."""
    layer = isonorm.DBN(sizes[1], group_size=None, process_group="world", dtype=torch.float64)
    x = torch.randn(sizes, dtype=torch.float64, requires_grad=True)
    with collectives() as forward:
        y = layer(x)
    with collectives() as backward:
        y.backward(torch.randn_like(y))
    return {"forward": forward, "backward": backward}


def count_collectives_on_a_gpu(x: Tensor) -> tuple[list[list[int]], Tensor]:
    """The bytes of each collective of two passes, and the second output."""
    x = x.cuda().requires_grad_()
    layer = isonorm.DBN(x.shape[1], group_size=None, process_group="world").cuda()
    counts = []
    for _ in range(2):
        with collectives() as sent:
            y = layer(x)
            y.backward(torch.randn_like(y))
        counts.append(list(sent))
    return counts, y.detach().cpu()


def evaluate_alone(batches: Batches, name: str, **options) -> tuple[list[Tensor], list[int]] | None:
    """After training together the first rank evaluates, while the others have left."""
    layer = make(name, batches[0][0].dtype, "world", **options)
    step(layer, batches)
    if dist.get_rank() > 0:
        return None
    layer.eval()
    with collectives() as sent:
        done = step(layer, batches)
    return done["y"], sent


def try_forward(
    batches: Batches, process_group: object, names: Iterable[str]
) -> dict[str, tuple[str, bool]]:
    """What each layer says to an input, and whether its state stayed as it was."""
    outcomes = {}
    for name, backend in product(names, BACKENDS):
        layer = make(name, batches[0][0].dtype, process_group)
        before, message = buffers(layer), ""
        try:
            with isonorm.backend(backend):
                layer(batches[0][0])
        except ValueError as error:
            message = str(error)
        same = all(torch.equal(b, before[n]) for n, b in buffers(layer).items())
        outcomes[f"{name}, {backend}"] = (message, same)
    return outcomes


def try_pass(how: dict[str, Any]) -> tuple[str, bool]:
    """What a rank's pass says, made as ``how`` has it, and whether its state is as before; then
    comes a pass that is alike on all ranks.
    """
    chosen = {"channels": 8, "group_size": 4, "method": "newton", "recovery": "affine"} | how
    if chosen.get("layer") == "equiconv":
        layer, shape = equiconv(process_group="world"), (5, CHANNELS, 3, 3)
    else:
        layer = isonorm.Normalize(
            chosen["channels"],
            area=area.batch(chosen["group_size"]),
            operation=operation.whiten(chosen["method"]),
            recovery=chosen["recovery"],
            eps=chosen.get("eps", 1e-5),
            process_group="world",
        )
        shape = (5, chosen["channels"])
    x, before, said = torch.randn(shape, requires_grad=True), buffers(layer), ""
    try:
        y = layer(x)
        if chosen.get("backward", True):
            torch.autograd.grad(y, x, torch.randn_like(y), create_graph=chosen.get("twice", False))
        else:
            layer(x)
    except RuntimeError as error:
        said = str(error)
    same = all(torch.equal(b, before[name]) for name, b in buffers(layer).items())
    step(isonorm.DBN(4, process_group="world"), [(torch.randn(3, 4), torch.randn(3, 4))])
    return said, same


def run_in_mode(training: bool) -> str:
    """What a forward says, in training or in eval."""
    try:
        isonorm.IterNorm(4, process_group="world").train(training)(torch.randn(6, 4))
    except RuntimeError as error:
        return str(error)
    return ""


def join_with(batches: int) -> str:
    """What DDP's ``join`` says to a synchronized layer, on a rank with so many batches."""
    layer = isonorm.IterNorm(4, process_group="world")
    model = DistributedDataParallel(nn.Sequential(nn.Linear(4, 4), layer))
    try:
        with model.join():
            for _ in range(batches):
                y = model(torch.randn(6, 4))
                y.backward(torch.randn_like(y))
    except RuntimeError as error:
        return str(error)
    return ""


def fit_whitener(batches: list[Tensor], group: str | None) -> tuple[Tensor, dict[str, Tensor], str]:
    """W and the moments of a whitener that has seen all ranks' batches, and how it refuses more."""
    whitener = isonorm.Whitener(batches[0].shape[1])
    for batch in batches:
        whitener.update(batch)
    if group is None:
        return whitener.matrix, buffers(whitener), ""
    whitener.synchronize(group).synchronize(group)  # the second time does nothing
    try:
        whitener.update(batches[0])
    except RuntimeError as refused:
        return whitener.matrix, buffers(whitener), str(refused)
    return whitener.matrix, buffers(whitener), ""
