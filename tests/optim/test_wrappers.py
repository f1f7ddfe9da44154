"""centralize and normalize_gradients: what the inner optimizer sees, and what is left behind."""

from __future__ import annotations

import pickle

import pytest
import torch
from torch import nn

from isonorm.optim import centralize, normalize_gradients

from .conftest import make_params, set_grads


def centered(grad: torch.Tensor) -> torch.Tensor:
    return torch.stack([row - row.sum() / row.numel() if row.numel() > 1 else row for row in grad])


def centered_layers(grad: torch.Tensor) -> torch.Tensor:
    return centered(grad) if grad.ndim > 1 and grad.numel() else grad


def unit(grad: torch.Tensor) -> torch.Tensor:
    return grad / grad.square().sum().sqrt() if grad.any() else grad


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize(
    "inner",
    [
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1),
        lambda p: torch.optim.AdamW(p, lr=0.1),
        lambda p: torch.optim.Adam(p, lr=0.1, fused=True),
    ],
    ids=["sgd", "adamw", "fused_adam"],
)
@pytest.mark.parametrize(
    "wrap, formula", [(centralize, centered_layers), (normalize_gradients, unit)]
)
def test_it_is_the_optimizer_on_transformed_gradients(wrap, formula, inner, in_place):
    params, twin = make_params(), make_params()
    optimizer, plain = wrap(inner(params), in_place=in_place), inner(twin)
    for step in range(4):
        set_grads(params, step)
        set_grads(twin, step)
        for p in twin:
            p.grad = formula(p.grad)
        optimizer.step()
        plain.step()
        torch.testing.assert_close(params, twin)
        if in_place:
            torch.testing.assert_close([p.grad for p in params], [p.grad for p in twin])


def test_min_ndim_leaves_the_rest_alone():
    params, seen = make_params(), []
    optimizer = centralize(torch.optim.SGD(params, lr=0.1), min_ndim=3)
    optimizer.register_step_pre_hook(lambda opt, *_: seen.extend(p.grad for p in params))
    set_grads(params, 0)
    optimizer.step()
    assert [a is p.grad for a, p in zip(seen, params, strict=True)] == [p.ndim < 3 for p in params]
    torch.testing.assert_close(seen[1], centered(params[1].grad))


def test_wrappers_nest():
    params, twin = make_params(), make_params()
    optimizer = normalize_gradients(centralize(torch.optim.SGD(params, lr=0.1)))
    plain = torch.optim.SGD(twin, lr=0.1)
    set_grads(params, 0)
    set_grads(twin, 0)
    for p in twin:
        p.grad = centered_layers(unit(p.grad))
    optimizer.step()
    plain.step()
    torch.testing.assert_close(params, twin)


@pytest.mark.filterwarnings(
    "ignore:Converting a tensor with requires_grad:UserWarning"
)  # torch 2.8
def test_a_closure_that_is_evaluated_often_meets_its_own_gradients():
    torch.manual_seed(3)
    model, x = nn.Linear(3, 2).double(), torch.randn(5, 3, dtype=torch.float64)
    optimizer = centralize(torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=4))
    sums, kinds, before = model.weight.detach().sum(1), [], model.weight.detach().clone()

    def closure():
        kinds.append(model.weight.grad is None or not torch.allclose(
            model.weight.grad.sum(1), torch.zeros(2, dtype=torch.float64), atol=1e-6
        ))  # fmt: skip
        optimizer.zero_grad()
        loss = (model(x) - 1).square().mean()
        loss.backward()
        return loss

    optimizer.step(closure)
    assert len(kinds) > 2 and all(kinds)
    assert not torch.allclose(model.weight, before)
    torch.testing.assert_close(model.weight.detach().sum(1), sums)


def test_gradients_return_after_an_exception():
    params = make_params()
    optimizer = centralize(torch.optim.SGD(params, lr=0.1))

    def fail(*_):
        raise KeyError("a hook that fails")

    optimizer.register_step_post_hook(fail)
    set_grads(params, 0)
    grads = [p.grad for p in params]
    with pytest.raises(KeyError):
        optimizer.step()
    assert all(p.grad is grad for p, grad in zip(params, grads, strict=True))


