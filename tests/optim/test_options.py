"""Options every optimizer takes, and those it refuses before anything changes."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from isonorm.optim import LAMB, LANS, LARS

from .conftest import make_params, set_grads
from .optimizers import every_layerwise, run


@every_layerwise
def test_lr_may_be_a_tensor(make):
    params, twin = make_params(), make_params()
    expected = run(make(twin, lr=0.1), twin)
    lr = torch.tensor([0.1], dtype=torch.float64)
    torch.testing.assert_close(run(make(params, lr=lr), params), expected)


@every_layerwise
def test_maximize_ascends(make):
    params, twin = make_params(), make_params()
    up, down = make(params, lr=0.1, maximize=True), make(twin, lr=0.1)
    for step in range(3):
        set_grads(params, step)
        set_grads(twin, step, scale=-1)
        up.step()
        down.step()
    torch.testing.assert_close(params, twin)


@every_layerwise
@pytest.mark.parametrize("kind", ["sparse", "complex"])
def test_sparse_and_complex_gradients_are_refused_before_anything_changes(make, kind, params):
    odd = (
        nn.Embedding(4, 3, sparse=True).weight
        if kind == "sparse"
        else torch.randn(3, 3, dtype=torch.complex64, requires_grad=True)
    )
    optimizer = make([{"params": params}, {"params": [odd]}], lr=0.1)
    set_grads(params, 0)
    odd.grad = odd.detach().to_sparse() if kind == "sparse" else odd.detach().clone()
    before = [p.detach().clone() for p in params]
    with pytest.raises(RuntimeError, match=f"{make.__name__} needs (dense|real) gradients; got"):
        optimizer.step()
    torch.testing.assert_close([p.detach() for p in params], before, rtol=0, atol=0)
    assert not optimizer.state


@every_layerwise
@pytest.mark.parametrize(
    "options, message",
    [
        ({"lr": -1.0}, "lr must be a finite number, at least 0; got -1.0"),
        ({"lr": float("nan")}, "lr must be"),
        ({"lr": torch.ones(2)}, r"lr as a tensor must have one element; got shape \(2,\)"),
        ({"weight_decay": -0.1}, "weight_decay must be"),
        ({"weight_decay": "much"}, "weight_decay must be a finite number, .* got 'much'"),
        ({"min_ndim": 1.5}, "min_ndim must be an integer"),
    ],
)
def test_options_out_of_range_are_refused(make, options, message, params):
    with pytest.raises(ValueError, match=message):
        make(params, **({"lr": 0.1} | options))
    optimizer = make(params[:1], lr=0.1)
    with pytest.raises(ValueError, match=message):
        optimizer.add_param_group({"params": params[1:]} | options)
    assert len(optimizer.param_groups) == 1


@pytest.mark.parametrize(
    "make, options, message",
    [
        (LARS, {"momentum": 1.0}, "momentum must be a finite number, at least 0 and less than 1"),
        (LARS, {"trust_coefficient": -1}, "trust_coefficient must be"),
        (LARS, {"trust_coefficient": 0}, "trust_coefficient must be positive"),
        (LARS, {"nesterov": True, "momentum": 0.0}, "nesterov=True needs a momentum"),
        (LAMB, {"betas": 0.9}, "betas must be two numbers"),
        (LANS, {"betas": (0.9, 1.0)}, r"betas\[1\] must be"),
        (LAMB, {"eps": -1e-8}, "eps must be"),
        (LANS, {"norm_bounds": (2.0, 1.0)}, "norm_bounds must be two numbers"),
        (LAMB, {"norm_bounds": 10}, "norm_bounds must be two numbers"),
    ],
)
def test_each_methods_own_options_are_refused(make, options, message, params):
    with pytest.raises(ValueError, match=message):
        make(params, lr=0.1, **options)


@every_layerwise
def test_an_argument_it_does_not_have_is_told_of_the_class_that_was_called(make, params):
    with pytest.raises(TypeError, match=rf"^{make.__name__}\.__init__\(\) .* argument 'foreach'$"):
        make(params, lr=1e-3, foreach=True)


def test_a_subclass_keeps_the_init_it_inherits(params):
    class Slow(LAMB):
        def __init__(self, params):
            super().__init__(params, lr=1e-6)

    class Slower(Slow):
        pass

    assert Slower(params).defaults["lr"] == 1e-6
