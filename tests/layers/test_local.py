"""Normalization over regions and windows, beside loops over them."""

from __future__ import annotations

import copy
import io
from itertools import product

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import isonorm
from isonorm import LocalContextNorm, RegionNorm

WIDE = {"dtype": torch.float64}


def randomized(layer):
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return layer


def standardized(values: Tensor, eps: float) -> Tensor:
    return (values - values.mean()) / (values.var(correction=0) + eps).sqrt()


def by_region(layer: RegionNorm, x: Tensor, regions: Tensor) -> Tensor:
    columns = torch.zeros_like(x)
    for n, c, r in product(range(x.shape[0]), range(x.shape[1]), range(layer.num_regions)):
        there = regions[n] == r
        if there.any():
            values = standardized(x[n, c][there], layer.eps)
            if layer.weight is not None:
                values = values * layer.weight[r, c] + layer.bias[r, c]
            columns = columns.index_put(
                (torch.tensor(n), torch.tensor(c), *there.nonzero(as_tuple=True)), values
            )
    return columns


def by_window(layer: LocalContextNorm, x: Tensor, sizes: tuple[int, ...]) -> Tensor:
    y, c = torch.zeros_like(x), layer.group_size
    for n, k in product(range(x.shape[0]), range(layer.num_features // layer.group_size)):
        channels = slice(k * c, (k + 1) * c)
        for place in product(*map(range, x.shape[2:])):
            around = tuple(
                slice(max(0, i - size // 2), i + size // 2 + 1)
                for i, size in zip(place, sizes, strict=True)
            )
            values = x[(n, channels, *around)]
            deviation = x[(n, channels, *place)] - values.mean()
            y[(n, channels, *place)] = deviation / (values.var(correction=0) + layer.eps).sqrt()
    shape = (-1, *(1,) * (x.dim() - 2))
    return y if layer.weight is None else y * layer.weight.view(shape) + layer.bias.view(shape)


def gradients(y: Tensor, inputs, cotangent: Tensor):
    return torch.autograd.grad(y, inputs, cotangent)


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("shape", [(3, 4, 6, 5), (2, 4, 11), (2, 4, 2, 3, 4)], ids=str)
def test_regions_are_standardized_one_by_one(shape, affine):
    layer = randomized(RegionNorm(4, 3, affine=affine, **WIDE))
    x = (2 * torch.randn(shape, **WIDE) + 1).requires_grad_()
    regions = torch.randint(3, (shape[0], *shape[2:]))
    regions[0][regions[0] == 1] = 2  # one that is not there
    want = by_region(layer, x, regions)
    cotangent, inputs = torch.randn_like(want), [x, *layer.parameters()]
    found = layer(x, regions)
    torch.testing.assert_close(found, want)
    torch.testing.assert_close(
        gradients(found, inputs, cotangent), gradients(want, inputs, cotangent)
    )


def test_one_region_is_an_instance():
    x = torch.randn(3, 4, 6, 5)
    found = RegionNorm(4, 1)(x, torch.zeros(3, 6, 5, dtype=torch.long))
    torch.testing.assert_close(found, F.instance_norm(x))


@pytest.mark.parametrize(
    ("shape", "window"),
    [((2, 6, 5, 7), 3), ((2, 6, 5, 7), (1, 5)), ((2, 6, 9), 5), ((1, 6, 3, 4, 2), 3)],
    ids=str,
)
def test_windows_are_standardized_one_by_one(shape, window):
    layer = randomized(LocalContextNorm(6, window=window, group_size=2, **WIDE))
    x = (2 * torch.randn(shape, **WIDE) + 1).requires_grad_()
    sizes = (window,) * (len(shape) - 2) if isinstance(window, int) else window
    torch.testing.assert_close(layer(x), by_window(layer, x, sizes))
    layer.eps = 0.1  # of windows of few numbers
    assert torch.autograd.gradcheck(layer, (x,))


def test_a_window_over_all_is_group_normalization():
    x = torch.randn(3, 6, 5, 7, requires_grad=True)
    found, want = LocalContextNorm(6, group_size=2)(x), F.group_norm(x, 3)
    torch.testing.assert_close(found, want, rtol=1e-5, atol=1e-5)
    cotangent = torch.randn_like(want)
    torch.testing.assert_close(
        gradients(found, x, cotangent), gradients(want, x, cotangent), rtol=1e-4, atol=1e-5
    )


LAYERS = {
    "region": (lambda **o: RegionNorm(6, 2, **o), (torch.randint(2, (3, 8, 9)),)),
    "window": (lambda **o: LocalContextNorm(6, window=3, group_size=3, **o), ()),
}
EACH = pytest.mark.parametrize(("make", "given"), LAYERS.values(), ids=LAYERS)


@EACH
def test_a_mean_of_ten_thousand_costs_no_accuracy(make, given):
    x = torch.randn(3, 6, 8, 9)
    found, want = make()(x + 1e4, *given), make(**WIDE)((x + 1e4).double(), *given)
    torch.testing.assert_close(found.double(), want, rtol=1e-4, atol=1e-4)


@EACH
def test_formats_dtypes_and_activations(make, given):
    layer, x = randomized(make()), torch.randn(3, 6, 8, 9)
    want = layer(x, *given)
    last = x.to(memory_format=torch.channels_last)
    assert layer(last, *given).is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(layer(last, *given), want)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(layer(x, *given), want)
    half = copy.deepcopy(layer).bfloat16()(x.bfloat16(), *given)
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.float(), want, rtol=0.05, atol=0.05)
    layer.act = "silu"
    torch.testing.assert_close(layer(x, *given), F.silu(want))


@EACH
@pytest.mark.parametrize("value", [0.0, 3.0, 1e6])
def test_what_is_constant_is_finite(make, given, value):
    x = torch.full((3, 6, 8, 9), value, requires_grad=True)
    y = make()(x, *given)
    (dx,) = gradients(y, x, torch.randn_like(y))
    assert y.isfinite().all() and dx.isfinite().all()


@EACH
def test_compiled_exported_and_saved(make, given):
    layer, x = randomized(make()), torch.randn(3, 6, 8, 9)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x, *given), layer(x, *given))
    program = torch.export.export(layer.eval(), (x, *given))
    torch.testing.assert_close(program.module()(x, *given), layer(x, *given))
    file, other = io.BytesIO(), make()
    torch.save(layer.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file))
    assert torch.equal(other(x, *given), layer(x, *given)) and repr(other) == repr(layer)


