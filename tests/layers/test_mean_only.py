"""Mean-only batch normalization: t − μ[t] + b."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from isonorm import MeanOnlyBatchNorm
from isonorm.weights import weight_norm


@pytest.mark.parametrize("shape", [(8, 3), (4, 3, 5), (2, 3, 4, 4)])
def test_it_is_its_formula(shape):
    norm = MeanOnlyBatchNorm(3).double()
    with torch.no_grad():
        norm.bias.copy_(torch.randn(3))
    x = 5 + torch.randn(shape, dtype=torch.float64)
    axes, b = (0, *range(2, x.ndim)), norm.bias.view(3, *(1,) * (x.ndim - 2))
    y = norm(x)
    torch.testing.assert_close(y, x - x.mean(axes, keepdim=True) + b)
    running = 0.1 * x.mean(axes)
    torch.testing.assert_close(norm.running_mean, running)
    norm.eval()
    torch.testing.assert_close(norm(x), x - running.view_as(b) + b)


def test_gradients():
    norm = MeanOnlyBatchNorm(3, track_running_stats=False).double()
    x = torch.randn(4, 3, 2, dtype=torch.float64, requires_grad=True)
    bias = norm.bias.detach().requires_grad_()

    def f(x, bias):
        return torch.func.functional_call(norm, {"bias": bias}, (x,))

    assert torch.autograd.gradcheck(f, (x, bias))


def test_it_has_a_bias_and_no_gain():
    norm = MeanOnlyBatchNorm(3)
    assert norm.weight is None and norm.bias.shape == (3,)
    assert [name for name, _ in norm.named_parameters()] == ["bias"]
    norm.bias.data.fill_(2.0)
    norm.reset_parameters()
    assert (norm.bias == 0).all()
    assert MeanOnlyBatchNorm(3, affine=False).bias is None
    assert "MeanOnlyBatchNorm(3, affine=True" in repr(norm)


def test_beside_weight_norm_the_lengths_of_directions_do_not_matter():
    layer = weight_norm(nn.Linear(4, 3, bias=False)).double()
    model, x = nn.Sequential(layer, MeanOnlyBatchNorm(3).double()), torch.randn(9, 4).double()
    y = model(x)
    with torch.no_grad():
        layer.parametrizations.weight.original1.mul_(7)
    torch.testing.assert_close(model(x), y)


def test_unknown_keywords_are_refused():
    with pytest.raises(TypeError, match="MeanOnlyBatchNorm has no keyword argument 'eps_'"):
        MeanOnlyBatchNorm(3, eps_=1)  # type: ignore[call-arg]
