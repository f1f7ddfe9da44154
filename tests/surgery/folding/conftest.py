"""Norms with statistics of their own, and the question to every fold: is it the same function?"""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import isonorm


def stir(model: nn.Module) -> nn.Module:
    """Gives every norm parameters and statistics that are neither ones nor zeros."""
    with torch.no_grad():
        for module in model.modules():
            if getattr(module, "running_mean", None) is None:
                continue
            for parameter in module.parameters(recurse=False):
                parameter += 0.3 * torch.randn_like(parameter)
            module.running_mean.normal_()
            if isinstance(module, isonorm.Normalize):
                cov = module.running_cov
                cov += 0.3 * (mix := torch.randn_like(cov)) @ mix.mT
                module.refresh()
            else:
                module.running_var.uniform_(0.5, 2)
    return model


@pytest.fixture
def x() -> Tensor:
    """A batch for the networks of ``nets.py``."""
    return torch.randn(2, 4, 5, 5)


@pytest.fixture
def same() -> Callable[..., nn.Module]:
    """Folds a network, in float64, and checks that the copy is the same function and the network
    itself unchanged; gives the copy. ``centered`` makes every running mean zero.
    """

    def check(model: nn.Module, *inputs: Tensor, centered: bool = False) -> nn.Module:
        model = stir(model).double()
        for name, buffer in model.named_buffers():
            if centered and name.endswith("running_mean"):
                buffer.zero_()
        before = copy.deepcopy(model.state_dict())
        training = model.training
        folded = isonorm.fold(model)
        assert model.training == training and not any(m.training for m in folded.modules())
        assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
        inputs = tuple(x.double() for x in inputs)
        with torch.no_grad():
            expected, got = copy.deepcopy(model).eval()(*inputs), folded(*inputs)
        torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-10)
        return folded

    return check
