"""Dtypes, autocast, memory formats, and batches with nothing in them."""

from __future__ import annotations

import pytest
import torch

from isonorm import area as areas
from isonorm.functional import normalize


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
