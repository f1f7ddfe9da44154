"""Roots of symmetric positive semi-definite matrices: batched, differentiable twice, compilable.

They are those of the normalizations, ``roots``, for any (…, d, d) matrices. Only the symmetric part
of a matrix is used. Matrices are brought to scale 1 first, so that nothing over- or underflows on
the way. Eigenvalues below 4·u·√d·tr A/d, u the rounding unit of the dtype, are raised to it: they
are rounding errors. A matrix of zeros has a root and inverse roots of zeros. So no valid matrix
gives NaN, nor does its gradient.

>>> import torch
>>> x = torch.randn(8, 5, 100)
>>> W = inv_sqrt(x @ x.mT / 100)
>>> cov = (W @ x) @ (W @ x).mT / 100
>>> torch.allclose(cov, torch.eye(5).expand(8, 5, 5), atol=1e-4)
True
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .checks import DTYPES, check_tensor
from .roots import ZCA, Polar, power_roots
from .roots.recurrence import accurate, identity_like, trace
from .scalars import positive
from .statistics import no_autocast, working_dtype

__all__ = ["inv_root", "inv_sqrt", "polar", "sqrt"]

METHODS = ("auto", "eigen", "polynomial")


def inv_sqrt(A: Tensor, method: str = "auto") -> Tensor:
    """Return A^(-1/2) of (…, d, d) matrices.

    ``method``: "eigen", an eigendecomposition in float64; "polynomial", eight minimax steps of
    matrix products in float64, which never wait for a GPU, and stretch eigenvalues below 1e-6·‖A‖
    short of all the way; "auto", the first on a CPU and the second elsewhere. docs/hand.md has the
    errors by condition number.

    >>> inv_sqrt(torch.tensor([[4.0, 0.0], [0.0, 0.25]]))
    tensor([[0.5000, 0.0000],
            [0.0000, 2.0000]])
    """
    if method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}; got {method!r}.")
    _check_square(A)
    root: ZCA | Polar = ZCA() if method == "eigen" else Polar()
    if method == "auto":
        root = ZCA().on(A.device)
    return _on_scale_1(A, root, -0.5)


def sqrt(A: Tensor) -> Tensor:
    """Return A^(1/2) of (…, d, d) matrices, by an eigendecomposition in float64.

    >>> sqrt(torch.tensor([[4.0, 0.0], [0.0, 9.0]])).round(decimals=3)
    tensor([[2., 0.],
            [0., 3.]])
    """
    _check_square(A)
    return _on_scale_1(A, lambda a: power_roots(a, 2)[0], 0.5)


def inv_root(A: Tensor, p: int) -> Tensor:
    """Return A^(-1/p) of (…, d, d) matrices for a positive integer p, as second-order optimizers
    take it, by an eigendecomposition in float64.

    >>> inv_root(torch.tensor([[16.0, 0.0], [0.0, 1.0]]), p=4)
    tensor([[0.5000, 0.0000],
            [0.0000, 1.0000]])
    """
    p = positive("p", p)
    _check_square(A)
    return _on_scale_1(A, lambda a: power_roots(a, p)[1], -1 / p)


def polar(X: Tensor) -> tuple[Tensor, Tensor]:
    """Return U and P with X = U·P of (…, m, n) matrices: U the matrix nearest to X with orthonormal
    columns (rows where m < n), P symmetric positive semi-definite.

    They come from the smaller of XᵀX and XXᵀ in float64, so that U loses the square of X's
    condition number to float64 rounding. Directions in which X is zero are zero in U, too.

    >>> U, P = polar(torch.tensor([[0.0, -2.0], [3.0, 0.0]]))
    >>> U
    tensor([[ 0., -1.],
            [ 1.,  0.]])
    """
    _check_matrices("X", X)
    with no_autocast(X):
        x = X.to(working_dtype(X))
        size = x.detach().abs().amax((-2, -1), keepdim=True) if X.numel() else x.sum()
        scale = torch.where((size > 0) & size.isfinite(), size, torch.ones_like(size))
        wide = accurate(x) / scale
        is_wide = X.shape[-2] < X.shape[-1]
        w = inv_sqrt(wide @ wide.mT if is_wide else wide.mT @ wide, method="eigen")
        u = w @ wide if is_wide else wide @ w
        p = u.mT @ wide
        p = 0.5 * (p + p.mT)
        return u.to(X.dtype), (p * scale).to(X.dtype)


def _on_scale_1(A: Tensor, root: Callable[[Tensor], Tensor], power: float) -> Tensor:
    """Return f(A) = s^power·f(A/s) for a homogeneous f, with s = tr A/d. f being homogeneous, the
    derivative in s vanishes, and s counts as a constant.
    """
    if A.numel() == 0:
        return A.clone()
    with no_autocast(A):
        a = A.to(working_dtype(A)).reshape(-1, *A.shape[-2:])
        largest = a.detach().abs().amax((-2, -1), keepdim=True)
        is_zero = largest == 0
        # Twice: the trace of numbers near the largest of the dtype would overflow.
        unit = torch.where(is_zero, torch.ones_like(largest), largest)
        unit = unit * (trace(a.detach() / unit) / a.shape[-1]).clamp(min=torch.finfo(a.dtype).tiny)
        unit = torch.where(is_zero, torch.ones_like(unit), unit)
        scaled = a / unit
        safe = torch.where(is_zero, identity_like(a), 0.5 * (scaled + scaled.mT))
        found = torch.where(is_zero, torch.zeros_like(a), root(safe) * unit**power)
        return found.reshape(A.shape).to(A.dtype)


def _check_square(A: Tensor) -> None:
    _check_matrices("A", A)
    if A.shape[-1] != A.shape[-2]:
        raise ValueError(
            f"A must be square, symmetric matrices (…, d, d); got shape {tuple(A.shape)}."
        )


def _check_matrices(name: str, value: Tensor) -> None:
    check_tensor(name, value)
    if value.dim() < 2 or value.dtype not in DTYPES:
        raise ValueError(
            f"{name} must be floating-point matrices of 16 to 64 bits, with 2 dimensions or more; "
            f"got {value.dtype} of shape {tuple(value.shape)}."
        )
