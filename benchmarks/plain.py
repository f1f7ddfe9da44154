"""IterNorm as its paper states it, with autograd doing the rest: what the fast layer is judged by.

Huang et al., "Iterative Normalization: Beyond Standardization towards Efficient Whitening" (CVPR
2019), Algorithm 1, in its letters. Nothing is kept beyond it: no running estimates, which favours
this version when it is timed.

Index legend: d features, m samples.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn


def whiten(X: Tensor, T: int, eps: float) -> Tensor:
    """Algorithm 1 of a (d, m) matrix, or of several, (…, d, m)."""
    d, m = X.shape[-2:]
    I = torch.eye(d, dtype=X.dtype, device=X.device)
    mu = X.mean(-1, keepdim=True)  # line 4
    X_C = X - mu  # line 5
    Sigma = X_C @ X_C.mT / m + eps * I  # line 6
    tr = Sigma.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None]
    Sigma_N = Sigma / tr  # line 7, Eq. 4
    P = I  # line 8
    for _ in range(T):  # lines 9–11
        P = 0.5 * (3 * P - P @ P @ P @ Sigma_N)  # Eq. 3
    W = P / tr.sqrt()  # line 12, Eq. 5
    return W @ X_C  # line 13


def zca(X: Tensor, T: int, eps: float) -> Tensor:
    """The same with the exact Σ^(-1/2), by eigendecomposition, for lines 7–12: DBN.

    Its gradient divides by differences of eigenvalues, so it is a reference only in float64 and
    where m > d. T has no meaning here; the signature is ``whiten``'s.
    """
    d, m = X.shape[-2:]
    X_C = X - X.mean(-1, keepdim=True)
    Sigma = X_C @ X_C.mT / m + eps * torch.eye(d, dtype=X.dtype, device=X.device)
    Lambda, D = torch.linalg.eigh(Sigma)
    return D @ (Lambda.rsqrt()[..., None] * (D.mT @ X_C))


def unroll(x: Tensor) -> Tensor:
    """(N, C, *) as (C, m): every position of every example is a sample (Section 3.3)."""
    return x.transpose(0, 1).flatten(1)


def roll(X: Tensor, like: Tensor) -> Tensor:
    """(C, m) back as (N, C, *)."""
    n, c, *positions = like.shape
    return X.view(c, n, *positions).transpose(0, 1).contiguous()


def looped(X: Tensor, group_size: int, T: int, eps: float, whiten: Callable = whiten) -> Tensor:
    """Groups of channels one after the other; the last takes the rest."""
    return torch.cat([whiten(group, T, eps) for group in X.split(group_size)])


def batched(X: Tensor, group_size: int, T: int, eps: float, whiten: Callable = whiten) -> Tensor:
    """All groups at once, in batched products; a shorter last group apart."""
    full = X.shape[0] - X.shape[0] % group_size
    groups = whiten(X[:full].unflatten(0, (-1, group_size)), T, eps).flatten(0, 1)
    return groups if full == X.shape[0] else torch.cat([groups, whiten(X[full:], T, eps)])


class PlainIterNorm(nn.Module):
    """Algorithm 1 over groups of channels, and γ and β after it.

    ``over_groups`` is ``looped`` or ``batched``.
    """

    def __init__(
        self,
        num_features: int,
        group_size: int,
        over_groups: Callable,
        *,
        num_iters: int = 5,
        eps: float = 1e-5,
        whiten: Callable = whiten,
    ) -> None:
        super().__init__()
        self.group_size, self.num_iters, self.eps = group_size, num_iters, eps
        self.over_groups, self.whiten = over_groups, whiten
        self.weight = nn.Parameter(torch.ones(num_features))
        self.bias = nn.Parameter(torch.zeros(num_features))

    def forward(self, x: Tensor) -> Tensor:
        X_hat = self.over_groups(unroll(x), self.group_size, self.num_iters, self.eps, self.whiten)
        shape = (1, -1, *[1] * (x.dim() - 2))
        return roll(X_hat, x) * self.weight.view(shape) + self.bias.view(shape)
