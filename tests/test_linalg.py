"""``linalg``: judged by functions of known spectra in float64, numerical derivatives and SVDs."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor

from isonorm import linalg

D = 6
FUNCTIONS = {
    "inv_sqrt": (linalg.inv_sqrt, -1 / 2),
    "eigen": (partial(linalg.inv_sqrt, method="eigen"), -1 / 2),
    "polynomial": (partial(linalg.inv_sqrt, method="polynomial"), -1 / 2),
    "sqrt": (linalg.sqrt, 1 / 2),
    "inv_root 1": (partial(linalg.inv_root, p=1), -1),
    "inv_root 3": (partial(linalg.inv_root, p=3), -1 / 3),
    "inv_root 4": (partial(linalg.inv_root, p=4), -1 / 4),
    "inv_root 7": (partial(linalg.inv_root, p=7), -1 / 7),
}
function = pytest.mark.parametrize(("f", "power"), FUNCTIONS.values(), ids=FUNCTIONS)


def with_spectrum(values: Tensor, *batch: int) -> tuple[Tensor, Tensor]:
    """Return (…, d, d) matrices of these eigenvalues, and their eigenvectors, in float64."""
    d = len(values)
    q = torch.linalg.qr(torch.randn(*batch, d, d, dtype=torch.float64)).Q
    a = (q * values) @ q.mT
    return 0.5 * (a + a.mT), q


@function
@pytest.mark.parametrize("batch", [(), (3,), (2, 3), (0,)], ids=str)
def test_are_the_powers_of_the_spectrum(f, power, batch):
    values = torch.logspace(0.5, -2, D, dtype=torch.float64)
    a, q = with_spectrum(values, *batch)
    torch.testing.assert_close(f(a), (q * values**power) @ q.mT, rtol=1e-10, atol=1e-10)


#: Bounds of the table in docs/hand.md for float32, by the logarithm of the condition number.
ERRORS = {
    "eigen": {0: 2e-7, 2: 5e-7, 4: 2e-5, 6: 2e-3},
    "polynomial": {0: 2e-7, 2: 5e-7, 4: 2e-5, 6: 2e-3},
    "sqrt": {0: 2e-7, 2: 3e-7, 4: 6e-7, 6: 3e-6},
    "inv_root 4": {0: 3e-7, 2: 4e-7, 4: 1e-5, 6: 7e-4},
}


@pytest.mark.parametrize("name", ERRORS)
def test_float32_is_as_near_to_float64_as_the_page_says(name):
    f, power = FUNCTIONS[name]
    for condition, bound in ERRORS[name].items():
        a, _ = with_spectrum(torch.logspace(0, -condition, 64, dtype=torch.float64), 4)
        values, vectors = torch.linalg.eigh(a.float().double())
        exact = (vectors * values.unsqueeze(-2) ** power) @ vectors.mT
        error = (f(a.float()).double() - exact).norm(dim=(1, 2)) / exact.norm(dim=(1, 2))
        assert error.max() < bound


@function
@pytest.mark.parametrize("repeated", [False, True])
def test_derivatives_of_both_orders(f, power, repeated):
    values = torch.tensor([2.0, 1.0, 0.3, 0.1], dtype=torch.float64)
    a, _ = with_spectrum(values, 2)
    if repeated:
        a = torch.stack([torch.eye(4).double(), with_spectrum(values[[0, 0, 2, 2]])[0]])
    a.requires_grad_()
    assert torch.autograd.gradcheck(f, a, check_forward_ad=not repeated)
    assert torch.autograd.gradgradcheck(f, a)


def degenerate(dtype: torch.dtype) -> dict[str, Tensor]:
    few = torch.randn(D, 2, dtype=dtype)
    zero_row = torch.randn(D, 3 * D, dtype=dtype)
    zero_row[2] = 0
    return {
        "zeros": torch.zeros(D, D, dtype=dtype),
        "identity": torch.eye(D, dtype=dtype),
        "one": torch.ones(D, D, dtype=dtype),
        "few samples": few @ few.mT,
        "a dead feature": zero_row @ zero_row.mT,
        "one large": torch.diag(torch.tensor([1.0] + [1e-30] * (D - 1), dtype=dtype)),
        "largest": torch.eye(D, dtype=dtype) * torch.finfo(dtype).max / 4,
    }


@function
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("scale", [1e-8, 1.0, 1e8])
def test_no_valid_matrix_gives_nan(f, power, dtype, scale):
    made = degenerate(dtype)
    largest = made.pop("largest")
    a = torch.stack([*(scale * a for a in made.values()), largest]).requires_grad_()
    y = f(a)
    assert y.isfinite().all()
    (first,) = torch.autograd.grad(y, a, torch.randn_like(y), create_graph=True)
    assert first.isfinite().all()
    assert not first[0].any() and not y[0].any()  # zeros
    (second,) = torch.autograd.grad(first[1], a, torch.randn_like(first[1]))
    assert not second.isnan().any()


@function
@pytest.mark.parametrize("scale", [1e-8, 1e8])
def test_are_homogeneous(f, power, scale):
    a, _ = with_spectrum(torch.logspace(0, -3, D, dtype=torch.float64), 3)
    found = f(a.float() * scale).double() / scale**power
    torch.testing.assert_close(found, f(a.float()).double(), rtol=1e-3, atol=1e-3)


@function
def test_root_and_inverse_root_undo_each_other(f, power):
    a, _ = with_spectrum(torch.logspace(0, -2, D, dtype=torch.float64), 2)
    times = round(1 / abs(power))
    whole = torch.linalg.matrix_power(f(a), times)
    expected = a if power > 0 else torch.linalg.inv(a)
    torch.testing.assert_close(whole, expected, rtol=1e-8, atol=1e-8)


@function
def test_nan_stays_in_its_matrix(f, power):
    a, _ = with_spectrum(torch.ones(D, dtype=torch.float64), 3)
    a[1, 0, 0] = float("nan")
    assert f(a)[[0, 2]].isfinite().all() and f(a)[1].isnan().all()


@function
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_sixteen_bits_are_rounded_once(f, power, dtype):
    a, _ = with_spectrum(torch.logspace(0, -1, D, dtype=torch.float64), 3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = f(a.to(dtype))
    assert torch.equal(y, f(a.to(dtype).float()).to(dtype))


SHAPES = [(5, 3), (3, 5), (4, 4), (1, 4), (4, 1)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_polar_is_that_of_the_singular_values(shape):
    x = torch.randn(2, *shape, dtype=torch.float64, requires_grad=True)
    left, values, right = torch.linalg.svd(x.detach(), full_matrices=False)
    u, p = linalg.polar(x)
    torch.testing.assert_close(u, left @ right, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(p, (right.mT * values.unsqueeze(-2)) @ right, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(u @ p, x, rtol=1e-9, atol=1e-9)
    assert torch.autograd.gradcheck(linalg.polar, x)
    assert torch.autograd.gradgradcheck(linalg.polar, x)


@pytest.mark.parametrize("scale", [2.0**-100, 2.0**-27, 1.0, 2.0**27, 2.0**100])  # exact
def test_polar_of_a_singular_matrix(scale):
    x = torch.randint(-4, 5, (4, 2)).float() @ torch.tensor([[1.0, 2.0, 0.0], [0.0, -1.0, 3.0]])
    given = (scale * torch.stack([x, torch.zeros(4, 3)])).requires_grad_()
    u, p = linalg.polar(given)
    torch.testing.assert_close(u @ p / scale, given / scale, rtol=1e-5, atol=1e-5)
    left, _, right = torch.linalg.svd(x.double(), full_matrices=False)
    nearest = (left[:, :2] @ right[:2]).float()
    torch.testing.assert_close(u[0], nearest, rtol=1e-3, atol=1e-3)
    assert not u[1].any()
    (gradient,) = torch.autograd.grad((u, p), given, (torch.randn_like(u), torch.randn_like(p)))
    assert not gradient.isnan().any()


COMPILED = {name: f for name, (f, _) in FUNCTIONS.items()} | {"polar": linalg.polar}


@pytest.mark.parametrize("f", COMPILED.values(), ids=COMPILED)
def test_compile_without_breaks(f):
    a, _ = with_spectrum(torch.logspace(0, -1, D, dtype=torch.float64), 3)
    found = []
    for call in (f, torch.compile(f, fullgraph=True, backend="aot_eager")):
        leaf = a.clone().requires_grad_()
        y = call(leaf)
        y = y[0] if isinstance(y, tuple) else y
        cotangent = torch.randn(y.shape, generator=torch.Generator().manual_seed(1)).double()
        found.append((y, torch.autograd.grad(y, leaf, cotangent)[0]))
    torch.testing.assert_close(found[1], found[0])


WRONG = {
    "not square": (lambda: linalg.sqrt(torch.ones(2, 3)), ValueError, r"square.*\(2, 3\)"),
    "a vector": (lambda: linalg.inv_sqrt(torch.ones(3)), ValueError, r"2 dimensions.*\(3,\)"),
    "integers": (lambda: linalg.sqrt(torch.ones(2, 2).int()), ValueError, "torch.int32"),
    "a list": (lambda: linalg.polar([[1.0]]), TypeError, "X must be a torch.Tensor; got list"),  # type: ignore[arg-type]
    "a method": (
        lambda: linalg.inv_sqrt(torch.eye(2), method="svd"),
        ValueError,
        "one of auto, eigen, polynomial; got 'svd'",
    ),
    "p": (lambda: linalg.inv_root(torch.eye(2), 0), ValueError, "p must be a positive integer"),
    "half a p": (lambda: linalg.inv_root(torch.eye(2), 0.5), ValueError, "got 0.5"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize(("call", "error", "words"), WRONG.values(), ids=WRONG)
def test_wrong_input_is_answered_in_one_sentence(call, error, words):
    with pytest.raises(error, match=words):
        call()
