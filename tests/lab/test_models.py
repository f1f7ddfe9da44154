from __future__ import annotations

import pytest
import torch
from torch import nn

import isonorm
from isonorm.lab.models import MLP
from isonorm.lab.norms import norm_factory

NORMS = [
    "plain",
    "batchnorm",
    "dbn",
    "iternorm",
    "layernorm",
    "positionalnorm",
    "groupnorm:num_groups=10",
    "batchgroupnorm:num_groups=10",
    "groupwhitening:num_groups=10",
]


@pytest.mark.parametrize("norm", NORMS)
def test_every_norm_trains_in_the_mlp(norm):
    model = MLP(64, 10, norm=norm, depth=3)
    kinds = [type(layer) for layer in model]
    hidden = [nn.Linear, nn.ReLU]
    if norm != "plain":
        hidden.insert(1, type(norm_factory(norm)(100)))
    assert kinds == [nn.Flatten, *hidden, *hidden, nn.Linear]

    logits = model(torch.randn(32, 1, 8, 8))
    assert logits.shape == (32, 10)
    cotangent = torch.randn_like(logits)
    gradients = torch.autograd.grad(
        (logits * cotangent).sum(),
        [layer.weight for layer in model if isinstance(layer, nn.Linear)],
    )
    assert all(gradient.isfinite().all() and gradient.abs().max() > 0 for gradient in gradients)


def test_norm_can_be_a_factory_called_with_the_width():
    model = MLP(5, 3, width=7, depth=2, norm=lambda width: isonorm.IterNorm(width, group_size=2))
    assert isinstance(model[2], isonorm.IterNorm)
    assert (model[2].num_features, model[2].group_size) == (7, 2)


def test_depth_counts_linear_layers():
    assert [type(layer) for layer in MLP(5, 3, depth=1, norm="dbn")] == [nn.Flatten, nn.Linear]
    widths = [
        tuple(layer.weight.shape)
        for layer in MLP(5, 3, width=7, depth=4)
        if isinstance(layer, nn.Linear)
    ]
    assert widths == [(7, 5), (7, 7), (7, 7), (3, 7)]
    with pytest.raises(ValueError, match="at least 1; got depth=0"):
        MLP(5, 3, depth=0)
