"""What surrounds an optimizer: closures, schedulers, hooks, scalers, the compiler, the device."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from isonorm.lab.replay import waits_for_device
from isonorm.optim import LARS, centralize

from .conftest import make_params, set_grads
from .optimizers import LAYERWISE, every_layerwise, every_optimizer, run


@every_optimizer
def test_a_closure_is_evaluated_with_gradients_and_its_loss_returned(make):
    model, x = nn.Linear(3, 2).double(), torch.randn(5, 3, dtype=torch.float64)
    optimizer = make(model.parameters(), lr=0.1)
    twin, twin_optimizer = copy.deepcopy((model, optimizer))

    def loss_of(network):
        loss = network(x).square().mean()
        loss.backward()
        return loss

    def closure():
        optimizer.zero_grad()
        return loss_of(model)

    for _ in range(3):
        twin_optimizer.zero_grad()
        expected = loss_of(twin)
        twin_optimizer.step()
        torch.testing.assert_close(optimizer.step(closure), expected)
    torch.testing.assert_close(list(model.parameters()), list(twin.parameters()))


@every_optimizer
def test_schedulers_take_it_for_an_optimizer(make, params):
    optimizer = make(params, lr=0.1)
    assert isinstance(optimizer, torch.optim.Optimizer)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    for _ in range(2):
        set_grads(params, 0)
        optimizer.step()
        schedule.step()  # a warning here, of a step that was not seen, is an error
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.025)


@every_optimizer
def test_hooks_are_called_once_a_step(make, params):
    optimizer, calls = make(params, lr=0.1), []
    optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    handle = optimizer.register_step_post_hook(lambda *_: calls.append("after"))
    run(optimizer, params, range(2))
    assert calls == ["before", "after"] * 2
    handle.remove()
    run(optimizer, params, range(1))
    assert calls[4:] == ["before"]


@every_optimizer
def test_a_grad_scaler_unscales_and_skips(make):
    params, twin = make_params(torch.float32), make_params(torch.float32)
    optimizer, plain = make(params, lr=0.1), make(twin, lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    assert scaler.scale(torch.ones(())) == 8
    set_grads(params, 0, scale=8.0)
    scaler.step(optimizer)
    scaler.update()
    torch.testing.assert_close([p.detach() for p in params], run(plain, twin, range(1)))
    set_grads(params, 1)
    params[0].grad[0, 0] = float("inf")
    scaler.step(optimizer)
    scaler.update()
    torch.testing.assert_close(params, twin, rtol=0, atol=0)


@pytest.mark.parametrize(
    "make",
    [*LAYERWISE, lambda p, lr: centralize(LARS(p, lr))],
    ids=["LARS", "LAMB", "LANS", "centralize"],
)
def test_a_compiled_step_is_the_same(make):
    params, twin = make_params(), make_params()
    optimizer, plain = make(params, lr=0.1), make(twin, lr=0.1)
    # A wrapper's graph breaks where gradients have been exchanged.
    step = torch.compile(optimizer.step, backend="aot_eager", fullgraph=make in LAYERWISE)
    for k in range(3):
        set_grads(params, k)
        step()
    torch.testing.assert_close([p.detach() for p in params], run(plain, twin))


@pytest.mark.gpu
@every_layerwise
def test_a_step_does_not_wait_for_the_device(make):
    params = [p.detach().cuda().requires_grad_() for p in make_params(torch.float32)]
    optimizer = make(params, lr=torch.tensor(0.1))
    grads = [torch.randn_like(p) for p in params]
    for p, grad in zip(params, grads, strict=True):
        p.grad = grad
    assert not waits_for_device(lambda: [optimizer.step() for _ in range(2)])


@pytest.mark.gpu
@every_layerwise
def test_a_step_can_be_captured(make):
    def copies():
        return [p.detach().cuda().requires_grad_() for p in make_params(torch.float32)]

    params, twin = copies(), copies()
    for p, q in zip(params, twin, strict=True):
        p.grad = torch.randn_like(p)
        q.grad = p.grad.clone()
    optimizer, plain = make(params, lr=0.1), make(twin, lr=0.1)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        optimizer.step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        optimizer.step()
    for _ in range(3):
        graph.replay()
    for _ in range(4):
        plain.step()
    torch.testing.assert_close(params, twin)
