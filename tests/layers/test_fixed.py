"""A layer's fixed map as a module: the layer in eval, for inputs of any rank."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import isonorm
from isonorm.layers.fixed import FixedMap


@pytest.mark.parametrize("shape", [(5,), (5, 7), (5, 3, 4), (5, 2, 3, 2), (5, 2, 1, 3, 2)], ids=str)
def test_the_fused_layer_is_the_layer_in_eval(batch_case, shape, draw):
    layer = batch_case.make(dtype=torch.float64, act="silu")
    layer(draw(9, 12, 4, dtype=torch.float64))
    x = draw(shape[0], 12, *shape[1:], dtype=torch.float64)
    residual = torch.randn_like(x)
    fused = layer.eval().fuse()
    assert isinstance(fused, FixedMap) and not hasattr(fused, "fuse")
    torch.testing.assert_close(fused(x), layer(x), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(fused(x, residual), layer(x, residual), rtol=1e-10, atol=1e-10)


def test_what_has_no_fixed_map_fuses_to_itself(sample_case):
    layer = sample_case.make()
    assert layer.fuse() is layer
    untracked = isonorm.IterNorm(12, track_running_stats=False)
    assert untracked.fuse() is untracked


def test_the_input_gives_dtype_and_format():
    fused = isonorm.IterNorm(12, group_size=5).eval().fuse()
    x = torch.randn(2, 12, 3, 4, dtype=torch.bfloat16).to(memory_format=torch.channels_last)
    y = fused(x)
    assert y.dtype == torch.bfloat16 and y.is_contiguous(memory_format=torch.channels_last)
    assert fused(x[:0]).shape == (0, 12, 3, 4)


def test_a_fused_layer_is_saved_and_moved_like_any_module():
    fused = isonorm.DBN(7, group_size=3, act="relu").eval().fuse()
    other = isonorm.DBN(7, group_size=3, act="relu").eval().fuse()
    nn.init.normal_(fused.weight)
    other.load_state_dict(fused.state_dict())
    x = torch.randn(4, 7)
    assert torch.equal(other(x), fused(x))
    assert not any(p.requires_grad for p in fused.parameters())
    assert fused.half().weight.dtype == torch.float16


def test_wrong_channels_are_refused():
    with pytest.raises(ValueError, match=r"expected input \(N, 6, \*\); got shape \(2, 5\)"):
        isonorm.IterNorm(6).eval().fuse()(torch.randn(2, 5))


class Doubled(isonorm.IterNorm):
    def forward(self, x, residual=None):
        return 2 * super().forward(x, residual)


def test_a_layer_that_does_more_than_its_map_is_its_own_fuse():
    hooked = isonorm.IterNorm(4).eval()
    hooked.register_forward_hook(lambda module, args, y: 2 * y)
    for layer in (hooked, Doubled(4).eval()):
        assert layer.fuse() is layer
