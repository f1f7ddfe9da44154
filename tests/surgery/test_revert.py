"""``revert``: back to BatchNorm."""

from __future__ import annotations

import copy
import inspect
from functools import partial

import pytest
import torch
from torch import nn

import isonorm


def test_revert_undoes_convert(network, images, relative_error):
    model = network(partial(nn.BatchNorm2d, eps=1e-3, momentum=None))
    before = copy.deepcopy(model)
    isonorm.convert(model, partial(isonorm.IterNorm, group_size=4))
    report = isonorm.revert(model)
    assert all(change.same for change in report.changed)
    assert repr(model) == repr(before)
    for (name, a), b in zip(model.state_dict().items(), before.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6, msg=name)
    assert relative_error(model(images), before(images)) < 2e-6


def test_what_had_no_parameters_has_none_again():
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8, affine=False))
    for _ in range(5):
        model(torch.randn(32, 4))
    before = copy.deepcopy(model.state_dict())
    isonorm.convert(model, "iternorm")
    trained = copy.deepcopy(model)
    (change,) = isonorm.revert(model).changed
    assert change.same and repr(model[1]) == repr(nn.BatchNorm1d(8, affine=False))
    model.load_state_dict(before)
    # a layer that has come to need a scale keeps it
    nn.init.constant_(trained[1].weight, 3.0)
    isonorm.revert(trained)
    assert trained[1].affine and trained[1].weight.mean() > 2.9


@pytest.mark.skipif(
    "bias" not in inspect.signature(nn.BatchNorm1d).parameters, reason="torch is older"
)
def test_what_had_no_bias_has_none_again():
    model = nn.Sequential(nn.BatchNorm1d(8, bias=False))
    isonorm.convert(model, "iternorm")
    isonorm.revert(model)
    assert model[0].weight is not None and model[0].bias is None


def test_revert_standardizes_with_the_diagonal():
    layer = isonorm.DBN(6, group_size=3, momentum=None)
    x = torch.randn(500, 6) @ torch.randn(6, 6)
    layer(x)
    model = nn.Sequential(layer).eval()
    before = model(x)
    (change,) = isonorm.revert(model, to=nn.BatchNorm1d).changed
    assert change.deviation > 1e-3
    cov = torch.block_diag(*layer.running_cov)
    torch.testing.assert_close(model[0].running_var, cov.diagonal())
    torch.testing.assert_close(model[0](x).std(0), before.std(0), rtol=1e-2, atol=1e-3)


def test_a_layer_with_no_origin_becomes_isonorms_batchnorm():
    model = nn.Sequential(isonorm.IterNorm(6), isonorm.LayerNorm(6), nn.BatchNorm1d(6))
    report = isonorm.revert(model)
    assert type(model[0]) is isonorm.BatchNorm
    assert ["no BatchNorm" in report.left[0].reason, "not one of" in report.left[1].reason] == [
        1,
        1,
    ]


def test_revert_takes_what_convert_takes():
    model = nn.Sequential(isonorm.IterNorm(4))
    isonorm.revert(model, to="batchnorm")
    assert type(model[0]) is isonorm.BatchNorm
    with pytest.raises(TypeError, match="a name, a class or a factory; got 3"):
        isonorm.revert(nn.Sequential(isonorm.IterNorm(4)), to=3)
