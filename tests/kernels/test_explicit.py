"""The explicit path is the reference, in every layout, dtype and number of channels."""

from __future__ import annotations

import pytest
import torch

import isonorm
from isonorm import area as areas
from isonorm import operation as operations
from isonorm.functional import normalize
from isonorm.kernels import layouts, outer
from isonorm.recovery import Affine, Coloring
from tests.kernels.paths import (
    COMPOSITIONS,
    FEW,
    LAYOUTS,
    MANY,
    REPRESENTATIVE,
    C,
    assert_paths_agree,
    assert_same,
    correlated,
    passes,
)

pytestmark = pytest.mark.usefixtures("poisoned_memory")


@pytest.mark.usefixtures("tiles_for_products")
@pytest.mark.parametrize("shape", [FEW, MANY], ids=["few positions", "many positions"])
@pytest.mark.parametrize(("area", "operation"), COMPOSITIONS.values(), ids=COMPOSITIONS.keys())
def test_every_composition_agrees_with_the_reference(area, operation, shape):
    assert shape is FEW or torch.Size(shape[2:]).numel() >= layouts.MIN_ROW_LENGTH
    assert_paths_agree(correlated(*shape), area, operation)


@pytest.mark.parametrize("size", [outer.MIN_TO_HALVE, outer.MIN_TO_HALVE + 1])
def test_a_symmetric_product_made_by_halves_is_whole(size):
    x = correlated(3, 2 * size, layouts.MIN_ROW_LENGTH)
    assert_paths_agree(x, areas.batch(size), operations.whiten("newton", 3))


SHAPES = {
    "rank 2": (12, C),
    "rank 3": (5, C, 9),
    "positions one below a product per example": (2, C, layouts.MIN_ROW_LENGTH - 1),
    "positions just enough for one": (2, C, layouts.MIN_ROW_LENGTH),
    "rank 4": FEW,
    "rank 5": (2, C, 2, 3, 4),
    "1x1 images": (12, C, 1, 1),
    "one example": (1, C, 5, 7),
}


@pytest.mark.usefixtures("tiles_for_products")
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.__name__)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
@pytest.mark.parametrize(("area", "operation"), REPRESENTATIVE.values(), ids=REPRESENTATIVE.keys())
def test_every_layout_agrees_with_the_reference(area, operation, shape, layout):
    if area.name == "instance" and torch.Size(shape[2:]).numel() == 1:
        pytest.skip("one value cannot be centered by itself")
    x = layout(correlated(*shape))
    assert_paths_agree(x, area, operation)


@pytest.mark.parametrize("backend", ["torch", "reference"])
@pytest.mark.parametrize("operation", ["whiten", "standardize"])
def test_a_rounded_mean_does_not_spoil_the_covariance(operation, backend):
    """Mean 1e6, deviation 1: the rounding of the mean, 1e6 · 2⁻²⁴, is no longer small."""
    x = (correlated(40, 4, 5) + 1e6).to(torch.float32)
    with isonorm.backend(backend):
        _, statistics = normalize(x, area="batch", operation=operation)
    expected = torch.cov(x.double().transpose(0, 1).flatten(1), correction=0)
    if operation == "standardize":
        expected = expected.diagonal()
    error = (statistics.cov.view_as(expected) - expected).abs().amax() / expected.abs().amax()
    assert error < 1e-6


COLORED = {
    name: composition
    for name, composition in COMPOSITIONS.items()
    if composition[1] in (operations.standardize(), operations.whiten("newton"))
}


@pytest.mark.usefixtures("tiles_for_products")
@pytest.mark.parametrize("shape", [FEW, MANY], ids=["few positions", "many positions"])
@pytest.mark.parametrize(("area", "operation"), COLORED.values(), ids=COLORED.keys())
def test_coloring_is_the_references(area, operation, shape):
    color = torch.randn_like(Coloring.initial(C, area, dtype=torch.float64)["color"])
    bias = torch.randn(C, dtype=torch.float64)
    assert_paths_agree(correlated(*shape), area, operation, [color, bias], Coloring)


@pytest.mark.usefixtures("tiles_for_products")
@pytest.mark.parametrize("num_channels", [1, 2, 3, 5, 7])
def test_any_number_of_channels(num_channels):
    for operation in ("standardize", "whiten"):
        area = areas.batch(3)
        assert_paths_agree(correlated(6, num_channels, 3), area, operations.resolve(operation))


#: Rounding of the output and of the incoming gradient: 2⁻⁹ and 2⁻¹², a few times over.
TOLERANCE = {torch.bfloat16: 2e-2, torch.float16: 2e-3}


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(("area", "operation"), REPRESENTATIVE.values(), ids=REPRESENTATIVE.keys())
def test_half_precision_input_has_float32_statistics(area, operation, dtype):
    """The same 16-bit numbers in float64 are the oracle: only in- and outputs are rounded."""
    x = correlated(6, C, 4, 5).to(dtype)
    parameters = [torch.rand(C) + 0.5, torch.randn(C)]
    got = passes("torch", x, area, operation, parameters)
    assert got["y"].dtype == got["dx through y"].dtype == dtype
    assert got["cov"].dtype == got["dweight through y"].dtype == torch.float32
    exact = passes("reference", x.double(), area, operation, [p.double() for p in parameters])
    assert_same({"cov": got["cov"].double()}, {"cov": exact["cov"]}, 1e-5)
    for name in ("y", "dx through y", "dweight through y", "dbias through y"):
        error = (got[name].double() - exact[name]).norm() / exact[name].norm()
        assert error < TOLERANCE[dtype], f"{name}: {error:.1e}"


def test_the_same_input_gives_the_same_bits():
    x, weight, bias = correlated(6, C, 4, 5).float(), torch.randn(C), torch.randn(C)
    area, operation = areas.batch(3), operations.whiten("newton")
    first, second = (passes("torch", x, area, operation, [weight, bias]) for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_differentiated_backward_is_the_references():
    """create_graph=True: the gradient penalty of both paths has the same gradient."""
    x, weight, bias = correlated(4, C, 5), torch.randn(C).double(), torch.randn(C).double()
    cotangent, direction = torch.randn(4, C, 5).double(), torch.randn(4, C, 5).double()
    found = []
    for backend in ("torch", "reference"):
        inputs = [t.clone().requires_grad_() for t in (x, weight, bias)]
        with isonorm.backend(backend):
            y, _ = normalize(
                inputs[0], area=areas.batch(3), operation="whiten", recovery=Affine(*inputs[1:])
            )
        (dx,) = torch.autograd.grad(y, inputs[0], cotangent, create_graph=True)
        found.append(torch.autograd.grad(dx, inputs[:2], direction))
    for got, want in zip(*found, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)


def test_a_mean_that_is_not_subtracted_has_no_gradient():
    """It is the constant zero, also for a loss that uses it."""
    x, dy, found = correlated(*FEW), torch.randn(FEW, dtype=torch.float64), []
    for backend in ("torch", "reference"):
        leaf = x.clone().requires_grad_()
        with isonorm.backend(backend):
            y, statistics = normalize(leaf, area="batch", operation="scale")
        loss = (y * dy).sum() + (statistics.mean * torch.arange(C).view(-1, 1)).sum()
        found += torch.autograd.grad(loss, leaf)
    torch.testing.assert_close(*found)
