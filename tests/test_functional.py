"""``normalize`` against torch's own norms, plain dense code and finite differences, on both
backends.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf, log, pi

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import isonorm
from isonorm import area as areas
from isonorm import operation as operations
from isonorm.area import Area
from isonorm.functional import apply_transform, dbn, iter_norm, normalize
from isonorm.operation import Operation
from isonorm.recovery import Affine, Coloring
from isonorm.roots import METHODS
from isonorm.statistics import Statistics

BACKENDS = ("reference", "torch")


@pytest.fixture(params=BACKENDS)
def backend(request):
    with isonorm.backend(request.param):
        yield request.param


def double(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def correlated(n: int, c: int, *positions: int) -> Tensor:
    """Correlated channels of different scales, far from symmetric: eigenvalues lie well apart."""
    mix = torch.randn(c, c) / c**0.5 + torch.diag(torch.linspace(1, 2.5, c))
    x = torch.einsum("ij,nj...->ni...", mix, torch.randn(n, c, *positions)) + 0.5
    return x.double().requires_grad_()


def gradients(y: Tensor, inputs: tuple[Tensor, ...], seed: int = 1) -> tuple[Tensor, ...]:
    """The gradients of a random functional of y."""
    generator = torch.Generator().manual_seed(seed)
    cotangent = torch.randn(y.shape, generator=generator, dtype=torch.float64).to(y.dtype)
    return torch.autograd.grad(y, inputs, cotangent)


# Torch's own norms


SHAPES = {
    "no positions": (12, 6),
    "sequence": (5, 6, 7),
    "image": (4, 6, 3, 5),
    "1x1 image": (8, 6, 1, 1),
    "video": (3, 6, 2, 3, 2),
}
TORCH = {
    "batch_norm": (
        areas.batch(),
        lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True),
    ),
    "instance_norm": (areas.instance(), lambda x, w, b: F.instance_norm(x, weight=w, bias=b)),
    "group_norm": (areas.group(3), lambda x, w, b: F.group_norm(x, 3, w, b)),
    "layer_norm": (areas.layer(), lambda x, w, b: F.group_norm(x, 1, w, b)),
    "positional": (
        areas.position(),
        lambda x, w, b: F.layer_norm(x.movedim(1, -1), x.shape[1:2], w, b).movedim(-1, 1),
    ),
    "batch_group_norm": (
        areas.batch_group(3),
        lambda x, w, b: (
            F.batch_norm(x.reshape(len(x), 3, -1), None, None, training=True).view_as(x)
            * w.view(-1, *[1] * (x.dim() - 2))
            + b.view(-1, *[1] * (x.dim() - 2))
        ),
    ),
}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
@pytest.mark.parametrize(("area", "oracle"), TORCH.values(), ids=TORCH.keys())
def test_standardize_is_torchs_norm(area, oracle, shape, backend):
    if area.name == "instance" and torch.Size(shape[2:]).numel() == 1:
        pytest.skip("one value has no instance norm")
    x, weight, bias = double(*shape), double(6), double(6)
    y, _ = normalize(x, area=area, operation="standardize", recovery=Affine(weight, bias))
    expected = oracle(x, weight, bias)
    torch.testing.assert_close(y, expected, rtol=1e-10, atol=1e-10)
    inputs = (x, weight, bias)
    for got, want in zip(gradients(y, inputs), gradients(expected, inputs), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-8, atol=1e-10)


def test_scale_on_a_layer_is_rms_norm(backend):
    x = double(4, 6, 3, 5)
    y, _ = normalize(x, area="layer", operation="scale", eps=1e-4)
    expected = F.rms_norm(x, (6, 3, 5), eps=1e-4)
    torch.testing.assert_close(y, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gradients(y, (x,))[0], gradients(expected, (x,))[0])


def test_center_subtracts_the_mean(backend):
    x = double(4, 6, 5)
    y, _ = normalize(x, area="batch", operation="center")
    torch.testing.assert_close(y, x - x.mean((0, 2), keepdim=True))


@pytest.mark.parametrize("p", [1, inf])
def test_other_norms_divide_by_their_own_deviation(p, backend):
    x = double(4, 6, 5)
    y, statistics = normalize(x, area="batch", operation=operations.standardize(p), eps=1e-3)
    deviations = (x - x.mean((0, 2), keepdim=True)).transpose(0, 1).flatten(1)
    size = deviations.abs().mean(1) if p == 1 else deviations.abs().amax(1)
    # Hoffer et al. 2018: √(π/2), and C∞ for 20 samples
    constant = {1: (pi / 2) ** 0.5, inf: (1 + (pi * log(4)) ** 0.5) / (8 * log(20)) ** 0.5}[p]
    expected = deviations / ((constant * size).square() + 1e-3).sqrt()[:, None]
    torch.testing.assert_close(y.transpose(0, 1).flatten(1), expected)
    torch.testing.assert_close(statistics.cov.flatten(), (constant * size).square())


ONE_FEATURE = [*((method, None) for method in METHODS), ("newton", 0), ("newton", 1), ("polar", 1)]


@pytest.mark.parametrize(("method", "steps"), ONE_FEATURE, ids=lambda value: str(value))
@pytest.mark.parametrize("group_size", [1, 4], ids=["groups of 1", "a last group of 1"])
def test_a_group_of_one_channel_is_batch_norm(method, steps, group_size, backend):
    x = correlated(4, 5, 6)
    operation = operations.whiten(method, steps)
    y, _ = normalize(x, area=areas.batch(group_size), operation=operation)
    expected = F.batch_norm(x, None, None, training=True)
    last = slice(None) if group_size == 1 else slice(4, 5)
    torch.testing.assert_close(y[:, last], expected[:, last], rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(
        gradients(y[:, last], (x,))[0][:, last],
        gradients(expected[:, last], (x,))[0][:, last],
        rtol=1e-8,
        atol=1e-9,
    )


# Whitening, by dense code


def plain_problems(area: Area, x: Tensor) -> list[tuple[tuple, Tensor]]:
    """The (d, m) matrices of an (N, C, S) input, with the index of what each was cut from: groups
    of full size first, then the shorter last ones.
    """
    n, c, _ = x.shape
    if area.name == "group":
        k = area.num_groups or 1
        return [((i,), x[i].reshape(k, -1)) for i in range(n)]
    g = area.group_size or c
    cuts = [slice(start, min(start + g, c)) for start in range(0, c, g)]
    if area.name == "instance":
        full, rest = cuts[: c // g], cuts[c // g :]
        places = [(i, cut) for part in (full, rest) for i in range(n) for cut in part]
        return [(place, x[place]) for place in places]
    return [((slice(None), cut), x[:, cut].transpose(0, 1).flatten(1)) for cut in cuts]


def plain_whiten(problem: Tensor, method: str, eps: float) -> Tensor:
    """W(x − μ) of one (d, m) matrix by torch.linalg alone."""
    centred = problem - problem.mean(-1, keepdim=True)
    sigma = centred @ centred.mT / problem.shape[-1] + eps * torch.eye(len(problem)).double()
    if method == "cholesky":
        return torch.linalg.solve_triangular(torch.linalg.cholesky(sigma), centred, upper=False)
    if method == "newton":  # IterNorm Eq. 3–5
        trace, p = torch.trace(sigma), torch.eye(len(problem)).double()
        for _ in range(5):
            p = 0.5 * (3 * p - p @ p @ p @ sigma / trace)
        return p @ centred / trace.sqrt()
    values, vectors = torch.linalg.eigh(sigma)
    vectors = vectors * vectors[:1].sign()
    pca = (vectors / values.sqrt()).flip(-1).mT
    return pca @ centred if method == "pca" else (vectors / values.sqrt()) @ vectors.mT @ centred


WHITENING = {
    "batch, all channels": areas.batch(),
    "batch, groups of 3 and a last of 2": areas.batch(3),
    "instance, groups of 3 and a last of 2": areas.instance(3),
    "group": areas.group(4),
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("area", WHITENING.values(), ids=WHITENING.keys())
def test_whitening_is_that_of_every_problem_by_itself(area, method, backend):
    x = correlated(3, 8, 4, 5)
    y, statistics = normalize(x, area=area, operation=operations.whiten(method), eps=1e-3)
    expected = torch.empty_like(x.flatten(2))
    for b, (index, problem) in enumerate(plain_problems(area, x.flatten(2))):
        d = len(problem)
        white = plain_whiten(problem, method, 1e-3)
        expected[index] = (
            white.view(d, len(x), -1).transpose(0, 1)
            if area.name == "batch"
            else white.reshape_as(expected[index])
        )
        torch.testing.assert_close(statistics.mean[b, :d], problem.mean(-1))
        torch.testing.assert_close(statistics.cov[b, :d, :d], torch.cov(problem, correction=0))
    assert statistics.count == problem.shape[-1]
    torch.testing.assert_close(y, expected.view_as(x), rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(
        gradients(y, (x,))[0], gradients(expected.view_as(x), (x,))[0], rtol=1e-6, atol=1e-8
    )


TOLERANCE = {torch.float32: 2e-3, torch.float64: 1e-8}


@pytest.mark.parametrize("method", ["zca", "polar", "cholesky", "pca"])
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_whitened_output_is_white(method, dtype, backend):
    """Condition 1e4 in two groups of 32 channels, mean 3."""
    white = torch.randn(400, 64, dtype=torch.float64)
    mix = torch.linalg.qr(torch.randn(2, 32, 32, dtype=torch.float64)).Q
    mix = mix * torch.logspace(0, -2, 32, dtype=torch.float64)
    x = (torch.block_diag(*mix) @ white.mT).mT.to(dtype) + 3
    y, _ = normalize(x, area=areas.batch(32), operation=operations.whiten(method), eps=0.0)
    for group in y.double().split(32, dim=1):
        error = torch.cov(group.mT, correction=0) - torch.eye(32, dtype=torch.float64)
        assert error.norm() / 32**0.5 < TOLERANCE[dtype]


def test_iter_norm_and_dbn_are_compositions():
    x, weight, bias = correlated(8, 5, 3), double(5), double(5)
    affine = Affine(weight, bias)
    y, statistics = iter_norm(x, group_size=2, num_iters=3, eps=1e-2, weight=weight, bias=bias)
    operation = operations.whiten("newton", 3)
    expected, same = normalize(
        x, area=areas.batch(2), operation=operation, recovery=affine, eps=1e-2
    )
    assert torch.equal(y, expected) and torch.equal(statistics.cov, same.cov)
    for method, steps in (("zca", None), ("cholesky", None), ("polar", 3)):
        y, _ = dbn(x, group_size=2, method=method, num_iters=steps, weight=weight, bias=bias)
        operation = operations.whiten(method, steps)
        expected, _ = normalize(x, area=areas.batch(2), operation=operation, recovery=affine)
        assert torch.equal(y, expected)


# Finite differences: every operation × area that has it


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
    ("area", "operation", "shape"), COMPOSITIONS.values(), ids=COMPOSITIONS.keys()
)
def test_gradcheck(area, operation, shape, backend):
    if backend == "torch" and not operation.is_quadratic:
        pytest.skip("the explicit path leaves this operation to the reference")
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
    full = gradients(_affine_whiten(x, weight, bias), (x, weight, bias))
    for kept in range(3):
        inputs = [t.detach().requires_grad_(i == kept) for i, t in enumerate((x, weight, bias))]
        (got,) = gradients(_affine_whiten(*inputs), (inputs[kept],))
        torch.testing.assert_close(got, full[kept])


def _affine_whiten(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return normalize(x, area=areas.batch(2), operation="whiten", recovery=Affine(weight, bias))[0]


# Given statistics, dtypes, formats


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("area", WHITENING.values(), ids=WHITENING.keys())
def test_its_own_statistics_given_back_give_the_same_output(area, method, backend):
    x = correlated(3, 8, 4, 5).detach()
    operation = operations.whiten(method)
    y, statistics = normalize(x, area=area, operation=operation)
    again, same = normalize(x, area=area, operation=operation, statistics=statistics)
    torch.testing.assert_close(again, y, rtol=1e-9, atol=1e-9)
    assert torch.equal(same.cov, statistics.cov)


def test_given_statistics_make_a_fixed_map(backend):
    """As in eval: one row does not depend on the others, and the gradient is the map's own."""
    x = correlated(6, 3)
    mean, cov = torch.zeros(1, 3).double(), 4 * torch.eye(3).double().unsqueeze(0)
    y, _ = normalize(
        x,
        area="batch",
        operation=operations.whiten("zca"),
        statistics=Statistics(100, mean, cov),
        eps=0.0,
    )
    torch.testing.assert_close(y, x / 2)
    torch.testing.assert_close(torch.autograd.grad(y, x, torch.ones_like(y))[0], 0 * x + 0.5)


