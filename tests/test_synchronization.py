"""Synchronized layers: several processes, each with its share, do what one does with the batch.

The functions of the first half run on every rank (see ``distributed_worker.py``) and, without a
process group, in the test's own process, where they see the whole batch and so say what is right.
"""

from __future__ import annotations

import copy
import os
import pickle
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import product
from multiprocessing import Pipe
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import isonorm
from isonorm import area, operation

pytestmark = pytest.mark.xdist_group("ranks")  # where groups stay together, one set of processes

CHANNELS = 6
BACKENDS = ("torch", "reference")

Batches = list[tuple[Tensor, Tensor]]  # inputs, each with the cotangent of its output
Results = dict[str, dict[str, Any]]  # by layer and implementation: what ``step`` gives


def composition(**choices) -> Callable[..., isonorm.Normalize]:
    return lambda **options: isonorm.Normalize(CHANNELS, **choices, **options)


LAYERS: dict[str, Callable[..., isonorm.Normalize]] = {
    "iternorm": lambda **o: isonorm.IterNorm(CHANNELS, group_size=4, **o),  # groups of 4 and 2
    "iternorm-whitening": lambda **o: isonorm.IterNorm(
        CHANNELS, group_size=4, running="whitening", momentum=None, **o
    ),
    "dbn-zca": lambda **o: isonorm.DBN(CHANNELS, group_size=4, **o),
    "dbn-cholesky": lambda **o: isonorm.DBN(CHANNELS, group_size=4, method="cholesky", **o),
    "dbn-polar": lambda **o: isonorm.DBN(CHANNELS, group_size=None, method="polar", **o),
    "batchnorm": lambda **o: isonorm.BatchNorm(CHANNELS, **o),
    "batchgroupnorm": lambda **o: isonorm.BatchGroupNorm(CHANNELS, num_groups=2, **o),
    "coloring": composition(
        area=area.batch(4), operation=operation.whiten("newton"), recovery="coloring"
    ),
    "standardize-coloring": composition(area=area.batch(4), recovery="coloring"),
    "scale": composition(operation="scale"),
}


def equiconv(**options) -> isonorm.EquiConv2d:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(6)  # the same kernel on every rank
        return isonorm.EquiConv2d(CHANNELS, CHANNELS, 3, padding=1, groups=2, **options)


OTHER_LAYERS = {
    "equiconv": equiconv,
    "equiconv-half": lambda **o: equiconv(statistics_fraction=0.5, momentum=None, **o),
    "center": composition(operation="center"),
    "standardize-1": composition(operation=operation.standardize(p=1)),
    "layernorm": composition(area="layer"),
    "instancenorm": composition(area=area.instance(1)),
    "groupwhitening": composition(area=area.group(2), operation="whiten"),
    "positionalnorm": composition(area="position"),
}


def make(name: str, dtype: torch.dtype, process_group: object, **options) -> isonorm.Normalize:
    """A layer whose parameters are not at their start, the same on every rank."""
    layer = (LAYERS | OTHER_LAYERS)[name](dtype=dtype, process_group=process_group, **options)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in layer.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.add_(0.3 * noise)
    return layer


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


COLLECTIVES = (
    *("all_reduce", "all_gather", "all_gather_into_tensor", "all_gather_object", "all_to_all"),
    *("broadcast", "broadcast_object_list", "reduce", "reduce_scatter", "gather", "scatter"),
    *("send", "recv", "isend", "irecv", "barrier"),
)


@contextmanager
def collectives() -> Iterator[list[int]]:
    """The bytes of each call to a collective of ``torch.distributed`` inside the block."""
    sent: list[int] = []

    def recorded(function: Callable) -> Callable:
        def call(*args, **kwargs):
            given = [*args, *kwargs.values()]
            sent.append(sum(t.numel() * t.element_size() for t in given if isinstance(t, Tensor)))
            return function(*args, **kwargs)

        return call

    with ExitStack() as stack:
        for name in COLLECTIVES:
            stack.enter_context(patch.object(dist, name, recorded(getattr(dist, name))))
        yield sent


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


