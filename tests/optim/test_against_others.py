"""LARS and LAMB against pytorch_optimizer, and all of them against their papers written plainly."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import pytorch_optimizer
import torch
from torch import Tensor

from isonorm.optim import LAMB, LANS, LARS

from .conftest import make_params, set_grads

STEPS = 5


def trajectory(optimizer: torch.optim.Optimizer, params: list[Tensor]) -> Iterator[list[Tensor]]:
    for step in range(STEPS):
        set_grads(params, step)
        optimizer.step()
        yield [p.detach().clone() for p in params]


def assert_same_steps(mine: Iterator[list[Tensor]], other: Iterator[list[Tensor]], **tol) -> None:
    for ours, theirs in zip(mine, other, strict=True):
        torch.testing.assert_close(ours, theirs, **tol)


@pytest.mark.parametrize("lr_in_momentum", [True, False])
@pytest.mark.parametrize("momentum, nesterov", [(0.0, False), (0.9, False), (0.9, True)])
@pytest.mark.parametrize("weight_decay", [0.0, 0.3])
def test_lars_equals_pytorch_optimizer(weight_decay, momentum, nesterov, lr_in_momentum):
    common = {"lr": 0.5, "weight_decay": weight_decay, "momentum": momentum, "nesterov": nesterov}
    mine, theirs = make_params(), make_params()
    for p in (mine[2], theirs[2]):
        p.data.zero_()  # the ratio of a layer without weights is 1
    ours = LARS(mine, trust_coefficient=0.02, lr_in_momentum=lr_in_momentum, **common)
    other = pytorch_optimizer.LARS(theirs, trust_coefficient=0.02, **common)
    assert_same_steps(trajectory(ours, mine), trajectory(other, theirs))


@pytest.mark.parametrize("weight_decay", [0.0, 0.3])
@pytest.mark.parametrize("eps", [0.0, 1e-6])
def test_lamb_equals_pytorch_optimizer(weight_decay, eps):
    # It clamps ‖w‖ at 10, adapts vectors, too, adds ε to the ratio's denominator once more, and
    # corrects no bias when told that the learning rate already did (``adam_debias``).
    mine, theirs = make_params(), make_params()
    for p in (mine[0], theirs[0]):
        p.data.mul_(100)  # beyond the clamp
    common = {"lr": 0.1, "eps": eps, "weight_decay": weight_decay, "betas": (0.8, 0.95)}
    ours = LAMB(mine, bias_correction=False, norm_bounds=(0, 10), min_ndim=0, **common)
    other = pytorch_optimizer.Lamb(theirs, weight_decouple=False, adam_debias=True, **common)
    tol = {"rtol": 1e-12, "atol": 1e-12} if eps == 0 else {"rtol": 1e-5, "atol": 1e-6}
    assert_same_steps(trajectory(ours, mine), trajectory(other, theirs), **tol)


def test_maximize_equals_pytorch_optimizer():
    mine, theirs = make_params(), make_params()
    ours = LARS(mine, lr=0.5, weight_decay=0.1, maximize=True)
    other = pytorch_optimizer.LARS(theirs, lr=0.5, weight_decay=0.1, maximize=True)
    assert_same_steps(trajectory(ours, mine), trajectory(other, theirs))


def ratio(numerator: Tensor, denominator: Tensor) -> Tensor:
    if numerator == 0 or denominator == 0:
        return torch.tensor(1.0, dtype=torch.float64)
    return numerator / denominator


def paper_lars(params, lrs, *, eta, beta, m) -> Iterator[list[Tensor]]:
    """You et al. 2017, Algorithm 1, with a learning rate for each step."""
    w = [p.detach().clone() for p in params]
    v = [torch.zeros_like(p) for p in w]
    for step, gamma in enumerate(lrs):
        set_grads(params, step)
        for i, p in enumerate(params):
            g, decay, local = p.grad, 0.0, 1.0
            if p.ndim > 1:
                decay, local = beta, ratio(eta * w[i].norm(), g.norm() + beta * w[i].norm())
            v[i] = m * v[i] + gamma * local * (g + decay * w[i])
            w[i] = w[i] - v[i]
        yield list(w)


def test_lars_is_the_papers_under_a_schedule():
    lrs = [0.1, 0.9, 0.5, 0.2, 0.1]
    params, twin = make_params(), make_params()
    optimizer = LARS(params, lr=1.0, weight_decay=0.2, trust_coefficient=0.05)

    def mine():
        for step, lr in enumerate(lrs):
            optimizer.param_groups[0]["lr"] = lr
            set_grads(params, step)
            optimizer.step()
            yield [p.detach() for p in params]

    assert_same_steps(mine(), paper_lars(twin, lrs, eta=0.05, beta=0.2, m=0.9))


def paper_moments(params, normalize: bool, beta1, beta2, eps):
    """Step by step each parameter's r and c: LAMB's and LANS's Algorithm 2 up to there."""
    m, v = [[torch.zeros_like(p) for p in params] for _ in range(2)]
    for t in range(1, STEPS + 1):
        set_grads(params, t - 1)
        directions = []
        for i, p in enumerate(params):
            g = p.grad
            if normalize and g.norm() != 0:
                g = g / g.norm()
            m[i] = beta1 * m[i] + (1 - beta1) * g
            v[i] = beta2 * v[i] + (1 - beta2) * g * g
            m_hat, v_hat = m[i] / (1 - beta1**t), v[i] / (1 - beta2**t)
            directions.append((m_hat / (v_hat.sqrt() + eps), g / (v_hat.sqrt() + eps)))
        yield directions