def test_given_statistics_accept_a_single_value():
    statistics = Statistics(100, torch.zeros(1, 3), torch.eye(3).unsqueeze(0))
    y, _ = normalize(
        torch.ones(1, 3), area="batch", operation="whiten", statistics=statistics, eps=0.0
    )
    assert y.shape == (1, 3)


@pytest.mark.parametrize("method", METHODS)
def test_apply_transform_is_what_normalize_did(method):
    """The eval map: W and μ given, with a remainder group and a recovery."""
    x, affine = correlated(5, 7, 3).detach(), Affine(double(7).detach(), double(7).detach())
    area, operation = areas.batch(3), operations.whiten(method)
    y, statistics = normalize(x, area=area, operation=operation, recovery=affine)
    w = torch.eye(3, dtype=torch.float64).repeat(3, 1, 1)
    w[:2] = operation.transform(statistics.cov[:2], 1e-5)
    w[2, :1, :1] = operation.transform(statistics.cov[2:, :1, :1], 1e-5)[0]
    again = apply_transform(x, w, statistics.mean, affine, area)
    torch.testing.assert_close(again, y, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("operation", ["standardize", "whiten"])
def test_output_has_the_dtype_of_the_input_and_statistics_their_own(dtype, operation, backend):
    x = torch.randn(8, 4, 5, 5).to(dtype)
    y, statistics = normalize(x, area="batch", operation=operation)
    assert y.dtype == dtype
    working = torch.float64 if dtype == torch.float64 else torch.float32
    assert statistics.mean.dtype == statistics.cov.dtype == working


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast_touches_neither_statistics_nor_transform(dtype, backend):
    x = torch.randn(8, 4, 5, 5)
    expected, statistics = normalize(x, area="batch", operation="whiten")
    with torch.autocast("cpu", dtype=dtype):
        y, same = normalize(x, area="batch", operation="whiten")
    assert torch.equal(y, expected) and torch.equal(same.cov, statistics.cov)


@pytest.mark.parametrize("operation", ["standardize", "whiten", "center"])
def test_memory_format_is_kept(operation, backend):
    x = torch.randn(4, 6, 5, 3)
    expected, _ = normalize(x, area="batch", operation=operation)
    assert expected.is_contiguous()
    last = x.contiguous(memory_format=torch.channels_last)
    y, _ = normalize(last, area="batch", operation=operation)
    assert y.is_contiguous(memory_format=torch.channels_last) and not y.is_contiguous()
    torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-5)
    video = torch.randn(2, 6, 3, 4, 5).contiguous(memory_format=torch.channels_last_3d)
    y, _ = normalize(video, area="batch", operation=operation)
    assert y.is_contiguous(memory_format=torch.channels_last_3d) and not y.is_contiguous()


