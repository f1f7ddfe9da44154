"""Where products take numbers as they lie, and the mean's share is taken off afterwards."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import isonorm
from isonorm import area as areas
from isonorm import operation as operations
from isonorm.kernels import tiles
from isonorm.kernels.layouts import MIN_ROW_LENGTH
from isonorm.kernels.tiles import MOST_DEVIATIONS, Layout
from tests.kernels.paths import (
    C,
    assert_paths_agree,
    channels_last,
    contiguous,
    passes,
    transposed,
)

SHAPE = (6, C, MIN_ROW_LENGTH)
WHITEN = operations.whiten("newton")


@pytest.fixture(autouse=True)
def _small_inputs_are_asked(monkeypatch):
    monkeypatch.setattr(tiles, "FEWEST_TO_ASK", 1)


@pytest.fixture
def answers(monkeypatch) -> list[bool]:
    """What passes were told: whether they are spared centering."""
    told, ask = [], Layout.spares_centering

    def asked(self, mean: Tensor, cov: Tensor) -> bool:
        told.append(ask(self, mean, cov))
        return told[-1]

    monkeypatch.setattr(Layout, "spares_centering", asked)
    return told


def white(deviations: float, channel: int | slice = slice(None)) -> Tensor:
    """Unit variances exactly, and means of so many deviations in some channels."""
    x = torch.randn(SHAPE, dtype=torch.float64)
    x = (x - x.mean((0, 2), keepdim=True)) / x.std((0, 2), correction=0, keepdim=True)
    x[:, channel] += deviations
    return x


def test_means_near_zero_spare_the_passes_that_map_a_copy(answers):
    assert_paths_agree(white(0.99 * MOST_DEVIATIONS), areas.batch(4), WHITEN)
    assert answers and all(answers)


def test_one_channel_far_from_zero_has_all_centered(answers):
    assert_paths_agree(white(1.01 * MOST_DEVIATIONS, 1), areas.batch(4), WHITEN)
    assert answers and not any(answers)


@pytest.mark.parametrize(
    ("area", "layout"),
    [
        (areas.batch(4), contiguous),
        (areas.batch(4), channels_last),
        (areas.batch(1), contiguous),
        (areas.batch(1), channels_last),
        (areas.instance(4), contiguous),
    ],
    ids=lambda given: getattr(given, "__name__", repr(given)),
)
def test_where_tiles_are_views_nothing_is_centered_but_for_sums(area, layout, answers, monkeypatch):
    centered, make = [], Layout.centered_tile

    def noted(self, *given):
        centered.append(given)
        return make(self, *given)

    monkeypatch.setattr(Layout, "centered_tile", noted)
    with isonorm.backend("torch"):
        x = layout(white(1)).requires_grad_()
        y, _ = isonorm.functional.normalize(x, area=area, operation=WHITEN)
        torch.autograd.grad(y, x, torch.randn_like(y))
    assert answers == [True, True]
    assert len(centered) == 2  # moments, and the sums of the backward pass


@pytest.mark.parametrize(
    ("x", "group_size"),
    [
        pytest.param(white(0).bfloat16(), 4, id="another dtype"),
        pytest.param(white(0)[:, :, : MIN_ROW_LENGTH - 1], 4, id="gathered"),
        pytest.param(transposed(white(0)), C, id="batch innermost"),
    ],
)
def test_what_is_copied_in_any_case_is_centered(x, group_size, answers):
    passes("torch", x, areas.batch(group_size), WHITEN, [torch.ones(C), torch.zeros(C)])
    assert answers and not any(answers)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_mean_that_is_not_a_number_is_not_near_zero(value, answers):
    x = white(0)
    x[0, 0, 0] = value
    with isonorm.backend("torch"):
        y, _ = isonorm.functional.iter_norm(x, group_size=4)
    assert answers and not any(answers)
    assert y[:, :4].isnan().any() and y[:, 4:].isfinite().all()


@pytest.mark.parametrize("layout", [contiguous, channels_last], ids=lambda layout: layout.__name__)
def test_rounding_grows_with_the_mean_by_no_more_than_is_allowed(layout, monkeypatch):
    """In float32, against float64, at the farthest mean that spares centering: outputs and
    gradients lose two bits, give or take one. What is summed over samples, many of them and with
    gradients that have a mean, is centered always, and loses none.
    """
    x = torch.randn(96, C, 32, 32)
    x = layout(x / x.std((0, 2, 3), keepdim=True) + 0.99 * MOST_DEVIATIONS)
    weight, bias, dy = torch.rand(C) + 0.5, torch.randn(C), layout(1 + torch.randn_like(x))

    def found(x: Tensor, backend: str) -> dict[str, Tensor]:
        given = [t.to(x.dtype, copy=True).requires_grad_() for t in (x, weight, bias)]
        with isonorm.backend(backend):
            y, statistics = isonorm.functional.iter_norm(
                given[0], group_size=4, weight=given[1], bias=given[2]
            )
        grads = torch.autograd.grad(y, given, dy.to(x.dtype))
        values = (y, statistics.cov, *grads)
        return dict(zip(("y", "cov", "dx", "dweight", "dbias"), values, strict=True))

    exact = found(x.double(), "reference")

    def errors() -> dict[str, float]:
        return {
            name: ((value - exact[name]).norm() / exact[name].norm()).item()
            for name, value in found(x, "torch").items()
        }

    as_they_lie = errors()
    monkeypatch.setattr(tiles, "FEWEST_TO_ASK", x.numel() + 1)
    centered = errors()
    for name in ("cov", "dweight", "dbias"):
        assert as_they_lie[name] == centered[name]
    assert as_they_lie["y"] != centered["y"]
    for name in ("y", "dx"):
        assert as_they_lie[name] < 2 * MOST_DEVIATIONS * centered[name], name


@pytest.mark.parametrize("layout", [contiguous, channels_last], ids=lambda layout: layout.__name__)
def test_who_watches_is_asked_for_no_number(layout):
    """As fake tensors, which have none, and other devices, which would have to be waited for."""

    class Watching(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            called.append(func)
            return func(*args, **(kwargs or {}))

    called: list = []
    x = layout(white(0)).requires_grad_()
    with Watching():
        y, _ = isonorm.functional.iter_norm(x, group_size=4)
        torch.autograd.grad(y, x, torch.randn_like(y))
    assert called and torch.ops.aten._local_scalar_dense.default not in called


def test_a_tensor_without_values_is_centered():
    layer = isonorm.IterNorm(C, group_size=4, device="meta")
    assert layer(torch.randn(SHAPE, device="meta")).shape == SHAPE
