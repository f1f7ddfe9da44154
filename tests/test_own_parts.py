"""Roots and recoveries of one's own: what layers and functions do with them, judged by dense
linear algebra, by isonorm's own parts and by autograd of the definition.
"""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
from torch import Tensor, nn

import isonorm
from isonorm import area as areas
from isonorm.functional import normalize
from isonorm.kernels import backend, choose
from isonorm.operation import Operation, whiten
from isonorm.recovery import Affine, Recovery
from isonorm.roots import Newton, make_root, own

C, M = 7, 5  # groups of 3, 3 and a last one of 1


def lower(sigma: Tensor) -> Tensor:
    """Cholesky's root, as anyone would write it."""
    factor = torch.linalg.cholesky(sigma)
    eye = torch.eye(sigma.shape[-1], dtype=sigma.dtype).expand_as(sigma)
    return torch.linalg.solve_triangular(factor, eye, upper=False)


def inverse(sigma: Tensor) -> Tensor:
    """No root of isonorm's, not even for one channel."""
    return torch.linalg.inv(sigma)


class Halved:
    """A complete root: half of another's, with the derivative to match."""

    name = "halved"

    def __init__(self) -> None:
        self.inner, self.calls = make_root("cholesky", None), []

    def on(self, device):
        return self

    def __call__(self, sigma):
        return 0.5 * lower(sigma)

    def forward(self, sigma):
        self.calls.append("forward")
        w, memo = self.inner.forward(sigma)
        return 0.5 * w, memo

    def backward(self, dw, sigma, w, memo):
        self.calls.append("backward")
        return self.inner.backward(0.5 * dw, sigma, 2 * w, memo)

    def memo_shape(self, b, d):
        return self.inner.memo_shape(b, d)


class Shared(Recovery):
    """One γ for all channels, and a shift of its own name."""

    def __init__(self, size: Tensor, shift: Tensor) -> None:
        self.size, self.shift = size, shift

    @property
    def bias(self) -> Tensor:
        return self.shift

    @staticmethod
    def initial(num_features, area, device=None, dtype=None):
        shape = {"size": (1,), "shift": (num_features,)}
        made = {name: torch.zeros(of, device=device, dtype=dtype) for name, of in shape.items()}
        made["size"] += 1
        return {name: nn.Parameter(value) for name, value in made.items()}

    def scale(self, normalized, block):
        return normalized * self.size.to(normalized.dtype)


@pytest.fixture(autouse=True)
def _names():
    before = dict(own._REGISTERED)
    yield
    own._REGISTERED.clear()
    own._REGISTERED.update(before)


@pytest.fixture
def x() -> Tensor:
    mixed = torch.randn(C, C, dtype=torch.float64)
    return torch.einsum("ij,njs->nis", mixed, torch.randn(40, C, M, dtype=torch.float64)) + 3


def dense(x: Tensor, root, size: int, eps: float = 1e-5) -> Tensor:
    """W(x − μ) group by group, from the definition."""
    rows = x.transpose(0, 1).flatten(1)
    groups = []
    for group in rows.split(size):
        centered = group - group.mean(1, keepdim=True)
        cov = centered @ centered.mT / centered.shape[1] + eps * torch.eye(len(group)).double()
        groups.append(root(cov.unsqueeze(0))[0] @ centered)
    return torch.cat(groups).unflatten(1, (x.shape[0], -1)).transpose(0, 1)


def gradient_of(function, x: Tensor) -> tuple[Tensor, Tensor]:
    """y and its gradient for one cotangent."""
    leaf = x.clone().requires_grad_()
    y = function(leaf)
    cotangent = torch.randn(y.shape, dtype=y.dtype, generator=torch.Generator().manual_seed(1))
    return y, torch.autograd.grad(y, leaf, cotangent)[0]


ROOTS = {"plain": lambda: lower, "inverse": lambda: inverse, "complete": Halved}


@pytest.mark.parametrize("size", [3, 7, 1])
@pytest.mark.parametrize("make", ROOTS.values(), ids=ROOTS)
def test_an_operation_computes_with_its_own_root(make, size, x):
    root = make()
    operation = Operation("own", root=root)
    found = gradient_of(lambda x: normalize(x, area=areas.batch(size), operation=operation)[0], x)
    for ours, expected in zip(found, gradient_of(lambda x: dense(x, root, size), x), strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-7, atol=1e-7)


def test_a_complete_root_brings_its_derivative_and_a_function_does_not(x):
    root = Halved()
    gradient_of(lambda x: normalize(x, area="batch", operation=Operation("h", root=root))[0], x)
    assert root.calls == ["forward", "backward"]
    with backend("native"), pytest.raises(RuntimeError, match=r"autograd differentiates.*'f'"):
        normalize(x, area="batch", operation=Operation("f", root=lower))


def test_a_subclass_of_an_isonorm_root_is_not_taken_for_it(x):
    class Doubled(Newton):
        def __call__(self, sigma):
            return 2 * super().__call__(sigma)

        def forward(self, sigma):
            w, memo = super().forward(sigma)
            return 2 * w, memo

    ours, _ = normalize(x, area="batch", operation=Operation("d", root=Doubled(5)))
    plain, _ = normalize(x, area="batch", operation=whiten("newton", 5))
    torch.testing.assert_close(ours, 2 * plain)


