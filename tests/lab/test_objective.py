from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.nn.functional import cross_entropy

from isonorm.lab.data import Mixup
from isonorm.lab.models import SmallCNN
from isonorm.lab.objective import CUDA_GRAPHS, CompilerFailed, Objective, compiling

STEPS = 12


def network() -> nn.Module:
    return SmallCNN(in_channels=1, width=0.125, norm="iternorm")


def mixup_of(model: nn.Module) -> Mixup:
    """Manifold mixup, before the network and before two of its layers."""
    places = [model, model.get_submodule("conv2"), model.get_submodule("fc")]
    return Mixup(places, alpha=6.0, seed=1)


def batches() -> list[tuple[Tensor, Tensor]]:
    chance = torch.Generator().manual_seed(3)
    return [
        (torch.randn(16, 1, 8, 8, generator=chance), torch.randint(10, (16,), generator=chance))
        for _ in range(STEPS)
    ]


def trained(objective: Objective) -> list[Tensor]:
    """The losses of some steps."""
    optimizer = torch.optim.SGD(objective.network.parameters(), lr=0.1)
    losses = []
    with objective.listening():
        for images, labels in batches():
            optimizer.zero_grad()
            loss, _ = objective(images, labels, *objective.draw(images))
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
    return losses


def test_it_mixes_like_mixup_itself():
    model = network()
    other = copy.deepcopy(model)
    mixup, places = mixup_of(other), set()
    optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
    expected = []
    for images, labels in batches():
        optimizer.zero_grad()
        with mixup(images) as mixing:
            loss = mixing.loss(cross_entropy, other(images), labels)
        loss.backward()
        optimizer.step()
        places.add(mixing.place)
        expected.append(loss.detach())
    assert len(places) == 3
    torch.testing.assert_close(trained(Objective(model, mixup_of(model))), expected, rtol=0, atol=0)
    torch.testing.assert_close(model.state_dict(), other.state_dict(), rtol=0, atol=0)
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_compiled_a_step_with_manifold_mixup_is_one_graph_for_each_place():
    model = network()
    other, counter = copy.deepcopy(model), CompileCounterWithBackend("aot_eager")
    expected = trained(Objective(model, mixup_of(model)))
    objective = Objective(other, mixup_of(other))
    torch._dynamo.reset()
    objective.compile(backend=counter, fullgraph=True)  # raises at a break of the graph
    torch.testing.assert_close(trained(objective), expected)
    torch.testing.assert_close(other.state_dict(), model.state_dict())
    assert counter.frame_count == 3


def test_a_step_that_fails_leaves_nothing_mixed():
    model = network()
    objective = Objective(model, mixup_of(model))
    images, labels = batches()[0]
    with objective.listening():
        with pytest.raises(RuntimeError):
            objective(images[:, :, 0], labels, *objective.draw(images))
        loss, logits = objective(images, labels)
        assert torch.equal(logits, model(images)) and loss == cross_entropy(logits, labels)


def test_many_networks_are_compiled_each_with_its_graphs_for_training_and_testing():
    counter, networks = CompileCounterWithBackend("eager"), 6
    torch._dynamo.reset()
    for width in range(1, networks + 1):
        objective = Objective(nn.Sequential(nn.Linear(4, width), nn.Linear(width, 3)))
        objective.compile(backend=counter, dynamic=False)
        outer = nn.Sequential()
        with compiling("default", outer):
            for training, size in ((True, 8), (False, 20), (True, 8), (False, 20)):
                objective.train(training)
                objective(torch.randn(size, 4), torch.zeros(size, dtype=torch.long))
    assert counter.frame_count == 2 * networks, "torch's own limit is 8"


def test_a_compiler_that_fails_says_so_in_a_sentence_that_can_travel():
    def refuse(graph, inputs):
        raise ValueError("no such layout")

    torch._dynamo.reset()
    objective = Objective(nn.Linear(4, 3))
    objective.compile(backend=refuse)
    with (
        pytest.raises(
            CompilerFailed, match=r"\(ValueError: no such layout\): --compile no"
        ) as caught,
        compiling("default", nn.Identity()),
    ):
        objective(torch.randn(2, 4), torch.zeros(2, dtype=torch.long))
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


@pytest.mark.parametrize(("mode", "expected"), [(CUDA_GRAPHS, 3), ("default", 0), (None, 0)])
def test_with_cuda_graphs_each_call_is_a_new_step(mode, expected, monkeypatch):
    steps = []
    monkeypatch.setattr(torch.compiler, "cudagraph_mark_step_begin", lambda: steps.append(1))
    module = nn.Linear(2, 2)
    with compiling(mode, module):
        for _ in range(3):
            module(torch.randn(1, 2))
    assert len(steps) == expected
    module(torch.randn(1, 2))
    assert len(steps) == expected