def paper_lamb(params, lr, betas, eps, decay, phi) -> Iterator[list[Tensor]]:
    w = [p.detach().clone() for p in params]
    for directions in paper_moments(params, False, *betas, eps):
        for i, (r, _) in enumerate(directions):
            if w[i].ndim < 2:
                w[i] = w[i] - lr * r
                continue
            u = r + decay * w[i]
            w[i] = w[i] - lr * ratio(phi(w[i].norm()), u.norm()) * u
        yield list(w)


def paper_lans(params, lr, betas, eps, decay, phi) -> Iterator[list[Tensor]]:
    w, beta1 = [p.detach().clone() for p in params], betas[0]
    for directions in paper_moments(params, True, *betas, eps):
        for i, (r, c) in enumerate(directions):
            if w[i].ndim < 2:
                w[i] = w[i] - lr * (beta1 * r + (1 - beta1) * c)
                continue
            size, u_r, u_c = phi(w[i].norm()), r + decay * w[i], c + decay * w[i]
            d = beta1 * ratio(size, u_r.norm()) * u_r + (1 - beta1) * ratio(size, u_c.norm()) * u_c
            w[i] = w[i] - lr * d
        yield list(w)


@pytest.mark.parametrize("bounds", [(0.0, float("inf")), (3.0, 3.5)])
@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.0, 0.0)])
@pytest.mark.parametrize("cls, paper", [(LAMB, paper_lamb), (LANS, paper_lans)])
def test_moments_and_ratios_are_the_papers(cls, paper, betas, bounds):
    params, twin = make_params(), make_params()
    optimizer = cls(params, lr=0.05, betas=betas, weight_decay=0.1, norm_bounds=bounds)
    recurrences = paper(twin, 0.05, betas, 1e-6, 0.1, lambda z: z.clamp(*bounds))
    assert_same_steps(trajectory(optimizer, params), recurrences, rtol=1e-12, atol=1e-12)


def test_lans_does_not_see_the_size_of_gradients():
    params, twin = make_params(), make_params()
    ours, other = LANS(params, lr=0.1), LANS(twin, lr=0.1)
    for step in range(STEPS):
        set_grads(params, step)
        set_grads(twin, step, scale=10.0**step)
        ours.step()
        other.step()
        torch.testing.assert_close(params, twin)


@pytest.mark.parametrize("cls", [LAMB, LANS])
def test_float32_corrects_its_bias_as_exactly_as_float64(cls):
    vector = ((50,),)  # no ratio, which would hide the size of the step
    params, twin = make_params(torch.float32, vector), make_params(shapes=vector)
    ours, other = cls(params, lr=1.0), cls(twin, lr=1.0)
    for mine, theirs in zip(trajectory(ours, params), trajectory(other, twin), strict=True):
        torch.testing.assert_close(mine[0].double(), theirs[0], rtol=2e-6, atol=2e-6)
