"""The state of an optimizer: saved, loaded, copied, and not mistaken for another's."""

from __future__ import annotations

import copy
import io

import pytest
import torch
from torch import nn

from isonorm.optim import LAMB, LANS

from .conftest import make_params, set_grads
from .optimizers import every_layerwise, every_optimizer, run


@every_optimizer
def test_state_dict_continues_in_a_fresh_optimizer(make):
    params = make_params()
    optimizer = make(params, lr=0.1)
    run(optimizer, params)
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    twin = [p.detach().clone().requires_grad_() for p in params]
    fresh = make(twin, lr=123.0)
    fresh.load_state_dict(torch.load(file))
    expected = run(optimizer, params, range(3, 6))
    torch.testing.assert_close(run(fresh, twin, range(3, 6)), expected, rtol=0, atol=0)


@pytest.mark.parametrize("make", [LAMB, LANS], ids=lambda make: make.__name__)
def test_the_count_of_steps_is_loaded_to_its_parameters_device(make, params):
    optimizer = make(params, lr=0.1)
    run(optimizer, params)
    elsewhere = [torch.empty_like(p, device="meta", dtype=torch.bfloat16) for p in params]
    other = make(elsewhere, lr=0.1)
    other.load_state_dict(optimizer.state_dict())
    step = other.state[elsewhere[0]]["step"]
    assert step.device.type == "meta" and step.dtype == torch.float32


@every_optimizer
def test_deepcopy_steps_alike(make):
    model = nn.Linear(3, 2).double()
    optimizer = make(model.parameters(), lr=0.1)
    run(optimizer, list(model.parameters()))
    twin, twin_optimizer = copy.deepcopy((model, optimizer))
    torch.testing.assert_close(
        run(twin_optimizer, list(twin.parameters())), run(optimizer, list(model.parameters()))
    )


@every_layerwise
def test_steps_are_counted_for_each_parameter(make):
    late, early = make_params()[:2]
    optimizer = make([late, early], lr=0.1)
    set_grads([early], 0)
    optimizer.step()
    set_grads([late], 0)
    early.grad = None
    optimizer.step()  # to this one it is the first
    (alone,) = make_params()[:1]
    expected = run(make([alone], lr=0.1), [alone], range(1))
    torch.testing.assert_close([late.detach()], expected)


@every_layerwise
def test_the_state_of_another_optimizer_is_refused(make, params):
    optimizer = make(params, lr=0.1)
    run(optimizer, params)
    before = copy.deepcopy(optimizer.state_dict())
    with pytest.raises(ValueError, match=f"not a state of {make.__name__}: .* have no .*min_ndim"):
        optimizer.load_state_dict(torch.optim.SGD(params, lr=0.2).state_dict())
    spoiled = copy.deepcopy(before)
    spoiled["param_groups"][0]["weight_decay"] = -1.0
    with pytest.raises(ValueError, match=r"weight_decay must be .* got -1\.0"):
        optimizer.load_state_dict(spoiled)
    torch.testing.assert_close(optimizer.state_dict(), before, rtol=0, atol=0)
