"""A whitening that is fitted once, in one pass over batches and ranks, and applied anywhere."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, isfinite
from typing import NamedTuple

import torch
from torch import Tensor, nn

from . import operation as operations
from .checks import DTYPES, check_device, check_dtype, check_options, check_tensor
from .operation import add_eps
from .roots.recurrence import trace
from .scalars import plain, positive
from .statistics import Statistics, measure, merge, no_autocast
from .synchronization import group_name, is_shared, reduce_across

#: Samples that are converted to float64 at a time.
CHUNK = 1 << 16


class Map(NamedTuple):
    """W and its inverse, in float64."""

    matrix: Tensor
    inverse: Tensor


class Whitener(nn.Module):
    """z = W(x − μ) with the mean and covariance of all samples seen, the last dimension's d
    features together.

    Args:
        num_features: d.
        method: "zca" (the least change of the data), "pca" (scikit-learn's ``PCA(whiten=True)``,
            each axis's first loading positive), "cholesky", another of ``operation.whiten``, or a
            registered root.
        shrinkage: s of (1 − s)Σ + sI, from 0 to 1.
        eps: ε of Σ + εI: soft ZCA.
        max_condition: raises small eigenvalues, so that Σ has at most this condition number.

    Σ is unbiased. Moments are float64, and stay so under ``.half()`` and ``.to(dtype)``. The first
    ``transform`` after an ``update`` computes W anew.

    >>> whitener = Whitener(6)
    >>> for batch in torch.randn(1000, 6).cumsum(1).split(100):
    ...     whitener = whitener.update(batch)
    >>> whitener
    Whitener(6, method='zca', count=1000)
    >>> whitener.transform(torch.randn(3, 6)).shape
    torch.Size([3, 6])
    """

    count: Tensor
    sample_mean: Tensor
    sample_cov: Tensor

    def __init__(
        self,
        num_features: int,
        method: str = "zca",
        shrinkage: float = 0.0,
        *,
        eps: float = 0.0,
        max_condition: float | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        d = self.num_features = positive("num_features", num_features)
        self.operation = operations.whiten(method)
        self.method = method
        self.shrinkage, self.eps = plain(shrinkage), plain(eps)
        self.max_condition = plain(max_condition)
        _check_between("shrinkage", self.shrinkage, 0, 1)
        check_options(self.eps, None)
        if max_condition is not None:
            _check_between("max_condition", self.max_condition, 1, inf)
        options = {"device": device, "dtype": torch.float64}
        self.register_buffer("count", torch.zeros((), device=device, dtype=torch.long))
        self.register_buffer("sample_mean", torch.zeros(d, **options))
        self.register_buffer("sample_cov", torch.zeros(d, d, **options))
        self._map: Map | None = None
        self._is_synchronized = False
        self.register_load_state_dict_post_hook(_forget_map)

    @torch.no_grad()
    def update(self, x: Tensor) -> Whitener:
        """Add samples, (…, d), and return the whitener; an error adds none."""
        if self._is_synchronized:
            raise RuntimeError(
                "this Whitener has the moments of all ranks, which other ranks' samples would be "
                "missing from: synchronize once, after the last update."
            )
        self._check(x)
        samples = x.detach().reshape(-1, self.num_features)
        if not samples.isfinite().all():
            raise ValueError("the samples have NaN or infinity: leave such samples out.")
        total = self._moments()
        with no_autocast(samples):
            for part in samples.split(CHUNK):
                if len(part):
                    total = merge(total, measure(part.double().mT.unsqueeze(0)))
        self._keep(total)
        return self

    @torch.no_grad()
    def synchronize(self, process_group: object = "world") -> Whitener:
        """Replace this rank's moments by those of all ranks of a group, and return the whitener;
        each rank calls it once, after its last update.
        """
        name = group_name(process_group)  # type: ignore[arg-type]
        if is_shared(name) and not self._is_synchronized:
            what = f"the moments of Whitener({self.num_features})"
            self._keep(reduce_across(name, [self._moments()], False, what)[0])
            self._is_synchronized = True
        return self

    @property
    def mean(self) -> Tensor:
        """μ, (d,), in float64."""
        return self.sample_mean

    @property
    def covariance(self) -> Tensor:
        """Σ, (d, d), unbiased, in float64, as it is without shrinkage, eps and max_condition."""
        return self._moments().unbiased_cov()[0]

    @property
    def matrix(self) -> Tensor:
        """W, (d, d), in float64."""
        return self._fitted().matrix

    def transform(self, x: Tensor) -> Tensor:
        """Return W(x − μ) of samples (…, d), in their dtype; differentiable in x."""
        matrix = self._fitted().matrix
        self._check(x)
        with no_autocast(x):
            return ((x.double() - self.sample_mean) @ matrix.mT).to(x.dtype)

    forward = transform

    def inverse(self, z: Tensor) -> Tensor:
        """Return W⁻¹z + μ of whitened samples (…, d), in their dtype."""
        inverse = self._fitted().inverse
        self._check(z)
        with no_autocast(z):
            return (z.double() @ inverse.mT + self.sample_mean).to(z.dtype)

    def to_linear(self, dtype: torch.dtype | None = None) -> nn.Linear:
        """Return the map as a ``torch.nn.Linear`` of torch's default dtype, or another.

        Its offset is −Wμ: a mean that is large beside the deviations costs accuracy, which it does
        not in ``transform``.
        """
        check_dtype(dtype)
        matrix, d = self._fitted().matrix, self.num_features
        linear = nn.Linear(d, d, device=matrix.device, dtype=dtype)
        with torch.no_grad():
            linear.weight.copy_(matrix)
            linear.bias.copy_(-(matrix @ self.sample_mean))
        return linear

    def _moments(self) -> Statistics:
        count = self.count.double()  # a quotient of integers would be float32
        return Statistics(count, self.sample_mean.unsqueeze(0), self.sample_cov.unsqueeze(0))

    def _keep(self, total: Statistics) -> None:
        """Put moments in the place of those that were there."""
        self.count.fill_(total.count)
        self.sample_mean.copy_(total.mean[0])
        self.sample_cov.copy_(total.cov[0])
        self._map = None

    @torch.no_grad()
    def _fitted(self) -> Map:
        """Return W and its inverse, made when they are first asked for."""
        if self._map is not None:
            return self._map
        if self.count < 2:
            raise RuntimeError(
                f"this Whitener has seen {int(self.count)} samples, and a covariance needs 2: call "
                "update(x) first."
            )
        cov = self.covariance.unsqueeze(0)
        cov = add_eps((1 - self.shrinkage) * cov, self.shrinkage + self.eps)
        if not trace(cov) > 0:
            raise RuntimeError(
                "every feature has been constant, so there is nothing to whiten: add other "
                "samples, or make the Whitener with eps > 0."
            )
        if self.max_condition is not None:
            values, vectors = torch.linalg.eigh(cov)
            floor = values[..., -1:] / self.max_condition
            cov = (vectors * values.maximum(floor).unsqueeze(-2)) @ vectors.mT
        matrix = self.operation.transform(cov, 0.0)[0]
        self._map = Map(matrix, torch.linalg.inv(matrix))
        return self._map

    def _check(self, x: Tensor) -> None:
        check_tensor("the samples", x)
        if x.dtype not in DTYPES or x.dim() < 1 or x.shape[-1] != self.num_features:
            raise ValueError(
                f"Whitener expected floating-point samples (…, {self.num_features}), features in "
                f"the last dimension; got {x.dtype} of shape {tuple(x.shape)}."
            )
        check_device("the whitener", self.sample_mean, x)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True):
        """Move like any module, without casts: moments stay float64."""
        before = dict(self._buffers)
        super()._apply(fn, recurse)
        for name, old in before.items():
            new = self._buffers[name]
            if old is not None and new is not None and new.dtype != old.dtype:
                self._buffers[name] = old.to(device=new.device)
        self._map = None
        return self

    def extra_repr(self) -> str:
        options = (("shrinkage", 0.0), ("eps", 0.0), ("max_condition", None))
        parts = [f"{self.num_features}, method={self.method!r}"]
        parts += [f"{k}={v}" for k, default in options if (v := getattr(self, k)) != default]
        return ", ".join([*parts, f"count={int(self.count)}"])


def _forget_map(whitener: Whitener, incompatible_keys) -> None:
    whitener._map = None


def _check_between(name: str, value: object, low: float, high: float) -> None:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not isfinite(value) or not low <= value <= high:  # type: ignore[arg-type]
        bounds = f"of {low} or more" if high == inf else f"from {low} to {high}"
        raise ValueError(f"{name} must be a number {bounds}; got {value!r}.")
