"""Normalization in dense float64, written plainly: the oracle of the fuzzers of layers.

Problems are tables of places, W comes from eigenvalues, gradients from automatic differentiation.
Beside the exact result stands what rounding may make of it: the same, differentiated, with every
intermediate disturbed by about a unit in the last place of the precision that is tested.

Index legend: b problems, d features, m samples.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


def places(area, shape: tuple[int, int, int], together: bool) -> list[Tensor]:
    """Return the places of the problems of an (N, C, S) input as (b, d, m) tables of equal shape.

    ``together``: whether features are treated together, or each is a problem of its own.
    """
    n, channels, s = shape
    table = torch.arange(n * channels * s).view(shape)
    name, found = area.name, []
    if name in ("batch", "instance"):
        size = min(area.group_size or channels, channels)
        examples = [slice(None)] if name == "batch" else [slice(i, i + 1) for i in range(n)]
        for rows in examples:
            for start in range(0, channels, size):
                own = table[rows, start : start + size]
                found.append(own.transpose(0, 1).reshape(own.shape[1], -1))
    elif name in ("layer", "group"):
        found = [own.reshape(area.num_groups, -1) for own in table]
    elif name == "batch_group":
        count = area.num_groups
        own = table.view(n, count, channels // count, s).transpose(0, 1)
        found = [group.reshape(1, -1) for group in own]
    else:
        assert name == "position", name
        found = [own.reshape(1, -1) for own in table.transpose(1, 2).reshape(-1, channels)]
    shapes = dict.fromkeys(problem.shape for problem in found)
    tables = [torch.stack([p for p in found if p.shape == shape]) for shape in shapes]
    return tables if together else [t.reshape(-1, 1, t.shape[-1]) for t in tables]


class _Function(torch.autograd.Function):
    """f of a symmetric matrix, with eigenvectors U, from f(λ) and its divided differences."""

    @staticmethod
    def forward(ctx, sigma: Tensor, vectors: Tensor, values: Tensor, differences: Tensor) -> Tensor:
        ctx.save_for_backward(vectors, differences)
        return vectors @ torch.diag_embed(values) @ vectors.mT

    @staticmethod
    def backward(ctx, *grads: Tensor):
        vectors, differences = ctx.saved_tensors
        inner = vectors.mT @ (0.5 * (grads[0] + grads[0].mT)) @ vectors
        return vectors @ (differences * inner) @ vectors.mT, None, None, None


def inverse_root(sigma: Tensor, floor: float) -> Tensor:
    """Return Σ^(-1/2), eigenvalues not below ``floor`` times their mean."""
    values, vectors = torch.linalg.eigh(sigma.detach())
    root = values.maximum(floor * values.mean(-1, keepdim=True)).sqrt()
    ri, rj = root.unsqueeze(-1), root.unsqueeze(-2)
    return _Function.apply(sigma, vectors, 1 / root, -1 / (ri * rj * (ri + rj)))


def iterated(sigma_n: Tensor, steps: Iterable[tuple[float, float, float]]) -> Tensor:
    """Return P_T of steps Q = a + bZ + cZ², P ← PQ, Z ← ZQ², eigenvalue by eigenvalue; divided
    differences by their product rule, so that nothing cancels.
    """
    z, vectors = torch.linalg.eigh(sigma_n.detach())
    p, dz = torch.ones_like(z), torch.ones_like(z.unsqueeze(-1) * z.unsqueeze(-2))
    dp = torch.zeros_like(dz)

    def product(f, df, g, dg):
        return f * g, df * g.unsqueeze(-2) + f.unsqueeze(-1) * dg

    for a, b, c in steps:
        q, dq = product(z, dz, z, dz)
        q, dq = a + b * z + c * q, b * dz + c * dq
        p, dp = product(p, dp, q, dq)
        z, dz = product(*product(z, dz, q, dq), q, dq)
    return _Function.apply(sigma_n, vectors, p, dp)


@dataclass
class Rounding:
    """What disturbs intermediates: numbers of size ``unit`` from a generator; with 0, nothing."""

    unit: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        self.generator = torch.Generator().manual_seed(self.seed)

    def noise(self, like: Tensor) -> Tensor:
        return self.unit * torch.randn(like.shape, generator=self.generator, dtype=torch.float64)

    def relative(self, t: Tensor) -> Tensor:
        """Disturb every entry in proportion to itself."""
        return t * (1 + self.noise(t))

    def matrices(self, t: Tensor) -> Tensor:
        """Disturb (b, d, d) matrices in proportion to their norms, as products do, and their
        gradients.
        """
        if not self.unit:
            return t
        if t.requires_grad:
            t.register_hook(self._matrices)
        return self._matrices(t)

    def shifted(self, c: Tensor, mean: Tensor, eps: float) -> Tensor:
        """Disturb deviations as a mean that is rounded does, and their gradients in proportion."""
        if not self.unit:
            return c
        variance = c.detach().square().mean(-1, keepdim=True)
        ratio = mean.detach().abs() / (variance + eps).sqrt()

        def shift(grad: Tensor) -> Tensor:
            size = grad.abs().amax(-1, keepdim=True)
            return grad + ratio * size * self.noise(ratio)

        c = c + mean.detach() * self.noise(mean)
        if c.requires_grad:
            c.register_hook(shift)
        return c

    def _matrices(self, t: Tensor) -> Tensor:
        d = t.shape[-1]
        size = torch.linalg.matrix_norm(t.detach(), keepdim=True) / d**0.5
        noise = self.noise(t)
        return t + size * 0.5 * (noise + noise.mT)


class Dense(NamedTuple):
    """What a normalization gives, in float64."""

    y: Tensor
    means: list[Tensor]  # (b, d) for each table of places
    covs: list[Tensor]  # (b, d, d)


def transform(cov: Tensor, operation, eps: float, unit: float) -> Tensor:
    """Return W of covariances; ``unit`` is that of the precision that is tested."""
    d = cov.shape[-1]
    if not operation.scales:
        return torch.ones_like(cov)
    sigma = cov + eps * torch.eye(d, dtype=cov.dtype)
    if d == 1:
        return sigma.rsqrt()
    trace = sigma.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None]
    if operation.method == "newton":
        num_iters = 5 if operation.num_iters is None else operation.num_iters
        return iterated(sigma / trace, [(1.5, -0.5, 0.0)] * num_iters) / trace.sqrt()
    if operation.method == "polar":
        s = torch.linalg.matrix_norm(sigma, keepdim=True)
        return iterated(sigma / s, operation.root.steps) / s.sqrt()
    if operation.method == "cholesky":  # with the least shift of its ladder
        eye = torch.eye(d, dtype=cov.dtype)
        lower, failed = torch.linalg.cholesky_ex(sigma + unit * trace / d * eye)
        lower = torch.where(failed[..., None, None] == 0, lower, torch.nan)
        return torch.linalg.solve_triangular(lower, eye.expand_as(lower), upper=False)
    return inverse_root(sigma, 4 * unit * d**0.5)


def apply(
    x: Tensor,
    area,
    operation,
    running: list[tuple[Tensor, Tensor]],
    rounding: Rounding | None = None,
) -> Tensor:
    """Return W(x − μ) of a float64 (N, C, S) tensor for each area's (μ, W) that are given."""
    rounding = Rounding() if rounding is None else rounding
    flat, y = x.reshape(-1), torch.zeros(x.numel(), dtype=x.dtype)
    tables = places(area, x.shape, operation.method is not None)
    for table, (mean, w) in zip(tables, running, strict=True):
        c = rounding.relative(flat[table] - mean.unsqueeze(-1))
        made = rounding.relative(rounding.matrices(w)) @ c
        y = y.index_put((table.reshape(-1),), made.reshape(-1))
    return y.view(x.shape)


