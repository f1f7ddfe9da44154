"""What layers in equilibrium refuse, and what they say."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from isonorm import EquiConv1d, EquiConv2d, EquiLinear


def test_a_bias_beside_the_affine_is_refused(case):
    with pytest.raises(ValueError, match="bias=True beside affine=True"):
        case.build(bias=True)
    assert case.build(bias=True, affine=False).bias.shape == (6,)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"statistics_fraction": 0}, "statistics_fraction must be above 0"),
        ({"statistics_fraction": 1.5}, "got 1.5"),
        ({"momentum": 2}, "momentum must be None or between 0 and 1"),
        ({"process_group": "nobody"}, "process_group must be"),
    ],
)
def test_wrong_options_are_explained(case, options, message):
    with pytest.raises(ValueError, match=message):
        case.build(**options)


@pytest.mark.parametrize(
    "options",
    [
        {"kernel_size": (3, 3, 3)},
        {"kernel_size": 2.0},
        {"kernel_size": 0},
        {"stride": 0},
        {"padding": -1},
        {"dilation": (1,)},
    ],
    ids=str,
)
def test_wrong_sizes_are_explained(options):
    (name,) = options
    with pytest.raises(ValueError, match=f"EquiConv2d takes {name} as an integer of at least"):
        EquiConv2d(3, 4, **({"kernel_size": 3} | options))


def test_a_kernel_must_be_real(case):
    with pytest.raises(TypeError, match=r"floating-point type .*; got torch\.complex64"):
        case.build(dtype=torch.complex64)


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
def test_a_layer_may_have_no_outputs():
    assert EquiLinear(4, 0)(torch.rand(2, 4)).shape == (2, 0)


def test_unknown_options_are_refused(case):
    with pytest.raises(TypeError, match="eps"):
        case.build(eps=1e-5)


def test_wrong_shapes_are_explained():
    with pytest.raises(ValueError, match=r"\(N, 3, H, W\).*got shape \(2, 4, 5, 5\)"):
        EquiConv2d(3, 4, 3)(torch.rand(2, 4, 5, 5))
    with pytest.raises(ValueError, match=r"EquiConv1d expected input \(N, 3, L\)"):
        EquiConv1d(3, 4, 3)(torch.rand(3))
    with pytest.raises(ValueError, match=r"\(N, \*, 3\).*got shape \(2, 4\)"):
        EquiLinear(3, 4)(torch.rand(2, 4))


def test_a_layer_with_single_weights_says_what_it_will_do():
    with pytest.warns(UserWarning, match="a single weight for each output"):
        layer = EquiConv2d(3, 3, 1, groups=3)
    with torch.no_grad():
        layer.beta.copy_(torch.tensor([1.0, 2.0, 3.0]))
    y = layer(torch.rand(2, 3, 4, 4))
    torch.testing.assert_close(y, layer.beta.view(3, 1, 1).expand_as(y), rtol=0, atol=1e-5)


def test_it_is_no_torch_convolution():
    """Or else tools would merge a BatchNorm's scale into a kernel that does not know scales."""
    assert not isinstance(EquiConv2d(3, 4, 3), nn.Conv2d)
    assert not isinstance(EquiLinear(3, 4), nn.Linear)