class Ranks:
    """Processes that stand by to be the ranks of one function call after another.

    A call that fails or takes too long ends them all; the next one starts new ones.
    """

    timeout = 240  # seconds after which a call, with the start of its processes, counts as hanging
    collective_timeout = 120  # the same for one collective
    grace = 5  # seconds that ranks have to answer after another has failed

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.calls = 0
        self.processes: list[subprocess.Popen] = []
        self.connections: list = []

    def start(self, rank: int) -> None:
        ours, theirs = Pipe()
        worker = Path(__file__).with_name("distributed_worker.py")
        paths = os.pathsep.join(path for path in sys.path if path)
        with open(self.folder / f"rank{rank}.log", "ab") as log:
            process = subprocess.Popen(
                [sys.executable, str(worker), str(theirs.fileno()), __file__],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
            )
        theirs.close()
        self.processes.append(process)
        self.connections.append(ours)

    def run(self, function: Callable, shares: list[Batches], *arguments, **keywords) -> list:
        """``function(share, *arguments, **keywords)`` on as many ranks as there are shares."""
        for rank in range(len(self.processes), len(shares)):
            self.start(rank)
        self.calls += 1
        task = {
            "function": function.__name__,
            "keywords": keywords,
            "rendezvous": str(self.folder / f"rendezvous{self.calls}"),
            "world_size": len(shares),
            "timeout": self.collective_timeout,
        }
        failures = ["the call did not end"]
        try:
            for rank, share in enumerate(shares):
                own = {"rank": rank, "arguments": (share, *arguments)}
                self.connections[rank].send_bytes(pickle.dumps(task | own))
            replies = self.replies(len(shares))
            failures = [f"rank {r}: {w}" for r, (k, w) in sorted(replies.items()) if k != "result"]
        finally:
            if failures:
                self.close()
        if failures:
            pytest.fail("\n".join(failures), pytrace=False)
        return [replies[rank][1] for rank in range(len(shares))]

    def replies(self, world_size: int) -> dict[int, tuple[str, Any]]:
        """What each rank answers: its result, or how it failed. After the first failure the
        others, who may be waiting for that rank, get a few seconds.
        """
        replies: dict[int, tuple[str, Any]] = {}
        deadline = time.monotonic() + self.timeout
        while len(replies) < world_size:
            pending = {self.connections[r]: r for r in range(world_size) if r not in replies}
            for connection in wait(list(pending), max(0.0, deadline - time.monotonic())):
                reply = self.receive(pending[connection])
                replies[pending.pop(connection)] = reply
                if reply[0] != "result":
                    deadline = min(deadline, time.monotonic() + self.grace)
            if pending and time.monotonic() > deadline:
                replies |= {rank: ("hang", "no answer") for rank in pending.values()}
        return replies

    def receive(self, rank: int) -> tuple[str, Any]:
        try:
            return pickle.loads(self.connections[rank].recv_bytes())
        except (EOFError, ConnectionResetError):
            log = (self.folder / f"rank{rank}.log").read_text(errors="replace")
            return "death", f"the process ended; its last words were {log[-2000:]}"

    def close(self) -> None:
        for connection in self.connections:
            connection.close()
        for process in self.processes:
            process.kill()
            process.wait()
        self.processes, self.connections = [], []


@pytest.fixture(scope="session")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    ranks = Ranks(tmp_path_factory.mktemp("ranks"))
    yield ranks
    ranks.close()


# Examples on each rank, positions of an example.
SHARES = {
    "equal": ((4, 4), (3, 3)),
    "unequal": ((5, 2, 1), (5, 7)),  # enough positions for the layout by rows
    "last-empty": ((4, 0), (2, 2)),
    "first-empty": ((0, 3, 4), (3, 3)),
    "one-each": ((1, 1, 1), ()),
}

FLOAT64 = {"rtol": 1e-10, "atol": 1e-10}


def make_batches(
    sizes: tuple[int, ...],
    positions: tuple[int, ...],
    dtype: torch.dtype = torch.float64,
    mean: float = 0.5,
    count: int = 2,
) -> tuple[Batches, list[Batches]]:
    """Batches with correlated channels: whole, and as the shares of the ranks."""
    generator = torch.Generator().manual_seed(4)
    random = lambda *shape: torch.randn(shape, generator=generator, dtype=torch.float64)  # noqa: E731
    mix = torch.eye(CHANNELS) + 0.2 * random(CHANNELS, CHANNELS)
    whole = []
    for _ in range(count):
        x = torch.einsum("dc,nc...->nd...", mix, random(sum(sizes), CHANNELS, *positions)) + mean
        whole.append((x.to(dtype), random(*x.shape).to(dtype)))
    cut = [[t.split(sizes) for t in batch] for batch in whole]
    return whole, [[(x[r], c[r]) for x, c in cut] for r in range(len(sizes))]