@pytest.mark.parametrize("area", [areas.batch(2), areas.instance(2), areas.layer()], ids=repr)
def test_an_empty_batch_stays_empty(area, backend):
    operation = "whiten" if area.whitens else "standardize"
    x = torch.randn(0, 6, 5, requires_grad=True)
    y, _ = normalize(x, area=area, operation=operation)
    assert y.shape == (0, 6, 5)
    (gradient,) = torch.autograd.grad(y, x, torch.randn_like(y))
    assert gradient.shape == x.shape


@pytest.mark.parametrize("act", ["relu", "silu", "identity", None])
def test_act_and_residual_follow_the_recovery(act, backend):
    x, weight, bias, residual = correlated(4, 3, 4), double(3), double(3), double(4, 3, 4)
    plain = _affine_whiten(x, weight, bias) + residual
    expected = {"relu": F.relu, "silu": F.silu}.get(act or "", lambda y: y)(plain)
    y, _ = normalize(
        x,
        area=areas.batch(2),
        operation="whiten",
        recovery=Affine(weight, bias),
        act=act,
        residual=residual,
    )
    torch.testing.assert_close(y, expected)
    inputs = (x, weight, bias, residual)
    for got, want in zip(gradients(y, inputs), gradients(expected, inputs), strict=True):
        torch.testing.assert_close(got, want)


