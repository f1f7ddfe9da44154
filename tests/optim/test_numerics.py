"""What a step changes: in any dtype, with zeros, and with numbers that are not finite."""

from __future__ import annotations

import pytest
import torch

from isonorm.optim import LAMB, LANS, LARS, normalize_gradients

from .conftest import make_params, set_grads
from .optimizers import every_layerwise, every_optimizer, run


@every_optimizer
def test_gradients_are_only_read(make, params):
    optimizer = make(params, lr=0.1)
    set_grads(params, 0)
    tensors = [p.grad for p in params]
    values = [p.grad.clone() for p in params]
    optimizer.step()
    assert all(p.grad is grad for p, grad in zip(params, tensors, strict=True))
    torch.testing.assert_close(tensors, values, rtol=0, atol=0)


@every_optimizer
def test_steps_change_parameters(make, params):
    before = [p.detach().clone() for p in params]
    after = run(make(params, lr=0.1), params, range(1))
    assert all(not torch.equal(a, b) for a, b in zip(after, before, strict=True) if a.numel())


@every_optimizer
def test_dtypes_may_be_mixed(make):
    kinds = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
    mixed = [p for dtype in kinds for p in make_params(dtype)]
    alone = [make_params(dtype) for dtype in kinds]
    optimizer = make(mixed, lr=0.1)
    separate = [make(params, lr=0.1) for params in alone]
    for step in range(3):
        for start in range(len(kinds)):
            set_grads(mixed[start * 6 : start * 6 + 6], step)
            set_grads(alone[start], step)
            separate[start].step()
        optimizer.step()
    torch.testing.assert_close(mixed, [p for params in alone for p in params])
    assert all(p.isfinite().all() for p in mixed)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize(
    "make, size", [(LARS, 1000.0), (LAMB, 1000.0), (LANS, 1000.0), (LARS, 1e-7), (LANS, 1e-7)]
)
def test_norms_and_ratios_need_not_fit_float16(make, size, device):
    # ‖g‖ is 200,000; or so small that LARS's ratio is 300,000. On a GPU a factor of 0 dimensions
    # is rounded to the dtype of the tensor it multiplies.
    p = torch.full((200, 200), 30.0, dtype=torch.float16, device=device, requires_grad=True)
    p.grad = torch.full_like(p, size)
    q = p.detach().double().requires_grad_()
    q.grad = p.grad.double()
    for tensor in (p, q):
        make([tensor], lr=100.0 if make is LARS else 0.1, weight_decay=0.0).step()
    assert (q < 29).all()
    torch.testing.assert_close(p.double(), q, rtol=2e-3, atol=0)


@pytest.mark.gpu
def test_a_large_gradient_in_float16_is_normalized_on_a_gpu():
    p = torch.zeros(200, 200, dtype=torch.float16, device="cuda")
    p.grad = torch.full_like(p, 1000.0)
    normalize_gradients(torch.optim.SGD([p], lr=1.0)).step()
    torch.testing.assert_close(p, torch.full_like(p, -1 / 200))


@every_layerwise
@pytest.mark.parametrize("zero", ["weights", "gradients", "both"])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_zeros_are_finite(make, zero, weight_decay):
    params = make_params()
    optimizer = make(params, lr=0.1, weight_decay=weight_decay)
    for step in range(3):
        set_grads(params, step)
        for p in params:
            if zero in ("weights", "both"):
                p.data.zero_()
            if zero in ("gradients", "both"):
                p.grad.zero_()
        optimizer.step()
        assert all(p.isfinite().all() for p in params)
    if zero == "both":
        assert all((p == 0).all() for p in params)


@every_layerwise
def test_nan_takes_its_layer_and_no_other(make):
    params = make_params()
    optimizer = make(params, lr=0.1)
    set_grads(params, 0)
    params[0].grad[1, 2] = float("nan")
    optimizer.step()
    assert params[0].isnan().all()
    assert all(p.isfinite().all() for p in params[1:])


@every_layerwise
def test_infinity_becomes_nan_in_its_layer(make):
    params = make_params()
    optimizer = make(params, lr=0.1)
    set_grads(params, 0)
    params[0].grad[1, 2] = float("inf")
    optimizer.step()
    assert params[0][1, 2].isnan()
    assert params[0].isnan().sum() == (1 if make is LARS else params[0].numel())
    assert all(p.isfinite().all() for p in params[1:])