WRONG = {
    "even window": (lambda: LocalContextNorm(6, window=4), "window must be odd"),
    "groups": (lambda: LocalContextNorm(6, group_size=4), "does not divide num_features=6"),
    "no features": (lambda: RegionNorm(0), "num_features must be a positive integer; got 0"),
    "no regions": (lambda: RegionNorm(6, -1), "num_regions must be a positive integer"),
    "window of a word": (lambda: LocalContextNorm(6, window="a"), "window must be a positive"),
    "window of fractions": (lambda: LocalContextNorm(6, window=[3.5, 3]), "got 3.5"),
    "eps": (lambda: RegionNorm(6, eps=-1), "eps must be"),
    "act": (lambda: RegionNorm(6, act="tanh"), "act must be"),
    "channels": (lambda: LocalContextNorm(6)(torch.randn(2, 5, 4)), r"\(N, 6, \*\)"),
    "no positions": (lambda: LocalContextNorm(6)(torch.randn(2, 6)), "with positions"),
    "window of two": (
        lambda: LocalContextNorm(6, window=(3, 3))(torch.randn(2, 6, 4)),
        "as many spatial dimensions",
    ),
    "regions": (
        lambda: RegionNorm(6)(torch.randn(2, 6, 4), torch.zeros(2, 3).long()),
        r"integers of shape \(2, 4\).*got torch.int64 of shape \(2, 3\)",
    ),
    "regions of no integers": (
        lambda: RegionNorm(6)(torch.randn(2, 6, 4), torch.zeros(2, 4)),
        "got torch.float32",
    ),
}


@pytest.mark.parametrize(("build", "message"), WRONG.values(), ids=WRONG)
def test_what_cannot_be_meant_is_told_in_one_sentence(build, message):
    with pytest.raises(ValueError, match=message) as caught:
        build()
    assert "\n" not in str(caught.value) and str(caught.value).endswith(".")


def test_they_go_inside_a_modulation():
    """A window's statistics, recovered by attention."""
    norm = isonorm.recovery.Attentive(LocalContextNorm(6, window=3, affine=False))
    assert norm(torch.randn(2, 6, 5, 5)).shape == (2, 6, 5, 5)


@pytest.mark.parametrize("value", [1e6, torch.nan, torch.inf])
def test_a_region_is_nobody_elses_business(value):
    """Also far from the others, and where it is not finite."""
    x, regions = torch.randn(2, 6, 8, 8), torch.zeros(2, 8, 8, dtype=torch.long)
    regions[:, :4] = 1
    layer = RegionNorm(6)
    want = layer(x, regions)[:, :, 4:]
    x[:, :, :4] += value
    torch.testing.assert_close(layer(x, regions)[:, :, 4:], want, rtol=1e-5, atol=1e-5)


@EACH
def test_tracers_of_fx_see_one_call(make, given):
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = make()

        def forward(self, x, regions=None):
            return self.norm(x) if regions is None else self.norm(x, regions)

    model, x = Model(), torch.randn(3, 6, 8, 9)
    concrete = {} if given else {"regions": None}
    graph = torch.fx.symbolic_trace(model, concrete_args=concrete)
    inputs = (x, *given) if given else (x,)
    assert "norm" in [node.target for node in graph.graph.nodes]
    torch.testing.assert_close(graph(*inputs, *(() if given else (None,))), model(*inputs))
