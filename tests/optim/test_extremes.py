"""Gradients at the ends of float32's range, and parameters of 16 bits, against float64."""

from __future__ import annotations

import copy
import io

import pytest
import torch
from torch import Tensor

from isonorm.optim import LAMB, LANS, LARS, normalize_gradients
from isonorm.optim.norms import euclidean_norms


def normalized_sgd(params, lr):
    return normalize_gradients(torch.optim.SGD(params, lr=lr))


def undecayed_lars(params, lr):
    return LARS(params, lr=lr, trust_coefficient=0.1)


def undecayed_lans(params, lr):
    return LANS(params, lr=lr, weight_decay=0.0)


def twins(dtype: torch.dtype, scale: float = 1.0, shape=(4, 5)) -> tuple[Tensor, Tensor]:
    """A parameter with its gradient, and both in float64."""
    w = torch.randn(shape).to(dtype).requires_grad_()
    exact = w.detach().double().requires_grad_()
    give_gradients(w, exact, scale)
    return w, exact


def give_gradients(w: Tensor, exact: Tensor, scale: float) -> None:
    w.grad = (torch.randn(w.shape, dtype=torch.float64) * scale).to(w.dtype)
    exact.grad = w.grad.double()


@pytest.mark.parametrize("scale", [1e-37, 1e-25, 1e-21, 1.0, 1e19, 1e25, 1e36])
@pytest.mark.parametrize("make", [normalized_sgd, undecayed_lans, undecayed_lars])
def test_no_gradient_is_too_small_or_too_large_to_step(make, scale):
    w, exact = twins(torch.float32, scale)
    before = exact.detach().clone()
    for tensor in (w, exact):
        make([tensor], lr=0.1).step()
    assert (exact - before).norm() > 0.01
    step, expected = w.double() - before, exact - before
    # LARS's ratio is a number of float32, which below 1e-38 has fewer digits.
    torch.testing.assert_close(step, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("make", [normalized_sgd, undecayed_lans, undecayed_lars])
@pytest.mark.parametrize("size", [1e-42, 3e38])  # ‖g‖ itself leaves the normal numbers
def test_the_last_numbers_there_are_move_no_layer_too_far(make, size):
    w = torch.ones(30, 30, requires_grad=True)
    w.grad = torch.full_like(w, size)
    make([w], lr=0.1).step()
    assert w.isfinite().all()
    assert (w < 1).all() and (w - 1).norm() < 0.1 * (1 + w.numel() ** 0.5)


@pytest.mark.parametrize("value", [1e-45, 1e-30, 1e-19, 1e-16, 1.0, 1e18, 1e19, 3e38])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_norms_are_those_of_float64(value, dtype):
    ordinary, extreme = torch.randn(20).to(dtype), (torch.rand(20) * value).to(dtype)
    for tensors in ([extreme], [ordinary, extreme], [torch.zeros(3, dtype=dtype), ordinary]):
        expected = torch.stack([t.double().norm() for t in tensors])
        torch.testing.assert_close(euclidean_norms(tensors), expected, rtol=1e-6, atol=0)


def test_a_compiled_step_takes_them_alike():
    w, exact = twins(torch.float32, 1e25)
    optimizers = [undecayed_lars([tensor], lr=0.1) for tensor in (w, exact)]
    torch.compile(optimizers[0].step, backend="aot_eager", fullgraph=True)()
    optimizers[1].step()
    torch.testing.assert_close(w.double(), exact, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", [(4,), (4, 5)], ids=["bias", "weight"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("make", [LAMB, LANS, LARS])
def test_sixteen_bits_step_as_float64_does(make, dtype, shape):
    w, exact = twins(dtype, 1e-3, shape)
    optimizers = [make([tensor], lr=0.01) for tensor in (w, exact)]
    for _ in range(5):
        for optimizer in optimizers:
            optimizer.step()
        give_gradients(w, exact, 1e-3)
    roundings = 5 * torch.finfo(dtype).eps * exact.abs().max().item()
    torch.testing.assert_close(w.double(), exact, rtol=0, atol=roundings)


def test_the_square_of_a_small_gradient_is_not_lost():
    bias = torch.zeros(4, dtype=torch.float16, requires_grad=True)
    bias.grad = torch.full_like(bias, 1e-3)
    LAMB([bias], lr=0.01).step()
    torch.testing.assert_close(bias, torch.full_like(bias, -0.01), rtol=2e-3, atol=0)


@pytest.mark.parametrize("make", [LAMB, LANS, LARS])
def test_state_of_sixteen_bit_parameters_is_loaded_as_it_was(make):
    w, exact = twins(torch.float16, 1e-3)
    optimizer = make([w], lr=0.01)
    optimizer.step()
    kept = optimizer.state[w]
    assert {t.dtype for t in kept.values()} == {torch.float32}

    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    twin = w.detach().clone().requires_grad_()
    fresh = make([twin], lr=123.0)
    fresh.load_state_dict(torch.load(file))
    torch.testing.assert_close(dict(fresh.state[twin]), dict(kept), rtol=0, atol=0)

    give_gradients(w, exact, 1e-3)
    twin.grad = w.grad.clone()
    for each in (optimizer, fresh):
        each.step()
    torch.testing.assert_close(twin, w, rtol=0, atol=0)


@pytest.mark.parametrize("make", [LAMB, LANS, LARS])
def test_a_state_may_be_loaded_again_and_again(make):
    w, _ = twins(torch.float32)
    optimizer = make([w], lr=0.01)
    optimizer.step()
    saved = copy.deepcopy(optimizer.state_dict())
    for _ in range(2):
        optimizer.load_state_dict(saved)
    torch.testing.assert_close(optimizer.state_dict()["state"], saved["state"], rtol=0, atol=0)


def test_hooks_see_and_change_what_is_loaded():
    w, _ = twins(torch.float16, 1e-3)
    optimizer = LAMB([w], lr=0.01)
    optimizer.step()
    saved = copy.deepcopy(optimizer.state_dict())
    seen = []

    def doubled(_, state_dict):
        changed = copy.deepcopy(state_dict)
        changed["state"][0]["exp_avg_sq"] *= 2
        return changed

    optimizer.register_load_state_dict_pre_hook(doubled)
    optimizer.register_load_state_dict_post_hook(
        lambda each: seen.append(each.state[w]["exp_avg_sq"])
    )
    for _ in range(2):
        optimizer.load_state_dict(saved)
    expected = 2 * saved["state"][0]["exp_avg_sq"]
    torch.testing.assert_close(seen, [expected, expected], rtol=0, atol=0)