def test_a_registered_root_has_a_name_everywhere(x):
    assert isonorm.register_root("lower", lower) is lower
    expected = dense(x, lower, 3)
    operation, area = whiten("lower"), areas.batch(3)
    layer = isonorm.DBN(C, group_size=3, method="lower", affine=False, dtype=x.dtype)
    model = nn.Sequential(nn.BatchNorm1d(C, affine=False, dtype=x.dtype))
    isonorm.convert(model, "dbn:group_size=3:method=lower")
    for y in (normalize(x, area=area, operation=operation)[0], layer(x), model(x)):
        torch.testing.assert_close(y, expected, rtol=1e-7, atol=1e-7)
    assert repr(operation) == "whiten('lower')" and layer.method == "lower"
    assert choose(x, area=area, operation="whiten").backend != "reference"


def test_copies_and_pickles_keep_the_root(x):
    isonorm.register_root("lower", lambda sigma: lower(sigma))  # a lambda has no pickle
    layer = isonorm.DBN(C, method="lower", dtype=x.dtype)
    layer(x)
    saved = io.BytesIO()
    torch.save(layer, saved)
    saved.seek(0)
    for twin in (copy.deepcopy(layer), torch.load(saved, weights_only=False)):
        assert twin.operation == layer.operation
        torch.testing.assert_close(twin.eval()(x), layer.eval()(x), rtol=0, atol=0)
    pickled = pickle.dumps(layer.operation)
    own._REGISTERED.clear()
    with pytest.raises(ValueError, match=r"no root called 'lower': call isonorm.register_root"):
        pickle.loads(pickled)


def test_operations_with_other_roots_differ():
    assert Operation("own", root=lower) == Operation("own", root=lower)
    assert Operation("own", root=lower) != Operation("own", root=inverse)
    isonorm.register_root("mine", lower)
    before = whiten("mine")
    isonorm.register_root("mine", inverse)
    assert whiten("mine") != before and whiten("mine") == whiten("mine")


@pytest.mark.parametrize("make", ROOTS.values(), ids=ROOTS)
def test_a_layer_with_its_own_root_evaluates_compiles_and_differentiates_twice(make, x):
    root = make()
    operation = Operation("own", root=root)
    layer = isonorm.Normalize(C, area=areas.batch(3), operation=operation, dtype=x.dtype)
    y = layer(x)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), y, rtol=1e-9, atol=1e-9)
    layer.eval()
    matrix, offset = layer.inference_map()
    w = [root(layer.running_cov[k : k + 1] + 1e-5 * torch.eye(3).double())[0] for k in (0, 1)]
    torch.testing.assert_close(matrix[:2], torch.stack(w).detach(), rtol=1e-9, atol=1e-9)
    assert torch.equal(layer(x), copy.deepcopy(layer)(x)) and offset.shape == (C,)
    small = x[:4, :3, 0].clone().requires_grad_()
    given = {"area": "batch", "operation": operation}
    assert torch.autograd.gradgradcheck(lambda x: normalize(x, **given)[0], small)


AREAS = [areas.batch(3), areas.instance(3), areas.layer(), areas.group(7), areas.batch(1)]