def assert_agree(
    results: list[Results], expected: Results, parts: Iterable[str] | None = None, **tolerance
) -> None:
    """Outputs and input gradients side by side, parameter gradients in sum, statistics each.

    ``parts`` names the ones to compare: y, dx, parameters, or a buffer; by default all.
    """
    for key, whole in expected.items():
        ranks = [result[key] for result in results]
        pairs = [
            (what, f"{what} {i}", torch.cat([rank[what][i] for rank in ranks]), tensor)
            for what in ("y", "dx")
            for i, tensor in enumerate(whole[what])
        ]
        for name, tensor in whole["parameters"].items():
            total = torch.stack([rank["parameters"][name] for rank in ranks]).sum(0)
            pairs.append(("parameters", f"gradient of {name}", total, tensor))
        for name, tensor in whole["buffers"].items():
            first, *others = (rank["buffers"][name] for rank in ranks)
            pairs.append((name, name, first, tensor))
            # to the last bit: ranks never drift apart
            assert all(torch.equal(first, other) for other in others), f"{key}: {name} differs"
        for part, title, actual, tensor in pairs:
            if parts is None or part in parts:
                explain = partial("{}, {}: {}".format, key, title)
                torch.testing.assert_close(actual, tensor, **tolerance, msg=explain)


@pytest.mark.parametrize("share", SHARES)
def test_ranks_do_what_one_process_does(ranks: Ranks, share: str) -> None:
    # Three samples of four features leave directions that nothing but eps bounds.
    options = {"eps": 1e-2} if share == "one-each" else {}
    whole, shares = make_batches(*SHARES[share])
    results = ranks.run(train, shares, "world", **options)
    assert_agree(results, train(whole, None, **options), **FLOAT64)


def test_float32(ranks: Ranks) -> None:
    """As near as sums over a few hundred samples come when taken in another order; polar's steps
    amplify their rounding.
    """
    whole, shares = make_batches(*SHARES["unequal"], dtype=torch.float32)
    results, expected = ranks.run(train, shares, "world"), train(whole, None)
    polar = {key: expected.pop(key) for key in list(expected) if "polar" in key}
    assert_agree(results, expected, rtol=2e-5, atol=2e-5)
    assert_agree(results, polar, rtol=2e-3, atol=2e-3)


