"""The plain layer that one in equilibrium is in eval."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from isonorm import EquiConv2d, EquiLinear


def test_fuse_gives_the_plain_layer_of_eval(trained, case):
    trained.eval()
    plain, x = trained.fuse(), case.draw()
    y, expected = plain(x), trained(x)
    assert (y - expected).norm() < 1e-5 * expected.norm()
    assert type(plain) is type(trained)._plain and not plain.training
    assert isinstance(plain.weight, nn.Parameter) and not plain.weight.is_meta
    assert not {p.data_ptr() for p in plain.parameters()} & {
        p.data_ptr() for p in trained.parameters()
    }


@pytest.mark.parametrize("mode", ["zeros", "circular", "reflect", "replicate"])
def test_fuse_keeps_every_argument_of_the_convolution(mode):
    layer = EquiConv2d(4, 6, (3, 2), (2, 1), (1, 2), dilation=(1, 2), groups=2, padding_mode=mode)
    layer(torch.rand(3, 4, 9, 9))
    x = torch.rand(2, 4, 7, 8)
    torch.testing.assert_close(layer.eval().fuse()(x), layer(x))


def test_fuse_without_affine():
    x = torch.rand(5, 4)
    for bias in (False, True):
        layer = EquiLinear(4, 3, bias=bias, affine=False).eval()
        plain = layer.fuse()
        assert (plain.bias is not None) == bias
        torch.testing.assert_close(plain(x), layer(x))


def test_fuse_leaves_frozen_what_was_frozen(case):
    layer = case.make()
    layer.weight.requires_grad_(False)
    plain = layer.fuse()
    assert not plain.weight.requires_grad and plain.bias.requires_grad
    layer.weight.requires_grad_(True)
    layer.beta.requires_grad_(False)
    plain = layer.fuse()
    assert plain.weight.requires_grad and not plain.bias.requires_grad


def test_the_map_of_eval_is_differentiable(trained):
    kernel, bias = trained.inference_map()
    grads = torch.autograd.grad(
        (kernel, bias), (trained.weight, trained.gamma, trained.beta),
        (torch.randn_like(kernel), torch.randn_like(bias)),
    )  # fmt: skip
    assert all(grad.abs().max() > 0 for grad in grads)
