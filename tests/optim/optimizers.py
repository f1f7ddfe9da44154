"""The optimizers that keep the same promises, and steps with given gradients."""

from __future__ import annotations

import pytest
import torch

from isonorm.optim import LAMB, LANS, LARS, centralize, normalize_gradients

from .conftest import set_grads


def centralized_sgd(params, lr=1e-3, **options):
    return centralize(torch.optim.SGD(params, lr=lr, momentum=0.9, **options))


def normalized_adam(params, lr=1e-3, **options):
    return normalize_gradients(torch.optim.Adam(params, lr=lr, **options))


LAYERWISE = [LARS, LAMB, LANS]
WRAPPED = [centralized_sgd, normalized_adam]
every_optimizer = pytest.mark.parametrize(
    "make", LAYERWISE + WRAPPED, ids=lambda make: make.__name__
)
every_layerwise = pytest.mark.parametrize("make", LAYERWISE, ids=lambda make: make.__name__)


def run(optimizer, params, steps=range(3)):
    for step in steps:
        set_grads(params, step)
        optimizer.step()
    return [p.detach().clone() for p in params]
