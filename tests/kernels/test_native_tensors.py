"""What native code is handed: strides, memory that is not there, and tensors that wrap others."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_map

import isonorm
from isonorm import area as areas
from isonorm import operation as operations
from isonorm.kernels.native import library
from tests.kernels.fast_path_checks import check_negated
from tests.kernels.paths import needs_native_code

pytestmark = [needs_native_code, pytest.mark.usefixtures("poisoned_memory")]

NEWTON = operations.whiten("newton")


def test_numbers_kept_as_their_negatives():
    with isonorm.backend("native"):
        check_negated("cpu")


def test_an_output_whose_features_lie_apart_is_written_where_they_are():
    """By columns, as x lies, to rows."""
    x = torch.randn(2, 1, 5, 7).transpose(2, 3).contiguous().transpose(2, 3)
    run = library.Pass(areas.batch(5), x)
    mean, cov, rest = run.moments()
    out = torch.full((2, 1, 5, 7), torch.nan)
    run.apply(out, mean, rest, cov, mean)
    want = cov @ (x - mean[:, :, None]) + mean[:, :, None]
    torch.testing.assert_close(out, want, rtol=1e-5, atol=1e-5)


class Wrapped(Tensor):
    """A tensor around another, which has the numbers."""

    @staticmethod
    def __new__(cls, inner: Tensor):
        return Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner: Tensor) -> None:
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        def unwrapped(value):
            return value.inner if isinstance(value, cls) else value

        return func(*tree_map(unwrapped, args), **tree_map(unwrapped, kwargs or {}))


@pytest.mark.parametrize("which", ["weight", "bias", "dy"])
def test_tensors_that_wrap_others_are_computed_with(which):
    x, dy = torch.randn(8, 6, 4, requires_grad=True), torch.randn(8, 6, 4)
    given = {"weight": torch.rand(6), "bias": torch.randn(6)}

    def step(given, dy) -> list[Tensor]:
        y, _ = isonorm.functional.iter_norm(x, **given)
        return [y, *torch.autograd.grad(y, x, dy)]

    want = step(given, dy)
    if which == "dy":
        dy = Wrapped(dy)
    else:
        given[which] = Wrapped(given[which])
    for g, w in zip(step(given, dy), want, strict=True):
        torch.testing.assert_close(g, w)


def test_tensors_that_wrap_others_are_refused_where_native_code_is_insisted_on():
    weight = Wrapped(torch.rand(6))
    with (
        isonorm.backend("native"),
        pytest.raises(RuntimeError, match="'native' was asked for, but a tensor besides the input"),
    ):
        isonorm.functional.iter_norm(torch.randn(8, 6, 4), group_size=4, weight=weight)


def test_autograds_zeros_which_have_no_memory_are_zeros():
    x = torch.randn(8, 6, 4, requires_grad=True)
    zeros = torch._efficientzerotensor(x.shape)
    y, _ = isonorm.functional.iter_norm(x, bias=torch._efficientzerotensor(6))
    (dx,) = torch.autograd.grad(y, x, zeros)
    assert y.isfinite().all() and not dx.any()


def test_freed_memory_is_not_read():
    freed = torch.randn(8, 6, 4)
    leaf = torch.randn(8, 6, 4, requires_grad=True)
    saved = 1 * leaf
    y, _ = isonorm.functional.iter_norm(saved)
    for tensor in (freed, saved):
        tensor.untyped_storage().resize_(0)
    with pytest.raises(RuntimeError, match="was freed before"):
        isonorm.functional.iter_norm(freed)
    with pytest.raises(RuntimeError, match="was freed before"):
        torch.autograd.grad(y, leaf, torch.randn_like(y))


def test_wrong_operands_are_refused_before_they_reach_c():
    x = torch.randn(3, 1, 4, 5)
    run = library.Pass(areas.batch(4), x)
    mean, cov, rest = run.moments()
    for wrong in (mean[:, :3], mean.expand(2, 4), mean.double(), cov[:, :3], mean.to("meta")):
        with pytest.raises(ValueError, match=r"native code expected torch\.float32 of shape"):
            run.sums(torch.randn(3, 1, 4, 5), wrong, rest)
        with pytest.raises(ValueError, match=r"native code expected torch\.float32 of shape"):
            run.sums(torch.randn(3, 1, 4, 5), mean, wrong)
    for wrong in (torch.randn(3, 1, 4, 4), torch.randn(3, 1, 4, 5).double()):
        with pytest.raises(ValueError, match=r"of shape \(3, 1, 4, 5\)"):
            run.sums(wrong, mean, rest)
    w, memo = library.newton(cov, 3)
    for wrong in (memo[:1], memo.double()):
        with pytest.raises(ValueError, match=r"of shape \(2, 2, 1, 4, 4\)"):
            library.newton_backward(w, cov, w, wrong, 3)
    with pytest.raises(ValueError, match="groups of 129 channels"):
        library.Pass(areas.batch(129), torch.randn(3, 1, 129, 5))


def test_operands_may_have_strides_of_their_own():
    def strided(t: Tensor) -> Tensor:
        return t.transpose(0, -1).contiguous().transpose(0, -1)

    x = torch.randn(3, 2, 4, 5)
    run = library.Pass(areas.batch(4), x)
    (mean, rest), a, out = torch.randn(2, 2, 4), torch.randn(2, 4, 4), torch.empty_like(x)
    run.apply(out, strided(mean), strided(rest), strided(a), strided(2 * mean))
    want = a @ (x - (mean + rest)[:, :, None]) + 2 * mean[:, :, None]
    torch.testing.assert_close(out, want, rtol=1e-5, atol=1e-5)
    sigma = torch.cov(torch.randn(4, 90)) * torch.rand(3, 1, 1) + torch.eye(4)
    dw = torch.randn(3, 4, 4)
    want_w, memo = library.newton(sigma, 3)
    w, _ = library.newton(strided(sigma), 3)
    assert torch.equal(w, want_w)
    want = library.newton_backward(dw, sigma, w, memo, 3)
    given = [strided(t) for t in (dw, sigma, w)]
    assert torch.equal(library.newton_backward(*given, memo, 3), want)


def test_a_gradient_whose_memory_was_freed_is_not_read():
    x = torch.randn(8, 1, 6, 4)
    run, dy = library.Pass(areas.batch(6), x), torch.randn_like(x)
    mean, _, rest = run.moments()
    dy.untyped_storage().resize_(0)
    with pytest.raises(RuntimeError, match="was freed before"):
        run.sums(dy, mean, rest)
