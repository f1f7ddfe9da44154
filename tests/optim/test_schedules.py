"""The warm-up and the decay, against the papers' formulas."""

from __future__ import annotations

import pytest
import torch

from isonorm.optim import warmup_polynomial


def rates(total, steps=None, **options):
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=2.0)
    schedule = warmup_polynomial(optimizer, total, **options)
    found = []
    for _ in range(total if steps is None else steps):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return found


def test_lars_decays_with_the_square():
    assert rates(10, power=2) == pytest.approx([2 * (1 - t / 10) ** 2 for t in range(10)])


def test_lans_warms_up_holds_and_decays():
    # Zheng et al. 2020, their steps 1, 2, …; the decay begins a step later, so that none is lost.
    assert rates(10, warmup_steps=4, hold_steps=2) == pytest.approx(
        [0.5, 1.0, 1.5, 2.0, 2.0, 2.0, 2.0, 1.5, 1.0, 0.5]
    )


def test_it_agrees_with_torchs_polynomial_after_its_warmup():
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=2.0)
    schedule = torch.optim.lr_scheduler.PolynomialLR(optimizer, total_iters=7, power=1.5)
    expected = []
    for _ in range(7):
        expected.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    assert rates(10, warmup_steps=3, power=1.5)[3:] == pytest.approx(expected)


def test_past_the_end_the_rate_is_zero():
    assert rates(3, steps=5)[3:] == [0.0, 0.0]


def test_a_checkpoint_carries_the_schedule():
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    schedule = warmup_polynomial(optimizer, 10, warmup_steps=2, power=2)
    other = warmup_polynomial(torch.optim.SGD([torch.zeros(1)], lr=1.0), 77)
    other.load_state_dict(schedule.state_dict())
    assert [other.lr_lambdas[0](t) for t in range(12)] == [
        schedule.lr_lambdas[0](t) for t in range(12)
    ]


@pytest.mark.parametrize(
    "total, options, message",
    [
        (4, {"warmup_steps": 4}, r"greater than warmup_steps \+ hold_steps = 4; got 4"),
        (4, {"warmup_steps": -1}, "warmup_steps must be a number of steps"),
        (4, {"hold_steps": 0.5}, "hold_steps must be a number of steps"),
        (4, {"power": -1}, "power must be"),
        (4.0, {}, "total_steps must be an integer"),
    ],
)
def test_wrong_arguments_are_refused(total, options, message):
    with pytest.raises(ValueError, match=message):
        warmup_polynomial(torch.optim.SGD([torch.zeros(1)]), total, **options)
