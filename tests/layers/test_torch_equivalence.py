"""Where torch has the same normalization, the layers here equal it in all they compute."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import isonorm
from isonorm import area, operation

C = 6
SHAPES = {
    nn.BatchNorm1d: [(10, C), (7, C, 5)],
    nn.BatchNorm2d: [(5, C, 4, 3)],
    nn.BatchNorm3d: [(4, C, 3, 2, 2)],
}
TORCH_BATCH_NORMS = [
    pytest.param(cls, shape, id=f"{cls.__name__}-{len(shape)}d")
    for cls, shapes in SHAPES.items()
    for shape in shapes
]
WIDE = {"dtype": torch.float64}
BATCH_NORMS = [
    pytest.param(partial(isonorm.IterNorm, group_size=1), id="iternorm"),
    pytest.param(partial(isonorm.IterNorm, group_size=1, num_iters=0), id="iternorm-T0"),
    *(
        pytest.param(partial(isonorm.DBN, group_size=1, method=m), id=f"dbn-{m}")
        for m in ("zca", "pca", "cholesky", "polar")
    ),
    pytest.param(isonorm.BatchNorm, id="batchnorm"),
    pytest.param(partial(isonorm.Normalize, area=area.batch(4)), id="normalize"),
]


def randomize(*layers):
    """The same random parameters for all layers."""
    with torch.no_grad():
        for name in ("weight", "bias"):
            value = torch.randn(C, dtype=torch.float64)
            for layer in layers:
                if getattr(layer, name) is not None:
                    getattr(layer, name).copy_(value)


def draw(shape):
    return 3 * torch.randn(shape, dtype=torch.float64) + 2


def run(layer, x, cotangent):
    x = x.detach().requires_grad_()
    y = layer(x)
    return y, *torch.autograd.grad(y, [x, *layer.parameters()], cotangent)


def assert_same(ours, theirs, shape):
    """One step of both, by outputs and gradients."""
    x, cotangent = draw(shape), torch.randn(shape, dtype=torch.float64)
    for a, b in zip(run(ours, x, cotangent), run(theirs, x, cotangent), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


def assert_same_statistics(ours, theirs):
    assert ours.running_cov.shape == (C, 1, 1)
    torch.testing.assert_close(ours.running_mean, theirs.running_mean)
    torch.testing.assert_close(ours.running_cov.view(C), theirs.running_var)
    assert torch.equal(ours.num_batches_tracked, theirs.num_batches_tracked)


@pytest.mark.parametrize("torch_class, shape", TORCH_BATCH_NORMS)
@pytest.mark.parametrize("build", BATCH_NORMS)
def test_batch_norm(build, torch_class, shape):
    ours, theirs = build(C, eps=1e-3, momentum=0.3, **WIDE), torch_class(C, 1e-3, 0.3, **WIDE)
    randomize(ours, theirs)
    for _ in range(3):
        assert_same(ours, theirs, shape)
        assert_same_statistics(ours, theirs)
    ours.eval()
    theirs.eval()
    assert_same(ours, theirs, shape)
    assert_same_statistics(ours, theirs)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"momentum": None}, id="cumulative"),
        pytest.param({"momentum": 0.0}, id="momentum-0"),
        pytest.param({"momentum": 1.0}, id="momentum-1"),
        pytest.param({"track_running_stats": False}, id="untracked"),
        pytest.param({"affine": False}, id="no-affine"),
    ],
)
@pytest.mark.parametrize(
    "build",
    [
        pytest.param(partial(isonorm.IterNorm, group_size=1), id="iternorm"),
        pytest.param(partial(isonorm.DBN, group_size=1), id="dbn"),
        pytest.param(isonorm.BatchNorm, id="batchnorm"),
    ],
)
def test_options_of_batch_norm(build, options):
    ours, theirs = build(C, **options, **WIDE), nn.BatchNorm2d(C, **options, **WIDE)
    randomize(ours, theirs)
    for training in (True, True, False, True, False):
        ours.train(training)
        theirs.train(training)
        assert_same(ours, theirs, (5, C, 4, 3))
        if ours.track_running_stats:
            assert_same_statistics(ours, theirs)
    assert (ours.running_mean is None) == (theirs.running_mean is None)


def test_reset_is_torchs():
    ours, theirs = isonorm.BatchNorm(C, **WIDE), nn.BatchNorm2d(C, **WIDE)
    for layer in (ours, theirs):
        layer(draw((5, C, 4, 3)))
        layer.reset_running_stats()
    assert_same_statistics(ours, theirs)
    ours.eval()
    theirs.eval()
    assert_same(ours, theirs, (5, C, 4, 3))
    randomize(ours)
    ours.reset_parameters()
    assert torch.equal(ours.weight, theirs.weight) and torch.equal(ours.bias, theirs.bias)


def test_float32_training_follows_torch():
    """Ten steps of a small network with each: the losses stay together."""
    torch.manual_seed(3)
    networks = []
    for norm in (isonorm.BatchNorm(8), nn.BatchNorm2d(8)):
        torch.manual_seed(1)
        networks.append(nn.Sequential(nn.Conv2d(3, 8, 3), norm, nn.ReLU(), nn.Conv2d(8, 2, 3)))
    optimizers = [torch.optim.SGD(n.parameters(), lr=0.1) for n in networks]
    for _ in range(10):
        x, target = torch.randn(4, 3, 9, 9), torch.randn(4, 2, 5, 5)
        losses = []
        for network, optimizer in zip(networks, optimizers, strict=True):
            loss = F.mse_loss(network(x), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss)
        torch.testing.assert_close(*losses, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", [(5, C, 7), (5, C, 4, 3), (4, C, 3, 2, 2)], ids=len)
@pytest.mark.parametrize(
    "ours, theirs",
    [
        pytest.param(isonorm.LayerNorm(C, **WIDE), nn.GroupNorm(1, C, **WIDE), id="layer"),
        *(
            pytest.param(
                isonorm.GroupNorm(C, num_groups=k, eps=1e-3, **WIDE),
                nn.GroupNorm(k, C, eps=1e-3, **WIDE),
                id=f"group-{k}",
            )
            for k in (1, 2, 3, 6)
        ),
    ],
)
def test_group_norm(ours, theirs, shape):
    randomize(ours, theirs)
    assert_same(ours, theirs, shape)
    assert_same(ours.eval(), theirs.eval(), shape)


@pytest.mark.parametrize("affine", [True, False], ids=["affine", "plain"])
@pytest.mark.parametrize(
    "torch_class, shape",
    [
        pytest.param(nn.InstanceNorm1d, (5, C, 7), id="1d"),
        pytest.param(nn.InstanceNorm2d, (5, C, 4, 3), id="2d"),
        pytest.param(nn.InstanceNorm3d, (5, C, 2, 3, 2), id="3d"),
    ],
)
def test_instance_norm(torch_class, shape, affine):
    ours, theirs = isonorm.InstanceNorm(C, affine=affine, **WIDE), torch_class(C, affine=affine)
    theirs.double()
    randomize(ours, theirs)
    assert_same(ours, theirs, shape)


@pytest.mark.parametrize("shape", [(5, C), (5, C, 7), (5, C, 4, 3)], ids=len)
def test_positional_norm_is_layer_norm_over_channels(shape):
    ours, theirs = isonorm.PositionalNorm(C, **WIDE), nn.LayerNorm(C, **WIDE)
    randomize(ours, theirs)
    x, cotangent = draw(shape), torch.randn(shape, dtype=torch.float64)
    expected = run(theirs, x.movedim(1, -1), cotangent.movedim(1, -1))
    for a, b in zip(run(ours, x, cotangent), expected, strict=True):
        b = b.movedim(-1, 1) if b.dim() > 1 else b
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


def test_layer_norm_without_positions_is_torchs():
    ours, theirs = isonorm.LayerNorm(C, **WIDE), nn.LayerNorm(C, **WIDE)
    randomize(ours, theirs)
    assert_same(ours, theirs, (5, C))


@pytest.mark.parametrize("groups", [1, 2, 3])
def test_batch_group_norm_is_batch_norm_of_groups(groups):
    """Groups of channels are batch norm's channels; the channels of a group are positions."""
    ours = isonorm.BatchGroupNorm(C, num_groups=groups, momentum=0.3, **WIDE)
    theirs = nn.BatchNorm2d(groups, momentum=0.3, affine=False, **WIDE)
    randomize(ours)
    per_channel = (1, C, 1, 1)
    for training in (True, True, False):
        ours.train(training)
        theirs.train(training)
        x = draw((5, C, 4, 3))
        plain = theirs(x.view(5, groups, C // groups, 12)).view_as(x)
        expected = plain * ours.weight.view(per_channel) + ours.bias.view(per_channel)
        torch.testing.assert_close(ours(x), expected, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(ours.running_mean.view(-1), theirs.running_mean)
        torch.testing.assert_close(ours.running_cov.view(-1), theirs.running_var)


def test_scale_is_rms_norm():
    ours = isonorm.Normalize(C, area="position", operation=operation.scale(), eps=1e-3, **WIDE)
    randomize(ours)
    x = draw((5, C, 7))
    expected = F.rms_norm(x.mT, (C,), ours.weight, eps=1e-3).mT + ours.bias.view(1, C, 1)
    torch.testing.assert_close(ours(x), expected)
