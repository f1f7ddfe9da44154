"""The explicit path is the reference, in every layout and chunking; and when it is taken."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

import isonorm
from isonorm import area as areas
from isonorm import operation as operations
from isonorm.functional import normalize
from isonorm.kernels import INTERPRETING, choose, tiles
from isonorm.operation import Operation
from isonorm.recovery import Affine, Coloring
from isonorm.roots import METHODS

C = 8  # in groups of 3: 3, 3 and a last one of 2; in 4 groups of 2

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


@pytest.fixture(autouse=True)
def _poisoned_memory(monkeypatch):
    """An output that is not written shows as NaN."""

    def poisoned(make):
        def filled(*args, **kwargs) -> Tensor:
            tensor = make(*args, **kwargs)
            return tensor.fill_(torch.nan) if tensor.is_floating_point() else tensor

        return filled

    for name in ("empty", "empty_like"):
        monkeypatch.setattr(torch, name, poisoned(getattr(torch, name)))


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


def assert_paths_agree(x: Tensor, area, operation, parameters=None, recovery=Affine) -> None:
    if parameters is None:
        parameters = [torch.randn(x.shape[1], dtype=torch.float64) for _ in range(2)]
    explicit = passes("torch", x, area, operation, parameters, recovery)
    reference = passes("reference", x, area, operation, parameters, recovery)
    assert_same(explicit, reference, 1e-10)


FEW = (5, C, 4, 5)
MANY = (2, C, 16, 17)  # so many positions that examples are multiplied one by one


@pytest.mark.parametrize("shape", [FEW, MANY], ids=["few positions", "many positions"])
@pytest.mark.parametrize(("area", "operation"), COMPOSITIONS.values(), ids=COMPOSITIONS.keys())
def test_is_the_reference(area, operation, shape):
    assert shape is FEW or torch.Size(shape[2:]).numel() >= tiles.MIN_ROW_LENGTH
    assert_paths_agree(correlated(*shape), area, operation)


SHAPES = {
    "rank 2": (12, C),
    "rank 3": (5, C, 9),
    "positions one below a product per example": (2, C, tiles.MIN_ROW_LENGTH - 1),
    "positions just enough for one": (2, C, tiles.MIN_ROW_LENGTH),
    "rank 4": FEW,
    "rank 5": (2, C, 2, 3, 4),
    "1x1 images": (12, C, 1, 1),
    "one example": (1, C, 5, 7),
}


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.__name__)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
@pytest.mark.parametrize(("area", "operation"), REPRESENTATIVE.values(), ids=REPRESENTATIVE.keys())
def test_is_the_reference_in_every_layout(area, operation, shape, layout):
    if area.name == "instance" and torch.Size(shape[2:]).numel() == 1:
        pytest.skip("one value cannot be centred by itself")
    x = layout(correlated(*shape))
    assert_paths_agree(x, area, operation)


@pytest.mark.parametrize("budget", [1, 100, 200], ids=lambda budget: f"{budget} numbers a chunk")
@pytest.mark.parametrize("rows", [True, False], ids=["by row", "gathered"])
@pytest.mark.parametrize("layout", [contiguous, channels_last], ids=lambda layout: layout.__name__)
@pytest.mark.parametrize(("area", "operation"), REPRESENTATIVE.values(), ids=REPRESENTATIVE.keys())
def test_chunks_merge_to_the_whole(area, operation, layout, rows, budget, monkeypatch):
    """Seven examples: one by one, in uneven and in larger chunks."""
    monkeypatch.setattr(tiles, "MIN_ROW_LENGTH", 1 if rows else 1000)
    x = layout(correlated(7, C, 2, 3))
    whole = passes("torch", x, area, operation, [torch.ones(C), torch.ones(C)])
    monkeypatch.setitem(tiles.CHUNK_NUMEL, "cpu", budget)
    assert tiles.chunk_length(x.flatten(2).unsqueeze(1).shape, x.device) < len(x)
    chunked = passes("torch", x, area, operation, [torch.ones(C), torch.ones(C)])
    assert_same(chunked, whole, 1e-12)
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


def test_nothing_is_computed_for_input_that_wants_no_gradient(monkeypatch):
    def refuse(*args):
        raise AssertionError("dx was computed")

    layer, x, dy = isonorm.IterNorm(4), torch.randn(6, 4, 5), torch.randn(6, 4, 5)
    wanted = x.clone().requires_grad_()
    parameters = (layer.weight, layer.bias)
    *expected, dx = torch.autograd.grad(layer(wanted), (*parameters, wanted), dy)
    assert dx.abs().max() > 0
    monkeypatch.setattr("isonorm.kernels.plain.backward_apply", refuse)
    found = torch.autograd.grad(layer(x), parameters, dy)
    assert all(map(torch.equal, found, expected))
    with pytest.raises(AssertionError, match="dx"):
        layer(wanted).backward(dy)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_chunks_do_not_cancel_far_from_zero(dtype, monkeypatch):
    """Mean 1e4, deviation 1: what is left in float32 is the rounding of the mean, 1e4 · 2⁻²⁴."""
    monkeypatch.setitem(tiles.CHUNK_NUMEL, "cpu", 100)
    x = (correlated(40, 4, 5) + 1e4).to(dtype)
    with isonorm.backend("torch"):
        _, statistics = normalize(x, area="batch", operation="whiten")
    expected = torch.cov(x.double().transpose(0, 1).flatten(1), correction=0)
    error = (statistics.cov[0] - expected).abs().amax() / expected.abs().amax()
    assert error < {torch.float32: 2e-4, torch.float64: 1e-11}[dtype]


COLORED = {
    name: composition
    for name, composition in COMPOSITIONS.items()
    if composition[1] in (operations.standardize(), operations.whiten("newton"))
}


@pytest.mark.parametrize("shape", [FEW, MANY], ids=["few positions", "many positions"])
@pytest.mark.parametrize(("area", "operation"), COLORED.values(), ids=COLORED.keys())
def test_coloring_is_the_references(area, operation, shape):
    color = torch.randn_like(Coloring.initial(C, area, dtype=torch.float64)["color"])
    bias = torch.randn(C, dtype=torch.float64)
    assert_paths_agree(correlated(*shape), area, operation, [color, bias], Coloring)


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


def test_backward_runs_again_over_the_same_graph():
    x = correlated(6, C, 4, 5).requires_grad_()
    with isonorm.backend("torch"):
        y, _ = normalize(x, area=areas.batch(3), operation="whiten")
    cotangent = torch.randn_like(y)
    first, second = (torch.autograd.grad(y, x, cotangent, retain_graph=True)[0] for _ in range(2))
    assert torch.equal(first, second)


@pytest.mark.parametrize("operation", ["standardize", *METHODS])
def test_only_x_and_matrices_are_saved(operation):
    """BatchNorm's memory: beside x nothing of the activation's size waits for the backward pass."""
    x = torch.randn(16, 8, 16, 16, requires_grad=True)
    resolved = operations.whiten(operation) if operation in METHODS else operations.standardize()
    saved: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with (
        isonorm.backend("torch"),
        torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor),
    ):
        normalize(x, area=areas.batch(4), operation=resolved)
    assert x.untyped_storage().data_ptr() in saved
    assert sum(saved.values()) < 1.05 * x.nbytes


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


# Which path runs, and why

WHITEN, AREA = operations.whiten(), areas.batch(2)
X = torch.randn(6, 4)


def chosen(operation: Operation = WHITEN) -> str:
    return choose(operation, AREA, X).backend


def test_plain_torch_runs_on_a_cpu_and_says_why():
    if INTERPRETING:
        pytest.skip("the interpreter stands in for a GPU")
    choice = choose(WHITEN, AREA, X)
    assert choice.backend == "torch"
    assert "cpu" in choice.reason


def test_a_backend_asked_for_by_name_runs():
    with isonorm.backend("reference"):
        assert choose(WHITEN, AREA, X) == ("reference", "asked for")
    with isonorm.backend("torch"):
        assert choose(WHITEN, AREA, X) == ("torch", "asked for")


def test_contexts_nest_and_restore():
    outside = chosen()
    with isonorm.backend("reference"):
        with isonorm.backend("torch"):
            assert chosen() == "torch"
            with pytest.raises(KeyError), isonorm.backend("reference"):
                raise KeyError
            assert chosen() == "torch"
        assert chosen() == "reference"
    assert chosen() == outside


def test_a_wrong_name_is_explained_and_changes_nothing():
    with isonorm.backend("reference"):
        with (
            pytest.raises(ValueError, match=r"must be one of auto, reference.*got 'cuda'"),
            isonorm.backend("cuda"),
        ):
            pass
        assert chosen() == "reference"


def test_triton_runs_or_gives_the_reason():
    """Float64 has no kernel, on any machine."""
    with (
        isonorm.backend("triton"),
        pytest.raises(RuntimeError, match="backend='triton' was asked for, but the"),
    ):
        normalize(X.double(), area=AREA, operation=WHITEN)


@pytest.mark.parametrize(
    "transform",
    [torch.func.vmap, torch.func.grad, torch.func.jacrev, torch.func.jacfwd, torch.func.hessian],
    ids=lambda transform: transform.__name__,
)
def test_the_reference_runs_under_transforms(transform):
    seen = set()

    def function(x: Tensor) -> Tensor:
        choice = choose(WHITEN, AREA, x)
        seen.add((choice.backend, "torch.func" in choice.reason))
        return (x**2).sum()

    with isonorm.backend("torch"):
        transform(function)(torch.randn(3, 2))
    assert seen == {("reference", True)}
    assert chosen() == "torch"


def test_the_reference_runs_in_forward_mode():
    with forward_ad.dual_level():
        choice = choose(WHITEN, AREA, X)
    assert choice.backend == "reference"
    assert "forward-mode" in choice.reason


@pytest.mark.parametrize("operation", [operations.standardize(1), operations.center()], ids=repr)
def test_the_reference_runs_what_is_not_quadratic(operation):
    with isonorm.backend("torch"):
        choice = choose(operation, AREA, X)
    assert choice.backend == "reference"
    assert repr(operation) in choice.reason


def test_the_environment_names_the_backend():
    """One process, reloading the choice for each value of the variable."""
    program = """
import importlib, os
import isonorm, torch
from isonorm import area, operation

def choice():
    return isonorm.kernels.choose(operation.whiten(), area.batch(), torch.randn(4, 2)).backend

print(choice())
for name in ("torch", "cuda"):
    os.environ["ISONORM_BACKEND"] = name
    try:
        importlib.reload(isonorm.kernels)
        print(choice())
    except ValueError as error:
        print(error)
"""
    result = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"ISONORM_BACKEND": "reference"},
        capture_output=True,
        text=True,
        check=True,
    )
    asked, then, wrong = result.stdout.splitlines()
    assert (asked, then) == ("reference", "torch")
    assert wrong == "ISONORM_BACKEND must be one of auto, reference, torch, triton; got 'cuda'."