def test_a_mean_far_from_zero(ranks: Ranks) -> None:
    """Judged in float64, with the same numbers. Near 1e4 a float32 mean is known to 1e-3; second
    moments about zero would be known to 8, beside variances near 1.
    """
    whole, shares = make_batches(*SHARES["unequal"], dtype=torch.float32, mean=1e4)
    expected = train([(x.double(), c.double()) for x, c in whole], None)
    results = ranks.run(train, shares, "world")
    judge = partial(assert_agree, results, expected, rtol=1e-5, check_dtype=False)
    judge(parts=("y", "dx"), atol=5e-3)
    judge(parts=("parameters",), atol=0.2)  # hundreds of such errors, each with its cotangent
    judge(parts=("running_mean",), atol=2e-3)
    judge(parts=("running_cov", "running_whitening"), atol=5e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_constant_channels_stay_finite(ranks: Ranks, dtype: torch.dtype) -> None:
    """Their variance is zero however large they are, and a rounding error below zero is fatal."""
    _, shares = make_batches((37, 11), (5, 7), dtype)
    constants = torch.tensor([1e6, 1e5, 3e6, 7e6]) / 3
    for batches in shares:
        for x, _ in batches:
            x[:, 1:5] = constants.to(dtype).view(4, 1, 1)
    for result in ranks.run(train, shares, "world"):
        for what, done in result.items():
            for tensor in (*done["y"], *done["dx"], *done["buffers"].values()):
                assert tensor.isfinite().all(), what


def test_one_collective_each_way_of_a_size_that_is_the_layers(ranks: Ranks) -> None:
    first, *others = (
        sent
        for sizes, positions in (((2, 3), (2, 2)), ((2, 3, 4), (2, 2)), ((9, 0), (5, 7)))
        for sent in ranks.run(count_collectives, make_batches(sizes, positions)[1])
    )
    assert all(len(sent) == 2 for sent in first.values()), first
    assert all(other == first for other in others)


def test_a_group_of_some_ranks(ranks: Ranks) -> None:
    names = ("iternorm", "batchnorm")
    _, shares = make_batches((3, 4, 2), (3, 3))
    zero, one, two = ranks.run(train_in_groups, shares, names)
    pair = [
        (torch.cat([x, x2]), torch.cat([c, c2]))
        for (x, c), (x2, c2) in zip(shares[0], shares[2], strict=True)
    ]
    for results, batches in (([zero, two], pair), ([one], shares[1])):
        expected = train(batches, None, names)
        for how in ("object", "name"):
            renamed = {f"{what}, by {how}": result for what, result in expected.items()}
            assert_agree(results, renamed, **FLOAT64)


@pytest.mark.parametrize("sizes", [(1, 0), (0, 0, 1)])
def test_one_value_over_all_ranks_is_refused_on_each(ranks: Ranks, sizes: tuple[int, ...]) -> None:
    _, shares = make_batches(sizes, ())
    for outcomes in ranks.run(try_forward, shares, "world", ("iternorm", "dbn-zca", "batchnorm")):
        for what, (message, same) in outcomes.items():
            assert "more than one value" in message, what
            assert same, what


def test_one_value_is_enough_where_nothing_is_centred(ranks: Ranks) -> None:
    whole, shares = make_batches((1, 0), ())
    results = ranks.run(train, shares, "world", ("scale",))
    assert_agree(results, train(whole, None, ("scale",)), **FLOAT64)


def test_no_samples_on_any_rank_change_nothing(ranks: Ranks) -> None:
    _, shares = make_batches((0, 0), (3, 3))
    for result in ranks.run(train, shares, "world"):
        for what, done in result.items():
            assert all(t.shape == (0, CHANNELS, 3, 3) for t in (*done["y"], *done["dx"]))
            untouched = buffers(make(what.split(",")[0], torch.float64, None))
            for name, buffer in untouched.items():
                assert torch.equal(done["buffers"][name], buffer), (what, name)


def test_copies_and_pickles_stay_in_their_group(ranks: Ranks) -> None:
    whole, shares = make_batches((4, 2), (3, 3))
    results, pickles = zip(*ranks.run(train_copies, shares, "iternorm"), strict=True)
    expected = step(make("iternorm", torch.float64, None), whole)
    for how in ("itself", "copy", "pickle"):
        assert_agree(list(results), {how: expected}, **FLOAT64)
    # Where there is nobody to talk to, the pickle is a layer like any other.
    alone = step(pickle.loads(pickles[0]), whole)
    assert_agree([{"alone": alone}], {"alone": expected}, rtol=0, atol=0)


def test_without_torch_distributed_nothing_is_shared() -> None:
    assert not dist.is_initialized()
    whole, _ = make_batches((8,), (3, 3))
    names = ("iternorm", "batchnorm")
    assert_agree([train(whole, "world", names)], train(whole, None, names), rtol=0, atol=0)


@pytest.mark.parametrize("sizes", [(4, 4), (5, 0, 2)])
def test_data_parallel_training(ranks: Ranks, sizes: tuple[int, ...]) -> None:
    whole, shares = make_batches(sizes, (), count=3)
    expected = train_model(whole, None, sum(sizes))
    results = ranks.run(train_model, shares, "world", sum(sizes))
    losses = torch.stack([rank["losses"] for rank in results]).sum(0)
    torch.testing.assert_close(losses, expected["losses"], **FLOAT64)
    for rank in results:
        torch.testing.assert_close(rank["state"], expected["state"], **FLOAT64)


@pytest.mark.parametrize("track_running_stats", [True, False])
def test_eval_needs_nobody_else(ranks: Ranks, track_running_stats: bool) -> None:
    options = {"track_running_stats": track_running_stats}
    whole, shares = make_batches((4, 3), (3, 3))
    layer = make("iternorm", torch.float64, None, **options)
    step(layer, whole)
    (outputs, sent), _ = ranks.run(evaluate_alone, shares, "iternorm", **options)
    assert sent == []
    expected = step(layer.eval(), shares[0])["y"]
    torch.testing.assert_close(outputs, expected, **FLOAT64)


@pytest.mark.parametrize("sizes", [(4, 3), (3, 0, 4)])
def test_double_backward(ranks: Ranks, sizes: tuple[int, ...]) -> None:
    names = ("iternorm", "dbn-zca", "dbn-cholesky", "batchnorm", "batchgroupnorm", "coloring")
    whole, shares = make_batches(sizes, (2, 2))
    results = ranks.run(differentiate_twice, shares, "world", names)
    assert_agree(results, differentiate_twice(whole, None, names), **FLOAT64)


def test_a_loss_may_use_the_statistics(ranks: Ranks) -> None:
    whole, shares = make_batches((4, 1, 2), (3, 3))
    results = ranks.run(differentiate_statistics, shares, "world", 1 / 3)
    assert_agree(results, differentiate_statistics(whole, None, 1.0), **FLOAT64)


def test_checkpointing(ranks: Ranks) -> None:
    names = ("iternorm", "batchnorm")
    whole, shares = make_batches((4, 3), (3, 3))
    results = ranks.run(train_before_tanh, shares, "world", names, recompute=True)
    assert_agree(results, train_before_tanh(whole, None, names, recompute=False), **FLOAT64)


@pytest.mark.parametrize(
    ("sizes", "positions", "groups"),
    [
        ((4, 3), (3, 3), {"iternorm": "name", "batchgroupnorm": "name"}),
        ((4, 3), (3, 3), {"coloring": "object"}),
        ((2, 0), (), {"iternorm": "name"}),
        ((1, 1), (), {"iternorm": "name"}),
        ((4, 3), (3, 3), {"equiconv": "object"}),
    ],
    ids=["by-name", "by-object", "empty-rank", "one-each", "equilibrium"],
)
def test_compiled(
    ranks: Ranks, sizes: tuple[int, ...], positions: tuple[int, ...], groups: dict[str, str]
) -> None:
    whole, shares = make_batches(sizes, positions)
    expected = {name: step(make(name, torch.float64, None), whole) for name in groups}
    assert_agree(ranks.run(train_compiled, shares, groups), expected, **FLOAT64)


def test_one_rank_that_is_not_finite_spoils_nothing(ranks: Ranks) -> None:
    whole, shares = make_batches((4, 3), (3, 3))
    shares[1][0][0][1, 2] = float("nan")
    results = ranks.run(train, shares, "world", ("iternorm",), check_finite=True)
    for key, expected in train(whole[1:], None, ("iternorm",)).items():
        for result in results:
            torch.testing.assert_close(result[key]["buffers"], expected["buffers"], **FLOAT64)


@pytest.mark.parametrize("share", ["unequal", "last-empty", "first-empty"])
def test_layers_in_equilibrium(ranks: Ranks, share: str) -> None:
    """They share the sums of their inputs, which are positive here."""
    whole, shares = make_batches(*SHARES[share], mean=3.0)
    results = ranks.run(train, shares, "world", ("equiconv",))
    assert_agree(results, train(whole, None, ("equiconv",)), **FLOAT64)


def test_each_rank_of_layers_in_equilibrium_measures_its_own_first_part(ranks: Ranks) -> None:
    whole, shares = make_batches((4, 4), (3, 3), mean=3.0)
    results = ranks.run(train, shares, "world", ("equiconv-half",))
    measured = [torch.cat([x[:2], x[4:6]]).mean((0, 2, 3)) for x, _ in whole]
    for result in results:
        for done in result.values():
            expected = torch.stack(measured).mean(0)
            torch.testing.assert_close(done["buffers"]["running_v"], expected, **FLOAT64)


def test_layers_in_equilibrium_send_one_sum_each_way(ranks: Ranks) -> None:
    _, shares = make_batches((2, 3), (3, 3))
    for sent in ranks.run(count_collectives, shares, ("equiconv",)):
        assert set(map(tuple, sent.values())) == {(8 * (CHANNELS + 1),) * 2}


def test_centring_alone(ranks: Ranks) -> None:
    whole, shares = make_batches((4, 3), (3, 3))
    results = ranks.run(train, shares, "world", ("center",))
    assert_agree(results, train(whole, None, ("center",)), **FLOAT64)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("standardize-1", "standardize(p=1) cannot be synchronized"),
        ("layernorm", "nothing to share across ranks"),
        ("instancenorm", "nothing to share across ranks"),
        ("groupwhitening", "nothing to share across ranks"),
        ("positionalnorm", "nothing to share across ranks"),
    ],
)
def test_what_ranks_cannot_share_is_refused(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        make(name, torch.float64, "world")


@pytest.mark.parametrize("process_group", ["0", "World", 5, True])
def test_what_is_no_group_is_refused(process_group: object) -> None:
    with pytest.raises(ValueError, match="process_group must be"):
        make("iternorm", torch.float64, process_group)