X = torch.randn(4, 6, 3)
WRONG = {
    "rank 1": (ValueError, r"at least 2 dimensions; got shape \(4,\)", {"x": torch.randn(4)}),
    "integers": (TypeError, r"got torch\.int64", {"x": torch.ones(4, 6, dtype=torch.int64)}),
    "no such area": (ValueError, "area must be one of", {"area": "bach"}),
    "no such operation": (ValueError, "operation must be one of", {"operation": "whitening"}),
    "layer has no features": (
        ValueError,
        "no features to whiten",
        {"area": "layer", "operation": "whiten"},
    ),
    "batch_group does not whiten": (
        ValueError,
        "no features to whiten",
        {"area": areas.batch_group(2), "operation": "whiten"},
    ),
    "one value": (ValueError, "more than one value", {"x": torch.randn(1, 6)}),
    "one value an instance": (
        ValueError,
        "more than one value",
        {"x": torch.randn(4, 6, 1, 1), "area": "instance"},
    ),
    "residual of another shape": (
        ValueError,
        r"residual must have the input's shape",
        {"residual": torch.randn(4, 6)},
    ),
    "groups that do not divide": (
        ValueError,
        "num_groups=4 does not divide num_features=6",
        {"area": areas.group(4)},
    ),
    "statistics of another area": (
        ValueError,
        "statistics do not fit",
        {
            "operation": "whiten",
            "statistics": Statistics(8, torch.zeros(1, 2), torch.zeros(1, 2, 2)),
        },
    ),
    "statistics of more groups": (
        ValueError,
        "statistics do not fit",
        {
            "operation": "whiten",
            "statistics": Statistics(8, torch.zeros(2, 7), torch.zeros(2, 7, 7)),
        },
    ),
    "a coloring of other groups": (
        ValueError,
        r"color must have shape \(1, 6, 6\).*got \(2, 3, 3\)",
        {"operation": "whiten", "recovery": Coloring(torch.zeros(2, 3, 3), None)},
    ),
    "no channels": (ValueError, "at least one channel", {"x": torch.randn(4, 0, 3)}),
    "eps that is no number": (ValueError, "eps must be a number ≥ 0; got 'a'", {"eps": "a"}),
    "no process group": (
        ValueError,
        "process_group must be a torch",
        {"process_group": object()},
    ),
}


@pytest.mark.parametrize(("error", "message", "given"), WRONG.values(), ids=WRONG.keys())
def test_wrong_calls_are_explained(error, message, given):
    call = {"x": X, "area": "batch", "operation": "standardize"} | given
    with pytest.raises(error, match=message):
        normalize(call.pop("x"), **call)


def test_statistics_of_another_dtype_are_promoted():
    x = torch.randn(8, 6, dtype=torch.float64)
    _, statistics = normalize(x, area="batch", operation="whiten")
    narrow = Statistics(8, statistics.mean.float(), statistics.cov.float())
    expected, _ = normalize(x, area="batch", operation="whiten", statistics=statistics)
    found, _ = normalize(x, area="batch", operation="whiten", statistics=narrow)
    assert found.dtype == torch.float64
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_one_value_may_be_scaled():
    """Without centering one value is enough."""
    y, _ = normalize(torch.full((1, 3), 2.0), area="batch", operation="scale", eps=0.0)
    torch.testing.assert_close(y, torch.ones(1, 3))
