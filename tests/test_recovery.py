"""Recoveries: folded into W or applied after it, they are the same map."""

from __future__ import annotations

import pytest
import torch

from isonorm import area as areas
from isonorm.recovery import Affine, Coloring, resolve

C = 7  # groups of 3, 3 and a last one of 1


@pytest.fixture(params=["affine", "coloring", "no weight"])
def recovery(request) -> Affine | Coloring:
    bias = torch.randn(C, dtype=torch.float64)
    if request.param == "affine":
        return Affine(torch.randn(C, dtype=torch.float64), bias)
    if request.param == "coloring":
        return Coloring(torch.randn(3, 3, 3, dtype=torch.float64), bias)
    return Affine(None, bias)


def test_folding_is_scaling_afterwards(recovery):
    x = torch.randn(5, C, 4, dtype=torch.float64)
    for block in areas.batch(3).partition(C):
        w = torch.randn(block.groups, block.size, block.size, dtype=torch.float64)
        view = block.view(x)
        torch.testing.assert_close(
            recovery.fold(w, block) @ view, recovery.scale(w @ view, block), rtol=1e-12, atol=1e-12
        )


def test_folding_takes_one_matrix_an_example(recovery):
    for block in areas.instance(3).partition(C):
        w = torch.randn(5, block.groups, block.size, block.size, dtype=torch.float64)
        folded = recovery.fold(w, block)
        for one, expected in zip(w, folded, strict=True):
            torch.testing.assert_close(recovery.fold(one, block), expected)


def test_affine_scales_each_channel():
    weight = torch.randn(C)
    x = torch.randn(5, C, 4)
    scaled = [Affine(weight, None).scale(b.view(x), b) for b in areas.batch(3).partition(C)]
    torch.testing.assert_close(
        torch.cat([s.flatten(1, 2) for s in scaled], dim=1), x * weight[:, None]
    )


def test_coloring_mixes_each_group_by_its_own_matrix():
    color = torch.randn(3, 3, 3)
    x = torch.randn(5, C, 4)
    colored = [Coloring(color, None).scale(b.view(x), b) for b in areas.batch(3).partition(C)]
    dense = torch.block_diag(color[0], color[1], color[2, :1, :1])
    torch.testing.assert_close(torch.cat([c.flatten(1, 2) for c in colored], dim=1), dense @ x)


@pytest.mark.parametrize(
    ("area", "shape"),
    [
        (areas.batch(3), (3, 3, 3)),
        (areas.batch(), (1, 7, 7)),
        (areas.group(7), (7, 1, 1)),
        (areas.layer(), (1, 7, 7)),
    ],
    ids=repr,
)
def test_recoveries_start_as_the_identity(area, shape):
    x = torch.randn(5, C, 4)
    color = Coloring(**Coloring.initial(C, area))
    affine = Affine(**Affine.initial(C, area))
    assert color.color.shape == shape
    assert affine.weight is not None and affine.weight.shape == (C,)
    for recovery in (color, affine):
        assert recovery.bias is not None and not recovery.bias.any()
        for block in area.partition(C):
            assert torch.equal(recovery.scale(block.view(x), block), block.view(x))


def test_initial_parameters_take_a_dtype():
    for recovery in (Affine, Coloring):
        parameters = recovery.initial(C, areas.batch(3), dtype=torch.float64).values()
        assert all(p.dtype == torch.float64 and p.requires_grad for p in parameters)


def test_resolve_takes_a_name_a_class_or_nothing():
    assert resolve("affine") is Affine
    assert resolve(Coloring) is Coloring
    assert resolve(None) is None
    assert resolve("none") is None


@pytest.mark.parametrize("wrong", ["color", 3, dict], ids=str)
def test_wrong_recoveries_are_explained(wrong):
    with pytest.raises(ValueError, match="a recovery's class"):
        resolve(wrong)
