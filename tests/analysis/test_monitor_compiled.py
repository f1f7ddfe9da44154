"""Monitors and torch.compile: compiled code waits for a measurement, and is back after it."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch._dynamo.eval_frame import DynamoStance

from isonorm.analysis import Monitor
from tests.processes import python


@pytest.fixture(autouse=True)
def _forget_compiled_code():
    """Of which a process has a limited number for one function, whoever compiled it."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def stance() -> DynamoStance:
    """The one in force."""
    probe = torch.compiler.set_stance("default")
    probe.__exit__(None, None, None)
    return probe.prev


class Compiled:
    """A layer, compiled, that counts the calls of its compiled code."""

    def __init__(self) -> None:
        self.layer, self.calls = nn.Linear(4, 4), 0
        self._compiled = torch.compile(self.layer, backend=self._backend)

    def _backend(self, graph: torch.fx.GraphModule, example_inputs: list) -> object:
        def run(*arguments: torch.Tensor) -> object:
            self.calls += 1
            return graph.forward(*arguments)

        return run

    def __call__(self, times: int = 1) -> int:
        """How many of these calls run compiled."""
        before = self.calls
        for _ in range(times):
            self._compiled(torch.randn(8, 4))
        return self.calls - before


@pytest.mark.parametrize("first", [0, 1])
def test_two_monitors_give_compiled_code_back(first):
    """Whichever of them is done first, as a GAN's two are: the other still needs eager calls."""
    models = Compiled(), Compiled()
    for model in models:
        assert model() == 1
    monitors = [Monitor(model.layer, every=100) for model in models]
    assert [model() for model in models] == [0, 0]
    monitors[first].step()
    assert stance().stance == "force_eager", "the other one is still waiting"
    assert [model() for model in models] == [0, 0]
    monitors[1 - first].step()
    assert all(monitor.latest for monitor in monitors)
    assert [model(3) for model in models] == [3, 3]
    for monitor in monitors:
        monitor.close()
        monitor.close()  # which counts for one
    assert [model() for model in models] == [1, 1]


def test_a_monitor_dropped_beside_another_counts_as_closed():
    kept, dropped = Monitor(nn.Linear(4, 4)), Monitor(nn.Linear(4, 4))
    for layer in dropped.layers.values():
        layer._forward_hooks.clear()  # the model's references to the monitor
    del dropped, layer
    assert stance().stance == "force_eager"
    kept.close()
    assert stance().stance == "default"


@pytest.mark.parametrize("name", ["eager_on_recompile", "force_eager"])
def test_a_stance_taken_meanwhile_stays(name):
    layer = nn.Linear(4, 4)
    monitor = Monitor(layer, every=2)
    theirs = torch.compiler.set_stance(name)
    layer(torch.randn(8, 4))
    for _ in range(4):  # a measurement later, too, which begins and ends with their stance
        monitor.step()
    monitor.close()
    assert stance() is theirs.stance


def test_a_monitor_measures_also_where_another_stance_was_taken_over_a_first_ones():
    first = Monitor(nn.Linear(4, 4), every=100)
    torch.compiler.set_stance("eager_on_recompile")
    model = Compiled()
    second = Monitor(model.layer, every=100)
    assert model() == 0
    second.step()
    assert second.latest
    first.close()
    second.close()
    assert stance().stance == "eager_on_recompile"


def test_a_block_with_another_stance_does_not_bring_force_eager_back():
    """It began during a measurement, and another began inside it."""
    layer = nn.Linear(4, 4)
    monitor = Monitor(layer, every=2)
    with torch.compiler.set_stance("eager_on_recompile"):
        for _ in range(3):
            monitor.step()
    for _ in range(2):
        monitor.step()
    assert stance().stance == "default"
    monitor.close()
    assert stance().stance == "default"


def test_a_monitor_never_closed_is_silent_when_python_ends():
    script = (
        "import torch, torch._dynamo; from torch import nn; from isonorm.analysis import Monitor\n"
        "model = nn.Linear(4, 4); monitor = Monitor(model, every=1)\n"
        "model(torch.randn(8, 4)); monitor.step(); print(len(monitor.history))"
    )
    assert python("-c", script) == (0, "1\n", "")
