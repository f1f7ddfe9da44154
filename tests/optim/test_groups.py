"""Groups of parameters, and parameters that a step leaves alone."""

from __future__ import annotations

import torch

from .conftest import make_params, set_grads
from .optimizers import every_layerwise, every_optimizer, run


@every_optimizer
def test_groups_have_options_of_their_own(make):
    params, still, alone = make_params(), make_params(), make_params()
    optimizer = make([{"params": params}, {"params": still, "lr": 0.0}], lr=0.1)
    before = [p.detach().clone() for p in still]
    for step in range(3):
        set_grads(params, step)
        set_grads(still, step)
        optimizer.step()
    torch.testing.assert_close([p.detach() for p in still], before, rtol=0, atol=0)
    torch.testing.assert_close([p.detach() for p in params], run(make(alone, lr=0.1), alone))


@every_optimizer
def test_a_group_may_come_later_or_be_empty(make, params):
    optimizer = make([{"params": []}, {"params": params[:1]}], lr=0.1)
    optimizer.add_param_group({"params": params[1:], "lr": 0.2})
    run(optimizer, params)
    assert [len(group["params"]) for group in optimizer.param_groups] == [0, 1, len(params) - 1]
    assert optimizer.param_groups[2]["lr"] == 0.2


@every_optimizer
def test_parameters_without_gradient_stay(make, params):
    optimizer = make(params, lr=0.1)
    optimizer.step()  # none has one
    set_grads(params, 0)
    params[0].grad = None
    before = params[0].detach().clone()
    optimizer.step()
    assert torch.equal(params[0].detach(), before)
    assert params[0] not in optimizer.state


@every_layerwise
def test_one_dimensional_parameters_are_left_out_unless_asked(make):
    vector = torch.ones(4, dtype=torch.float64, requires_grad=True)
    decayed, plain = [
        make([vector.detach().clone().requires_grad_()], lr=0.1, weight_decay=decay)
        for decay in (10.0, 0.0)
    ]
    for optimizer in (decayed, plain):
        run(optimizer, optimizer.param_groups[0]["params"])
    torch.testing.assert_close(
        decayed.param_groups[0]["params"], plain.param_groups[0]["params"], rtol=0, atol=0
    )
    matrix = torch.ones(4, 1, dtype=torch.float64, requires_grad=True)
    asked, as_matrix = make([vector], lr=0.1, min_ndim=1), make([matrix], lr=0.1)
    run(asked, [vector])
    run(as_matrix, [matrix])
    torch.testing.assert_close(vector, matrix[:, 0])
