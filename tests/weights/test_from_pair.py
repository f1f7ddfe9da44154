"""A convolution, or a linear layer, with its BatchNorm becomes one layer in equilibrium."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import isonorm
from isonorm import EquiConv2d, EquiLinear

PAIRS = {
    "conv1d": (lambda: nn.Conv1d(4, 6, 3, padding=1), nn.BatchNorm1d, (5, 4, 7)),
    "conv2d": (
        lambda: nn.Conv2d(4, 6, 3, 2, 1, groups=2, padding_mode="circular"),
        nn.BatchNorm2d,
        (5, 4, 6, 6),
    ),
    "conv3d": (lambda: nn.Conv3d(4, 6, 2, dilation=2), nn.BatchNorm3d, (3, 4, 4, 4, 4)),
    "linear": (lambda: nn.Linear(4, 6), nn.BatchNorm1d, (5, 4)),
}


@pytest.mark.parametrize("pair", PAIRS)
def test_a_pair_keeps_its_kernel_and_its_affine(pair):
    make, norm_class, shape = PAIRS[pair]
    plain, norm = make(), norm_class(6, momentum=0.4)
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    plain.weight.requires_grad_(False)
    state = torch.get_rng_state()
    layer = isonorm.weights.equinorm_from_pair(plain, norm.eval(), statistics_fraction=0.5)
    assert torch.equal(torch.get_rng_state(), state)

    for ours, theirs in ((layer.weight, plain.weight), (layer.gamma, norm.weight)):
        assert torch.equal(ours, theirs) and ours.data_ptr() != theirs.data_ptr()
        assert ours.requires_grad == theirs.requires_grad
    assert torch.equal(layer.beta, norm.bias) and layer.bias is None
    assert layer.momentum == 0.4 and not layer.training and layer.statistics_fraction == 0.5
    assert torch.equal(layer.running_v, torch.ones(4)) and layer.num_batches_tracked == 0
    fused, x = layer.fuse(), torch.rand(shape)
    assert fused(x).shape == norm(plain(x)).shape == layer(x).shape
    for name in type(layer)._arguments:
        assert getattr(fused, name) == getattr(plain, name)


def test_a_bias_before_a_batchnorm_is_redundant_and_dropped():
    """BatchNorm subtracts it; the pair without it is the same, and so is what is made of it."""
    conv, norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
    bare = nn.Conv2d(3, 4, 3, bias=False)
    bare.load_state_dict({"weight": conv.weight})
    x = torch.rand(5, 3, 6, 6)
    torch.testing.assert_close(norm(conv(x)), norm(bare(x)))
    with_bias, without = (EquiConv2d.from_pair(one, norm) for one in (conv, bare))
    torch.testing.assert_close(with_bias.state_dict(), without.state_dict())


def test_a_pair_without_affine_or_statistics():
    norm = nn.BatchNorm1d(4, affine=False, track_running_stats=False)
    layer = EquiLinear.from_pair(nn.Linear(3, 4), norm)
    assert layer.gamma is None and layer.bias is None and layer.running_v is None
    assert layer(torch.rand(5, 3)).shape == (5, 4)


def test_a_synchronized_pair_stays_synchronized():
    assert EquiConv2d.from_pair(nn.Conv2d(3, 4, 3), nn.SyncBatchNorm(4)).process_group == "world"
    assert EquiConv2d.from_pair(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).process_group == ""


@pytest.mark.parametrize(
    ("plain", "norm", "error", "message"),
    [
        (nn.Conv1d(3, 4, 3), nn.BatchNorm1d(4), TypeError, "an nn.Conv2d itself.*got Conv1d"),
        (nn.ConvTranspose2d(3, 4, 3), nn.BatchNorm2d(4), TypeError, "got ConvTranspose2d"),
        (nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), TypeError, "BatchNorms; got GroupNorm"),
        (nn.Conv2d(3, 4, 3), nn.BatchNorm2d(5), ValueError, "for 5 channels.*gives 4"),
    ],
    ids=["conv1d", "transposed", "groupnorm", "channels"],
)
def test_what_is_no_pair_is_refused(plain, norm, error, message):
    with pytest.raises(error, match=message):
        EquiConv2d.from_pair(plain, norm)
    if type(plain) is nn.ConvTranspose2d:
        with pytest.raises(TypeError, match="expected one of"):
            isonorm.weights.equinorm_from_pair(plain, norm)


def test_a_pair_learns():
    """One step down the gradient of a converted pair lowers its loss."""
    layer = EquiConv2d.from_pair(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    x, target = torch.rand(8, 3, 6, 6), torch.rand(8, 4, 4, 4)
    loss = lambda: F.mse_loss(layer(x), target)  # noqa: E731
    optimizer = torch.optim.SGD(layer.parameters(), lr=1e-2)
    before = loss()
    before.backward()
    optimizer.step()
    assert loss() < before
