"""Finite differences for every operation × area that has it; transforms of functions."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

import pytest
import torch
from torch import Tensor

from isonorm import area as areas
from isonorm import operation as operations
from isonorm.area import Area
from isonorm.functional import normalize
from isonorm.operation import Operation
from isonorm.recovery import Affine, Coloring
from isonorm.roots import METHODS
from tests.functional.helpers import affine_whiten, correlated, double, gradients


def sized(area: Area, *shape: int) -> tuple[Area, tuple[int, ...]]:
    return area, shape


#: The smallest inputs that still have more samples than features, with the area's corner case.
AREAS = {
    "batch with a remainder": sized(areas.batch(2), 3, 3, 2),
    "instance with a remainder": sized(areas.instance(2), 2, 3, 4),
    "group": sized(areas.group(2), 2, 4, 2),
    "layer": sized(areas.layer(), 2, 3, 2),
    "position": sized(areas.position(), 2, 4, 2),
    "batch_group": sized(areas.batch_group(2), 2, 4, 2),
}
SCALAR = [
    operations.center(),
    operations.scale(),
    operations.standardize(),
    operations.standardize(1),
    operations.standardize(inf),
]
ROOTS = [operations.whiten(method) for method in METHODS] + [operations.whiten("newton", 0)]
COMPOSITIONS = {
    f"{operation!r} × {name}": (area, operation, shape)
    for name, (area, shape) in AREAS.items()
    for operation in SCALAR + (ROOTS if area.whitens else [])
}
#: One of each kind that the explicit backward has.
KINDS = [operations.standardize(), operations.whiten("newton")]


def is_checked(backend: str, area: Area, operation: Operation) -> bool:
    """Every operation in every area, by one backend at least. The explicit backward is written by
    hand, for area and operation together, and leaves some operations to the reference. That is an
    operation after an area's reshaping, each differentiated by torch: besides those it has all
    operations in one area, and one of each kind in the others.
    """
    if backend == "torch":
        return operation.is_quadratic
    return not operation.is_quadratic or area.name == "batch" or operation in KINDS


CHECKED = {
    f"{backend}-{name}": (backend, area, operation, shape)
    for name, (area, operation, shape) in COMPOSITIONS.items()
    for backend in ("reference", "torch")
    if is_checked(backend, area, operation)
}


def as_function(
    area: Area, operation: Operation, recovery: type
) -> Callable[..., tuple[Tensor, ...]]:
    """Tensors → (y, mean, cov), so that derivatives of the statistics are checked as well, where
    they are not constants.
    """

    def function(x: Tensor, *parameters: Tensor) -> tuple[Tensor, ...]:
        y, statistics = normalize(
            x, area=area, operation=operation, recovery=recovery(*parameters), eps=1e-2
        )
        if not operation.centers:
            return y, statistics.cov
        return (y, statistics.mean, statistics.cov) if operation.scales else (y, statistics.mean)

    return function


def assert_derivatives(function: Callable, inputs: tuple[Tensor, ...], backend: str) -> None:
    """The whole Jacobian of the explicit backward; of the reference, which also does forward mode,
    batched gradients and all second derivatives, random projections of it.
    """
    if backend == "torch":
        assert torch.autograd.gradcheck(function, inputs)
        assert torch.autograd.gradgradcheck(function, inputs, fast_mode=True)
        return
    assert torch.autograd.gradcheck(
        function, inputs, check_forward_ad=True, check_batched_grad=True, fast_mode=True
    )
    assert torch.autograd.gradgradcheck(
        function, inputs, check_fwd_over_rev=True, check_batched_grad=True, fast_mode=True
    )


@pytest.mark.parametrize(
    ("backend", "area", "operation", "shape"),
    CHECKED.values(),
    ids=CHECKED.keys(),
    indirect=["backend"],
)
def test_gradcheck(backend, area, operation, shape):
    x, weight, bias = correlated(*shape), double(shape[1]), double(shape[1])
    function = as_function(area, operation, Affine)
    assert_derivatives(function, (x, weight, bias), backend)


COLORED = {
    f"{operation!r} × {name}": (area, operation, shape)
    for name, (area, shape) in AREAS.items()
    for operation in [operations.standardize(), *([operations.whiten("zca")] * area.whitens)]
}


@pytest.mark.parametrize(("area", "operation", "shape"), COLORED.values(), ids=COLORED.keys())
def test_gradcheck_with_coloring(area, operation, shape, backend):
    x, bias = correlated(*shape), double(shape[1])
    color = double(*Coloring.initial(shape[1], area)["color"].shape)
    function = as_function(area, operation, Coloring)
    assert_derivatives(function, (x, color, bias), backend)


@pytest.mark.parametrize("recovery", [None, Affine], ids=["no recovery", "no weight, no bias"])
def test_gradcheck_without_parameters(recovery, backend):
    def function(x: Tensor) -> Tensor:
        given = None if recovery is None else recovery(None, None)
        return normalize(x, area=areas.batch(2), operation="whiten", recovery=given)[0]

    assert_derivatives(function, (correlated(3, 3, 2),), backend)


BATCHED = [operations.standardize(), *(operations.whiten(method) for method in METHODS)]


@pytest.mark.parametrize("operation", BATCHED, ids=repr)
@pytest.mark.parametrize("recovery", [Affine, Coloring])
def test_many_cotangents_at_once(operation, recovery, backend):
    """``is_grads_batched``, with which ``jacobian(vectorize=True)`` and gradcheck take vjps."""
    x, weight, bias = correlated(4, 3, 4), double(3), double(3)
    parameter = weight if recovery is Affine else double(2, 2, 2)
    inputs = (x, parameter, bias)
    y, _ = normalize(
        x, area=areas.batch(2), operation=operation, recovery=recovery(parameter, bias)
    )
    cotangents = torch.randn(3, *y.shape, dtype=torch.float64)
    together = torch.autograd.grad(y, inputs, cotangents, retain_graph=True, is_grads_batched=True)
    for i, cotangent in enumerate(cotangents):
        alone = torch.autograd.grad(y, inputs, cotangent, retain_graph=True)
        for got, want in zip(together, alone, strict=True):
            torch.testing.assert_close(got[i], want, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("operation", BATCHED, ids=repr)
def test_vmap_is_a_loop(operation, backend):
    x = torch.randn(3, 5, 3, 4, dtype=torch.float64)

    def normalized(x: Tensor) -> Tensor:
        return normalize(x, area=areas.batch(2), operation=operation)[0]

    torch.testing.assert_close(
        torch.func.vmap(normalized)(x), torch.stack([normalized(one) for one in x])
    )


def test_forward_mode_is_the_transpose_of_reverse_mode(backend):
    x, tangent = correlated(4, 3, 4).detach(), torch.randn(4, 3, 4, dtype=torch.float64)

    def normalized(x: Tensor) -> Tensor:
        return normalize(x, area=areas.batch(2), operation="whiten")[0]

    y, pushed = torch.func.jvp(normalized, (x,), (tangent,))
    leaf = x.clone().requires_grad_()
    cotangent = torch.randn_like(y)
    (pulled,) = torch.autograd.grad(normalized(leaf), leaf, cotangent)
    torch.testing.assert_close((pushed * cotangent).sum(), (pulled * tangent).sum())


def test_gradients_reach_frozen_and_learnt_inputs_alike(backend):
    """Any subset of inputs may require a gradient."""
    x, weight, bias = correlated(4, 3, 4), double(3), double(3)
    full = gradients(affine_whiten(x, weight, bias), (x, weight, bias))
    for kept in range(3):
        inputs = [t.detach().requires_grad_(i == kept) for i, t in enumerate((x, weight, bias))]
        (got,) = gradients(affine_whiten(*inputs), (inputs[kept],))
        torch.testing.assert_close(got, full[kept])
