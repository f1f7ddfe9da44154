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
    model = MLP(64, 10, norm=norm, hidden=(100, 100))
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
    model = MLP(5, 3, hidden=(7,), norm=lambda width: isonorm.IterNorm(width, group_size=2))
    assert isinstance(model.norm1, isonorm.IterNorm)
    assert (model.norm1.num_features, model.norm1.group_size) == (7, 2)


def test_hidden_sizes_and_their_multiplier():
    assert [type(layer) for layer in MLP(5, 3, hidden=(), norm="dbn")] == [nn.Flatten, nn.Linear]
    model = MLP(5, 3, hidden=(7, 6, 4), width=2)
    shapes = [tuple(layer.weight.shape) for layer in model if isinstance(layer, nn.Linear)]
    assert shapes == [(14, 5), (12, 14), (8, 12), (3, 8)]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"hidden": (7, 0)}, "a hidden layer must be an integer of at least 1; got 0."),
        ({"in_features": 2.5}, "in_features must be an integer of at least 1; got 2.5."),
        ({"num_classes": 0}, "num_classes must be an integer of at least 1; got 0."),
        ({"width": 0}, "width multiplies the numbers of channels and must be positive; got 0."),
        ({"norm": 3}, "norm must be a name, a factory .* or None; got 3."),
        ({"norm": "iternrom"}, "there is no normalization called 'iternrom'"),
    ],
)
def test_impossible_sizes_are_answered_in_one_sentence(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        MLP(**options)