def test_a_fused_optimizer_behind_a_grad_scaler_sees_unscaled_transforms():
    params, twin = make_params(torch.float32), make_params(torch.float32)
    optimizer = normalize_gradients(torch.optim.Adam(params, lr=0.1, fused=True))
    plain = torch.optim.Adam(twin, lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    scaler.scale(torch.ones(()))
    set_grads(params, 0, scale=8.0)
    set_grads(twin, 0)
    for p in twin:
        p.grad = unit(p.grad)
    scaler.step(optimizer)
    plain.step()
    torch.testing.assert_close(params, twin)
    set_grads(twin, 0)
    torch.testing.assert_close([p.grad for p in params], [p.grad for p in twin])


def test_groups_and_state_are_the_inner_optimizers():
    inner = torch.optim.SGD(make_params(), lr=0.1, momentum=0.9)
    optimizer = centralize(inner)
    assert optimizer.param_groups is inner.param_groups
    assert optimizer.state is inner.state
    assert optimizer.defaults is inner.defaults
    optimizer.param_groups = []
    assert inner.param_groups == []
    with pytest.raises(AttributeError, match="nonsense"):
        optimizer.nonsense  # noqa: B018


def test_a_scheduler_of_the_inner_optimizer_is_heard():
    params = make_params()
    inner = torch.optim.SGD(params, lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(inner, step_size=1, gamma=0.5)
    optimizer = centralize(inner)
    set_grads(params, 0)
    optimizer.step()
    schedule.step()
    assert optimizer.param_groups[0]["lr"] == 0.05


def test_checkpoints_are_those_of_the_optimizer_alone():
    params, twin = make_params(), make_params()
    optimizer, plain = centralize(torch.optim.Adam(params)), torch.optim.Adam(twin)
    set_grads(params, 0)
    optimizer.step()
    plain.load_state_dict(optimizer.state_dict())
    assert plain.state[twin[0]]["exp_avg"].equal(optimizer.state[params[0]]["exp_avg"])


def test_it_survives_pickling_and_says_what_it_is():
    optimizer = centralize(torch.optim.SGD([torch.zeros(2, 2)], lr=0.1), min_ndim=3)
    copy = pickle.loads(pickle.dumps(optimizer))
    assert copy.min_ndim == 3 and isinstance(copy.optimizer, torch.optim.SGD)
    assert repr(copy).startswith("centralize(SGD (")


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("wrap", [centralize, normalize_gradients])
def test_sparse_gradients_are_refused_before_anything_changes(wrap, in_place):
    layer, dense = nn.Embedding(4, 3, sparse=True), torch.ones(2, 2, requires_grad=True)
    inner = torch.optim.SGD([dense, *layer.parameters()], lr=0.1)
    optimizer = wrap(inner, in_place=in_place)
    layer(torch.tensor([1])).sum().backward()
    dense.grad = torch.tensor([[1.0, 3.0], [2.0, 2.0]])
    with pytest.raises(RuntimeError, match=f"{wrap.__name__} needs dense gradients; got"):
        optimizer.step()
    assert dense.grad.tolist() == [[1.0, 3.0], [2.0, 2.0]] and (dense == 1).all()


def test_wrong_arguments_are_refused():
    with pytest.raises(TypeError, match=r"centralize goes around a torch\.optim\.Optimizer; got a"):
        centralize(nn.Linear(2, 2).parameters())  # type: ignore[arg-type]
    inner = torch.optim.SGD([torch.zeros(2, 2)])
    with pytest.raises(ValueError, match="centralize needs min_ndim of 2 or more"):
        centralize(inner, min_ndim=1)
    with pytest.raises(ValueError, match="min_ndim must be an integer"):
        normalize_gradients(inner, min_ndim="2")  # type: ignore[arg-type]


def test_a_vanishing_and_an_exploding_gradient_step_alike():
    tiny, huge = torch.zeros(2, 2), torch.zeros(2, 2)
    optimizer = normalize_gradients(torch.optim.SGD([tiny, huge], lr=1.0))
    tiny.grad, huge.grad = torch.full((2, 2), 1e-15), torch.full((2, 2), 1e15)
    optimizer.step()
    torch.testing.assert_close(tiny, huge)
    torch.testing.assert_close(tiny, torch.full((2, 2), -0.5))