def normalize(
    x: Tensor, area, operation, eps: float, unit: float, rounding: Rounding | None = None
) -> Dense:
    """Normalize a float64 (N, C, S) tensor, with intermediates rounded if asked."""
    rounding = Rounding() if rounding is None else rounding
    together = operation.method is not None
    flat, y, means, covs = x.reshape(-1), torch.zeros(x.numel(), dtype=x.dtype), [], []
    for table in places(area, x.shape, together):
        t = flat[table]
        mean = t.mean(-1, keepdim=True) if operation.centers else torch.zeros_like(t[..., :1])
        c = t - mean
        if operation.centers:
            c = c - c.mean(-1, keepdim=True)  # what the rounding of the mean has left
        measured, mapped = (
            # a mean of the precision tested is subtracted, in different passes
            rounding.relative(c if together else rounding.shifted(c, mean, eps))
            for _ in range(2)
        )
        if operation.is_quadratic:
            cov = measured @ measured.mT / t.shape[-1]
        elif operation.scales:
            cov = operation.spread(measured, (-1,))
        else:
            cov = torch.ones_like(mean)
        cov = rounding.matrices(cov)
        w = rounding.matrices(transform(cov, operation, eps, unit))
        y = y.index_put((table.reshape(-1),), (rounding.relative(w) @ mapped).reshape(-1))
        size = c.detach().abs().mean(-1, keepdim=True)
        if not operation.is_quadratic:  # the mean is one sum of m numbers
            size = size + mean.detach().abs() / 8
        means.append((mean + size * rounding.noise(mean)).squeeze(-1))
        covs.append(cov)
    return Dense(y.view(x.shape), means, covs)
