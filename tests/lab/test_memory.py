from __future__ import annotations

import gc
import math
import os

import pytest
import torch
from torch import nn

from isonorm.lab import memory
from isonorm.lab.models import MLP
from isonorm.lab.plan import Plan
from isonorm.lab.train import memory_of_a_step, seeded, train

MIB = 2**20


def test_memory_meter_on_a_known_pattern():
    def step():
        a = torch.empty(4 * MIB, dtype=torch.uint8)
        b = torch.empty(2 * MIB, dtype=torch.uint8)  # 6 MiB, the peak
        del a
        c = torch.empty(3 * MIB, dtype=torch.uint8)  # 5 MiB
        return b, c

    assert memory.peak_bytes(step) == 6 * MIB


def test_a_release_of_something_older_makes_no_room():
    assert memory.peak_of(iter([(1, 100), (9, -70), (2, 50), (1, -100), (3, 90)])) == 150


def test_memory_meter_counts_what_is_beyond_the_start():
    held = [torch.empty(8 * MIB, dtype=torch.uint8) for _ in range(2)]

    def step():
        held.pop()  # a release of something older makes no room
        return torch.empty(MIB, dtype=torch.uint8)

    assert memory.peak_bytes(step) == MIB


def test_memory_meter_sees_what_autograd_keeps():
    x = torch.randn(MIB // 4, requires_grad=True)  # 1 MiB

    def step():
        y = x.exp().exp()  # two results, both kept for backward
        return y.detach(), torch.autograd.grad(y, x, torch.ones(()).expand_as(y))

    peak = memory.peak_bytes(step)
    assert 3 * MIB <= peak <= 4 * MIB + 1024


def test_the_meter_is_silent(capfd):
    """The profiler is not, from its second use on; and standard error comes back."""
    for _ in range(2):
        memory.peak_bytes(lambda: torch.empty(MIB))
    assert capfd.readouterr().err == ""
    os.write(2, b"here again")
    assert capfd.readouterr().err == "here again"


def test_without_room_for_its_trace_the_meter_has_no_number(data, capfd):
    """Where files may not be large, for one; and the training goes on."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    network = seeded(0, lambda: MLP(64, 10, hidden=(8,), norm=None))
    plan = Plan(epochs=1, batch_size=400, lr=0.5)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
        result = train(network, data, plan, seed=0, measure_memory=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert math.isnan(result.epochs[0].peak_bytes) and not result.diverged
    assert capfd.readouterr().err == ""


def test_without_a_folder_for_its_trace_the_meter_has_no_number(monkeypatch):
    def full_disk(*arguments, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(memory.tempfile, "TemporaryDirectory", full_disk)
    assert math.isnan(memory.peak_bytes(lambda: torch.empty(MIB)))


@pytest.mark.parametrize("frozen", [False, True])
def test_the_collector_goes_on_as_it_was(frozen):
    """Also where a program has frozen what it keeps."""
    frozen_before = gc.get_freeze_count() > 0
    try:
        gc.freeze() if frozen else gc.unfreeze()
        with memory.collector_paused():
            assert not gc.isenabled() and gc.get_freeze_count() > 0
        assert gc.isenabled() and (gc.get_freeze_count() > 0) == frozen
    finally:
        gc.freeze() if frozen_before else gc.unfreeze()


@pytest.fixture(scope="module")
def model() -> nn.Module:
    return seeded(0, lambda: MLP(64, 10, hidden=(1000,), norm=None))


def test_a_step_holds_weights_gradients_batch_and_activations(model, data, fabric):
    """Counted by hand, but for the small change of softmax and logits."""
    batch = 500
    weights = sum(parameter.nbytes for parameter in model.parameters())
    images, hidden = 4 * batch * 64, 4 * batch * 1000
    # Backward, the gradient of what ReLU gave and of what it got meet the activation.
    at_most = 2 * weights + images + 3 * hidden
    plan = Plan(epochs=1, batch_size=batch, lr=0.1)
    found = memory_of_a_step(model, data, plan, fabric)
    assert 2 * hidden + weights + images < found < at_most + 100_000
    with_momentum = Plan(epochs=1, batch_size=batch, lr=0.1, momentum=0.9)
    # The optimizer keeps one more tensor for each weight.
    assert memory_of_a_step(model, data, with_momentum, fabric) == found + weights


def test_measuring_leaves_the_training_as_it_is(data):
    plan = Plan(epochs=2, batch_size=400, lr=0.5)

    def trained(measure_memory: bool):
        network = seeded(0, lambda: MLP(64, 10, hidden=(8,), norm="iternorm"))
        result = train(network, data, plan, seed=0, measure_memory=measure_memory)
        return network.state_dict(), result

    (weights, measured), (others, plain) = trained(True), trained(False)
    torch.testing.assert_close(weights, others, rtol=0, atol=0)
    assert [e.train_loss for e in measured.epochs] == [e.train_loss for e in plain.epochs]
    peaks = {epoch.peak_bytes for epoch in measured.epochs}
    assert len(peaks) == 1 and peaks.pop() > 0
