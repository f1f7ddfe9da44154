"""Every operation over every area against dense float64, on any input, by any implementation."""

from __future__ import annotations

from math import inf
from typing import NamedTuple

import pytest
import torch
from hypothesis import assume, event, given
from hypothesis import strategies as st
from torch import Tensor

import isonorm
from isonorm import area as areas
from isonorm import operation as operations
from isonorm.recovery import Affine
from tests.fuzz.dense import Dense, Rounding, normalize, places
from tests.fuzz.inputs import DRAWS, Case, cases, must_be_near


@st.composite
def whitenings(draw) -> operations.Operation:
    method = draw(st.sampled_from(["newton", "newton", "zca", "polar", "cholesky", "pca"]))
    steps = draw(st.integers(0, 20)) if method == "newton" else None
    return operations.whiten(method, steps)


ELEMENTWISE = [
    operations.standardize(), operations.standardize(p=1), operations.standardize(p=inf),
    operations.center(), operations.scale(),
]  # fmt: skip


@st.composite
def compositions(draw, channels: int) -> tuple[areas.Area, operations.Operation]:
    """Draw an area and an operation that go together."""
    size = draw(st.one_of(st.none(), st.integers(1, channels + 1)))
    count = draw(st.sampled_from([k for k in range(1, channels + 1) if channels % k == 0]))
    area = draw(
        st.sampled_from(
            [areas.batch(size), areas.batch(size), areas.instance(size), areas.group(count),
             areas.layer(), areas.batch_group(count), areas.position()]
        )
    )  # fmt: skip
    whitens = area.whitens and draw(st.integers(0, 3)) > 0
    return area, draw(whitenings() if whitens else st.sampled_from(ELEMENTWISE))


class Found(NamedTuple):
    y: Tensor
    means: Tensor
    covs: Tensor
    dx: Tensor
    dweight: Tensor
    dbias: Tensor


def _exact(case: Case, area, operation, rounding: Rounding | None = None) -> Found:
    """Return what dense float64 gives, with intermediates rounded if asked."""
    leaves = [
        t.double().detach().clone().requires_grad_() for t in (case.x, case.weight, case.bias)
    ]
    n, channels, s = case.shape
    dense: Dense = normalize(
        leaves[0].reshape(n, channels, s), area, operation, case.eps, case.unit, rounding
    )
    y = dense.y * leaves[1][:, None] + leaves[2][:, None]
    dy = case.dy.double().reshape(n, channels, s)
    dy = dy if rounding is None else rounding.relative(dy)
    grads = torch.autograd.grad(y, leaves, dy)
    means, covs = (torch.cat([t.reshape(-1) for t in ts]) for ts in (dense.means, dense.covs))
    return Found(y.detach().view(case.x.shape), means.detach(), covs.detach(), *grads)


def _got(case: Case, area, operation) -> Found:
    leaves = [case.x.detach(), case.weight.clone(), case.bias.clone()]
    leaves = [leaf.requires_grad_() for leaf in leaves]
    with isonorm.backend(case.backend):
        y, statistics = isonorm.functional.normalize(
            leaves[0], area=area, operation=operation, recovery=Affine(*leaves[1:]), eps=case.eps
        )
        grads = torch.autograd.grad(y, leaves, case.dy)
    applied = area if operation.is_matrix else area.featurewise()
    return Found(y.detach(), *_without_padding(statistics, case, applied), *grads)


def _without_padding(statistics, case: Case, area) -> tuple[Tensor, Tensor]:
    """Return the means and covariances of all problems one after the other."""
    means, covs = [], []
    for _, rows, d in area.places(*case.shape):
        means.append(statistics.mean[rows, :d].detach().reshape(-1))
        covs.append(statistics.cov[rows, :d, :d].detach().reshape(-1))
    return torch.cat(means), torch.cat(covs)


@given(data=st.data())
def test_operations(data) -> None:
    """Attacks every area with every operation: y, the statistics, and all gradients. The oracle is
    dense float64; how far rounding may be off it, is what noise in the oracle's intermediates
    makes of its results.
    """
    case = data.draw(cases())
    area, operation = data.draw(compositions(case.x.shape[1]))
    assume(case.runs(area, operation))
    samples = places(area, case.shape, together=True)[0].shape[-1]
    if operation.centers and samples == 1:
        with pytest.raises(ValueError, match="more than one value"):
            _got(case, area, operation)
        return
    event(f"{area.name} {operation.name} {operation.method}")
    got, exact = _got(case, area, operation), _exact(case, area, operation)
    unit = case.units(operation)
    noisy = [_exact(case, area, operation, Rounding(unit, seed)) for seed in range(DRAWS)]
    for name in Found._fields:
        if operation.method == "pca" and name in ("y", "dx", "dweight"):
            continue  # it turns freely where eigenvalues are close
        stored = case.x.dtype if name in ("y", "dx") else case.working
        want, *others = (getattr(found, name) for found in (exact, *noisy))
        must_be_near(getattr(got, name), want, others, case.unit, stored, name)
    assert all(t.isfinite().all() for t in got)  # whatever rounding decides