@pytest.mark.parametrize("area", AREAS, ids=repr)
@pytest.mark.parametrize("operation", ["whiten", "standardize"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_a_recovery_of_ones_own_acts_after_the_normalization(area, operation, dtype, x):
    if operation == "whiten" and not area.whitens:
        operation = "scale"
    x = x.to(dtype)
    recovery = Shared(torch.tensor([1.5], dtype=dtype), torch.randn(C, dtype=dtype))
    bare, _ = normalize(x.double(), area=area, operation=operation)
    expected = 1.5 * bare + recovery.bias.double()[:, None]
    ours, _ = normalize(x, area=area, operation=operation, recovery=recovery)
    assert ours.dtype == dtype
    tolerance = 1e-9 if dtype == torch.float64 else 2e-2
    torch.testing.assert_close(ours.double(), expected, rtol=tolerance, atol=tolerance)


def test_a_subclass_of_an_isonorm_recovery_is_not_taken_for_it(x):
    class Squared(Affine):
        def scale(self, normalized, block):
            return super().scale(super().scale(normalized, block), block)

        def fold(self, w, block):
            return super().fold(super().fold(w, block), block)

    weight = torch.randn(C, dtype=x.dtype)
    given = {"area": areas.batch(3), "operation": "whiten"}
    squared, _ = normalize(x, recovery=Squared(weight, None), **given)
    expected, _ = normalize(x, recovery=Affine(weight**2, None), **given)
    torch.testing.assert_close(squared, expected)


@pytest.mark.parametrize("operation", ["whiten", "standardize"])
def test_a_layer_learns_the_parameters_of_its_own_recovery(operation, x):
    given = {"area": areas.batch(3), "operation": operation, "dtype": x.dtype}
    layer, bare = (isonorm.Normalize(C, recovery=r, **given) for r in (Shared, None))
    assert set(layer.state_dict()) - set(bare.state_dict()) == {"size", "shift"}
    torch.testing.assert_close(layer(x), bare(x))
    with torch.no_grad():
        layer.size.fill_(1.5)
        layer.shift.normal_()
    for mode in (True, False):
        y, z = layer.train(mode)(x), bare.train(mode)(x)
        torch.testing.assert_close(y, 1.5 * z + layer.shift[:, None])
    cotangent = torch.randn_like(x)
    grads = torch.autograd.grad(layer(x), [layer.size, layer.shift], cotangent)
    torch.testing.assert_close(grads[0], (bare(x) * cotangent).sum().view(1))
    torch.testing.assert_close(grads[1], cotangent.sum((0, 2)))
    torch.testing.assert_close(layer.fuse()(x), layer(x))
    assert "recovery='Shared'" in repr(layer)
    layer.reset_parameters()
    assert layer.size.item() == 1 and not layer.shift.any()


def test_a_model_with_its_own_parts_folds(x):
    torch.manual_seed(0)
    operation = Operation("own", root=lower)
    given = {"area": areas.batch(3), "operation": operation, "recovery": Shared}
    norm = isonorm.Normalize(C, dtype=x.dtype, **given)
    model = nn.Sequential(nn.Conv1d(C, C, 1, dtype=x.dtype), norm)
    model(x)
    nn.init.normal_(norm.shift)
    folded = isonorm.fold(model.eval())
    assert not any(isinstance(m, isonorm.Normalize) for m in folded.modules())
    torch.testing.assert_close(folded(x), model(x))


def recovered_by(recovery) -> Tensor:
    return normalize(torch.randn(9, 3), area="batch", operation="whiten", recovery=recovery)[0]


WRONG = {
    "root by name": (lambda: Operation("o", root="zca"), TypeError, r"whiten\('zca'\) takes"),
    "root's class": (lambda: Operation("o", root=Halved), TypeError, "pass an object of it"),
    "root and method": (
        lambda: Operation("o", method="zca", root=lower),
        ValueError,
        "leave scales, norm, method",
    ),
    "W's shape": (
        lambda: normalize(
            torch.randn(9, 3), area="batch", operation=Operation("o", root=torch.sum)
        ),
        ValueError,
        r"of Σ's shape \(1, 3, 3\); got shape \(\)",
    ),
    "name taken": (lambda: isonorm.register_root("zca", lower), ValueError, "already the name"),
    "no name": (lambda: isonorm.register_root("a b", lower), ValueError, "got 'a b'"),
    "no function": (lambda: isonorm.register_root("a", 3), TypeError, "got a int"),
    "function as method": (lambda: whiten(lower), ValueError, "register_root"),
    "recovery's object": (
        lambda: isonorm.Normalize(3, recovery=Affine(torch.ones(3), None)),  # type: ignore[arg-type]
        ValueError,
        "got an object, Affine",
    ),
    "recovery's class": (
        lambda: recovered_by(Affine),
        TypeError,
        "got the class Affine: make an object",
    ),
    "no recovery": (lambda: recovered_by(torch.randn(3)), TypeError, "got Tensor, without initial"),
    "class of nothing": (
        lambda: isonorm.Normalize(3, recovery=dict),
        ValueError,
        "dict lacks initial, fold, scale",
    ),
    "module": (
        lambda: isonorm.Normalize(3, recovery=isonorm.recovery.SPADE),
        ValueError,
        "go around a norm",
    ),
    "bias's shape": (
        lambda: recovered_by(Shared(torch.ones(1), torch.zeros(4))),
        ValueError,
        r"Shared.bias must have shape \(3,\).*got \(4,\)",
    ),
}


@pytest.mark.parametrize(("call", "error", "words"), WRONG.values(), ids=WRONG)
def test_what_cannot_be_meant_gets_one_short_sentence(call, error, words):
    with pytest.raises(error, match=words) as caught:
        call()
    assert "tensor(" not in str(caught.value) and len(str(caught.value)) < 300


class Doubled(Recovery):
    """2·x̂, from the start."""

    @staticmethod
    def initial(num_features, area, device=None, dtype=None):
        return {}

    def scale(self, normalized, block):
        return 2 * normalized


def test_converting_to_a_recovery_that_is_not_the_identity_says_how_it_differs() -> None:
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(6))
    x = torch.randn(8, 6)
    before = model.eval()(x)
    report = isonorm.convert(model, lambda c: isonorm.Normalize(c, recovery=Doubled))
    torch.testing.assert_close(model.eval()(x), 2 * before, atol=1e-4, rtol=1e-4)
    assert "same in eval" not in str(report)


def test_the_choice_knows_roots_of_ones_own() -> None:
    whiten = isonorm.operation.Operation("own", root=lambda sigma: torch.linalg.inv(sigma))
    chosen = isonorm.kernels.choose(torch.randn(8, 4), area="batch", operation=whiten)
    assert chosen.backend == "reference" and "autograd differentiates the root" in chosen.reason
