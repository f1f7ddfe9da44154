"""Compositions, layouts, and the same passes by the explicit path and by the reference."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import isonorm
from isonorm import area as areas
from isonorm import operation as operations
from isonorm.functional import normalize
from isonorm.kernels import choose, native
from isonorm.operation import Operation
from isonorm.recovery import Affine
from isonorm.roots import METHODS

needs_native_code = pytest.mark.skipif(
    native.why_not(torch.float32) is not None, reason=str(native.why_not(torch.float32))
)

C = 8  # in groups of 3: 3, 3 and a last one of 2; in 4 groups of 2
FEW = (5, C, 4, 5)
MANY = (2, C, 16, 17)  # so many positions that examples are multiplied one by one

SCALAR_AREAS = {
    "batch": areas.batch(),
    "instance": areas.instance(),
    "layer": areas.layer(),
    "group": areas.group(4),
    "batch_group": areas.batch_group(4),
    "position": areas.position(),
}
MATRIX_AREAS = {
    "batch, all channels": areas.batch(),
    "batch with a remainder": areas.batch(3),
    "instance with a remainder": areas.instance(3),
    "group": areas.group(4),
}
COMPOSITIONS = {
    f"{operation!r} × {name}": (area, operation)
    for operation in (operations.standardize(), operations.scale())
    for name, area in SCALAR_AREAS.items()
} | {
    f"{operation!r} × {name}": (area, operation)
    for operation in [operations.whiten(method) for method in METHODS]
    for name, area in MATRIX_AREAS.items()
}
# one of each kind of arithmetic: elementwise along every role, products by row, column and example
REPRESENTATIVE = {
    name: COMPOSITIONS[name]
    for name in (
        "standardize(p=2) × batch",
        "standardize(p=2) × group",
        "standardize(p=2) × position",
        "scale() × layer",
        "whiten('newton') × batch with a remainder",
        "whiten('zca') × instance with a remainder",
        "whiten('cholesky') × group",
    )
}


def correlated(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    c = shape[1]
    mix = torch.randn(c, c) / c**0.5 + torch.diag(torch.linspace(1, 3, c))
    return torch.einsum("ij,nj...->ni...", mix, torch.randn(shape)).to(dtype) + 0.5


def contiguous(x: Tensor) -> Tensor:
    return x


def channels_last(x: Tensor) -> Tensor:
    """Features next to one another in memory, whatever the rank."""
    return x.movedim(1, -1).contiguous().movedim(-1, 1)


def strided(x: Tensor) -> Tensor:
    """Every second channel and the last positions of a larger tensor."""
    larger = x.new_zeros(len(x), 2 * x.shape[1], *(n + 1 for n in x.shape[2:]))
    view = larger[(slice(None), slice(None, None, 2), *(slice(1, None) for _ in x.shape[2:]))]
    view.copy_(x)
    return view


def transposed(x: Tensor) -> Tensor:
    """The batch innermost."""
    return x.movedim(0, -1).contiguous().movedim(-1, 0)


LAYOUTS = [contiguous, channels_last, strided, transposed]


def passes(backend: str, x: Tensor, area, operation: Operation, parameters, recovery=Affine):
    """Output, statistics and the gradients of a random functional of all three."""
    # keeps strides, which clone() of a strided view would not
    x = x.detach().requires_grad_()
    parameters = [p.detach().clone().requires_grad_() for p in parameters]
    with isonorm.backend(backend):
        y, statistics = normalize(
            x, area=area, operation=operation, recovery=recovery(*parameters), eps=1e-3
        )
    outputs = [y, statistics.cov] + [statistics.mean] * operation.centers
    generator = torch.Generator().manual_seed(1)
    cotangents = [
        torch.randn(o.shape, generator=generator, dtype=torch.float64).to(o.dtype) for o in outputs
    ]
    through_all = torch.autograd.grad(outputs, [x, *parameters], cotangents, retain_graph=True)
    through_y = torch.autograd.grad(y, [x, *parameters], cotangents[0], retain_graph=True)
    through_cov = torch.autograd.grad(statistics.cov, x, cotangents[1])
    names = ["y", "cov", "mean"][: len(outputs)]
    names += [
        f"d{name} through {what}" for what in ("all", "y") for name in ("x", "weight", "bias")
    ]
    values = [*outputs, *through_all, *through_y, *through_cov]
    return dict(zip([*names, "dx through cov"], values, strict=True))


def assert_same(explicit: dict[str, Tensor], reference: dict[str, Tensor], tolerance: float):
    for name, expected in reference.items():
        scale = expected.abs().amax().clamp(min=1)
        error = (explicit[name] - expected).abs().amax() / scale
        assert error < tolerance, f"{name}: {error:.1e}"


def assert_paths_agree(
    x: Tensor, area, operation, parameters=None, recovery=Affine, backends=None
) -> None:
    """``backends``, or all that there are, with the reference."""
    if parameters is None:
        parameters = [torch.randn(x.shape[1], dtype=torch.float64) for _ in range(2)]
    reference = passes("reference", x, area, operation, parameters, recovery)
    for backend in backends or explicit_paths(x, area, operation):
        assert_same(passes(backend, x, area, operation, parameters, recovery), reference, 1e-10)


def explicit_paths(x: Tensor, area, operation: Operation) -> list[str]:
    """Plain torch's, and that in native code where there is one."""
    try:
        with isonorm.backend("native"):
            choose(x, area=area, operation=operation)
    except RuntimeError:
        return ["torch"]
    return ["torch", "native"]
