from __future__ import annotations

import pytest
import torch

from isonorm.lab.plan import OPTIMIZERS, Plan
from isonorm.lab.schedules import CONSTANT, Halving, Rates, Steps, SuperConvergence, set_rates


def test_super_convergence_goes_up_down_and_out():
    schedule = SuperConvergence()
    middle = schedule.at(6.5, 0)
    assert middle.factor == pytest.approx(3.0) and middle.momentum == pytest.approx(0.90)
    assert schedule.at(19.5, 0) == pytest.approx(middle)  # as much on the way down
    assert schedule.at(28, 0).factor == pytest.approx((1 + 0.01) / 2)
    before = schedule.at(26 - 1e-9, 0)
    assert before.momentum == pytest.approx(0.95) and schedule.at(26, 0).momentum == 0.85


@pytest.mark.parametrize(
    "schedule", [CONSTANT, Steps((4, 8), 0.1), Halving(60), SuperConvergence()]
)
def test_a_shortened_schedule_takes_the_same_course(schedule):
    short = schedule.shortened(0.5)
    for tenth in range(300):
        epoch, step = tenth / 10, tenth * 2
        found, expected = short.at(epoch / 2, step // 2), schedule.at(epoch, step)
        assert found.factor == pytest.approx(expected.factor)
        assert found.momentum == pytest.approx(expected.momentum)


def test_rates_reach_every_group_and_adams_first_beta():
    groups = [{"params": [torch.zeros(1)]}, {"params": [torch.zeros(2)], "lr": 7.0}]
    sgd = torch.optim.SGD(groups, lr=1.0, momentum=0.9)
    set_rates(sgd, 0.5, Rates(0.2, 0.85))
    assert [(group["lr"], group["momentum"]) for group in sgd.param_groups] == [(0.1, 0.85)] * 2
    adam = torch.optim.Adam([torch.zeros(1)], lr=1.0)
    set_rates(adam, 0.5, Rates(0.2, 0.85))
    assert adam.param_groups[0]["betas"] == (0.85, 0.999)
    set_rates(sgd, 0.5, Rates(1.0))
    assert sgd.param_groups[0]["momentum"] == 0.85, "where a schedule does not decide, it stays"


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_learns_with_its_rate_and_decay(name):
    model = torch.nn.Linear(4, 3)
    plan = Plan(epochs=1, batch_size=1, lr=0.02, optimizer=name, weight_decay=0.01)
    optimizer = plan.make_optimizer(model)
    assert optimizer.param_groups[0]["lr"] == 0.02
    assert optimizer.param_groups[0]["weight_decay"] == 0.01
    before = model.weight.detach().clone()
    model(torch.randn(5, 4)).square().mean().backward()
    optimizer.step()
    assert not torch.equal(model.weight, before)


def test_torch7s_sgd_steps_by_an_average_of_gradients():
    """Constant gradients: v ← μv + (1 − μ)g tends to g, where torch's tends to g/(1 − μ)."""
    parameter = torch.nn.Parameter(torch.zeros(1))
    holder = torch.nn.ParameterList([parameter])
    plan = Plan(epochs=1, batch_size=1, lr=0.5, optimizer="torch7_sgd", momentum=0.9)
    optimizer = plan.make_optimizer(holder)
    steps = []
    for _ in range(200):
        before = parameter.item()
        parameter.grad = torch.ones(1)
        optimizer.step()
        steps.append(before - parameter.item())
    assert steps[-1] == pytest.approx(0.5, rel=1e-4)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"epochs": 0}, "a whole number, at least 1; got 0"),
        ({"epochs": 2.5}, "a whole number, at least 1; got 2.5"),
        ({"schedule": "steps"}, r"such as Steps\(\(60, 120\), 0.2\); got 'steps'"),
        ({"optimizer": "sdg"}, "no optimizer called 'sdg': choose from sgd, torch7_sgd, adam"),
    ],
)
def test_impossible_plans_are_refused(wrong, sentence):
    with pytest.raises(ValueError, match=sentence):
        Plan(**{"epochs": 1, "batch_size": 1, "lr": 0.1, **wrong})
