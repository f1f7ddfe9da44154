"""What the explicit path saves for its backward, and the chunks in which it works."""

from __future__ import annotations

from unittest.mock import patch

import pytest
import torch
from torch import Tensor

import isonorm
from isonorm import area as areas
from isonorm import operation as operations
from isonorm.functional import normalize
from isonorm.kernels import layouts, tiles
from isonorm.roots import METHODS
from tests.kernels.paths import (
    REPRESENTATIVE,
    C,
    assert_paths_agree,
    assert_same,
    channels_last,
    contiguous,
    correlated,
    passes,
)

pytestmark = pytest.mark.usefixtures("poisoned_memory")


@pytest.mark.usefixtures("tiles_for_products")
@pytest.mark.parametrize("budget", [1, 200, 400], ids=lambda budget: f"{budget} numbers a chunk")
@pytest.mark.parametrize("rows", [True, False], ids=["by row", "gathered"])
@pytest.mark.parametrize("layout", [contiguous, channels_last], ids=lambda layout: layout.__name__)
@pytest.mark.parametrize(("area", "operation"), REPRESENTATIVE.values(), ids=REPRESENTATIVE.keys())
def test_chunks_merge_to_the_whole(area, operation, layout, rows, budget, monkeypatch):
    """Seven examples: one by one, in uneven and in larger chunks."""
    monkeypatch.setattr(layouts, "MIN_ROW_LENGTH", 1 if rows else 1000)
    monkeypatch.setattr(layouts, "MOST_TO_COPY", 0 if rows else 1000)  # of channels_last
    x = layout(correlated(7, C, 2, 3))
    whole = passes("torch", x, area, operation, [torch.ones(C), torch.ones(C)])
    monkeypatch.setitem(tiles.CHUNK_NUMEL, "cpu", budget)
    assert tiles.chunk_length(x.flatten(2).unsqueeze(1).shape, x.device) < len(x)
    chunked = passes("torch", x, area, operation, [torch.ones(C), torch.ones(C)])
    assert_same(chunked, whole, 1e-12)
    assert_paths_agree(x, area, operation)


@pytest.mark.parametrize("path", ["plain", "native"])
def test_nothing_is_computed_for_input_that_wants_no_gradient(path, monkeypatch):
    def refuse(*args):
        raise AssertionError("dx was computed")

    layer, x, dy = isonorm.IterNorm(4), torch.randn(6, 4, 5), torch.randn(6, 4, 5)
    wanted = x.clone().requires_grad_()
    parameters = (layer.weight, layer.bias)
    with isonorm.backend("torch" if path == "plain" else "native"):
        *expected, dx = torch.autograd.grad(layer(wanted), (*parameters, wanted), dy)
        assert dx.abs().max() > 0
        monkeypatch.setattr(f"isonorm.kernels.{path}.backward_apply", refuse)
        found = torch.autograd.grad(layer(x), parameters, dy)
        assert all(map(torch.equal, found, expected))
        with pytest.raises(AssertionError, match="dx"):
            layer(wanted).backward(dy)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_chunks_do_not_cancel_far_from_zero(dtype, monkeypatch):
    """Mean 1e4, deviation 1: the mean is rounded, by 1e4 · 2⁻²⁴, but nothing is about the rounded
    one, in none of three runs of chunks.
    """
    monkeypatch.setitem(tiles.CHUNK_NUMEL, "cpu", 100)
    x = (correlated(40, 4, 5) + 1e4).to(dtype)
    with isonorm.backend("torch"):
        _, statistics = normalize(x, area="batch", operation="whiten")
    expected = torch.cov(x.double().transpose(0, 1).flatten(1), correction=0)
    error = (statistics.cov[0] - expected).abs().amax() / expected.abs().amax()
    assert error < {torch.float32: 2e-6, torch.float64: 1e-14}[dtype]


@pytest.mark.parametrize("rows", [True, False], ids=["by row", "gathered"])
@pytest.mark.parametrize("layout", [contiguous, channels_last], ids=lambda layout: layout.__name__)
def test_a_first_chunk_unlike_the_others_costs_few_bits(layout, rows, monkeypatch):
    """Sums are about its mean, those of 8 chunks: with all 40 the error would be 50 to 120 eps."""
    monkeypatch.setattr(layouts, "MIN_ROW_LENGTH", 1 if rows else 1000)
    monkeypatch.setitem(tiles.CHUNK_NUMEL, "cpu", 1)
    x = layout(correlated(40, 4, 2, 3).float())
    x[0] += 1000
    with isonorm.backend("torch"):
        _, statistics = normalize(x, area="batch", operation="whiten")
    expected = torch.cov(x.double().transpose(0, 1).flatten(1), correction=0)
    error = (statistics.cov[0] - expected).abs().amax() / expected.abs().amax()
    assert error < 30 * torch.finfo(torch.float32).eps


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


@pytest.mark.parametrize(("threads", "examples"), [(1, 5), (2, 4), (3, 3), (8, 5)])
def test_threads_have_as_many_examples_of_a_chunk_each(threads, examples):
    """Unless there are more threads than examples."""
    with patch("torch.get_num_threads", lambda: threads):
        assert tiles.chunk_length((32, 1, 64, 56 * 56), torch.device("cpu")) == examples


def test_chunks_of_short_rows_have_half_as_many_numbers():
    long, short = (64, 1, 64, tiles.MIN_LONG_ROW), (64, 1, 128, tiles.MIN_LONG_ROW // 2)
    with patch("torch.get_num_threads", lambda: 1):
        assert [tiles.chunk_length(s, torch.device("cpu")) for s in (long, short)] == [32, 16]
    assert tiles.chunk_length(short, torch.device("meta")) == 64
