"""Registered layers over some batches, and in eval after them, against dense float64."""

from __future__ import annotations

from typing import NamedTuple

import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

import isonorm
from tests.fuzz.dense import Rounding, apply, normalize, places, transform
from tests.fuzz.inputs import DRAWS, OWN_UNITS, UNITS, Case, cases, must_be_near

#: What registered layers need besides the number of channels, 12.
OPTIONS = {
    "iternorm": {"group_size": [1, 4, 5, 12], "num_iters": [0, 1, 5, 9, 14, 20]},
    "dbn": {"group_size": [1, 5, 12], "method": ["zca", "polar", "cholesky"]},
    "groupnorm": {"num_groups": [1, 3, 12]},
    "batchgroupnorm": {"num_groups": [1, 3, 12]},
    "groupwhitening": {"num_groups": [1, 3, 12], "method": ["newton", "zca"]},
    "instancewhitening": {"group_size": [1, 5, 12], "method": ["newton", "cholesky"]},
}


@st.composite
def layers(draw) -> isonorm.Normalize:
    """Draw a registered layer."""
    name = draw(st.sampled_from(isonorm.list_norms()))
    options = {k: draw(st.sampled_from(v)) for k, v in OPTIONS.get(name, {}).items()}
    options["eps"] = draw(st.sampled_from([1e-5, 1e-3]))
    layer = isonorm.create_norm(name, 12, **options)
    if layer.running_mean is not None:
        options["momentum"] = draw(st.sampled_from([0.1, None, 1.0]))
        options["running"] = draw(st.sampled_from(["covariance", "whitening"]))
        layer = isonorm.create_norm(name, 12, **options)
    assert isinstance(layer, isonorm.Normalize)
    return layer


@given(data=st.data())
def test_layers_in_training_and_eval(data) -> None:
    """Attacks registered layers over some batches and in eval after them: outputs, running
    statistics, and dx in eval. The oracle is dense float64, and averages of its statistics.
    """
    layer = data.draw(layers())
    batches = data.draw(st.lists(cases(12), min_size=1, max_size=3))
    area, operation = layer.area, layer.operation
    batches = [case._replace(eps=layer.eps) for case in batches]
    for case in batches:
        assume(case.runs(area, operation))
        assume(places(area, case.shape, together=True)[0].shape[-1] > 1)
    if any(case.working == torch.float64 for case in batches):
        layer = layer.double()
    averages: list[Averages] = []
    for k, case in enumerate(batches):
        found = [_trained(case, layer, seed) for seed in (None, *range(DRAWS))]
        with isonorm.backend(case.backend):
            y = layer(case.x).detach()
        must_be_near(y, found[0].y, [f.y for f in found[1:]], case.unit, case.x.dtype, "y")
        if layer.running_mean is not None:
            momentum = 1 / (k + 1) if layer.momentum is None else layer.momentum
            averages = averages or [f.start() for f in found]
            averages = [a.moved(f, momentum) for a, f in zip(averages, found, strict=True)]
    layer.eval()
    if layer.running_mean is None:
        case = batches[-1]
        with isonorm.backend(case.backend):
            assert torch.equal(layer(case.x), layer.train()(case.x))
        return
    unit = max(case.unit for case in batches)
    size = max(case.x.abs().max().double().item() for case in batches)
    exact, *noisy = averages
    mean, matrix = _running(layer)
    assert (mean - exact.mean).abs().max() <= UNITS * unit * size
    stored = torch.float32 if unit > 1e-10 else torch.float64
    must_be_near(matrix, exact.matrix, [a.matrix for a in noisy], unit, stored, "the average")
    _check_eval(layer, batches[-1])


class Averages(NamedTuple):
    """Means, and the covariances or W beside them, of all problems one after the other; of a batch
    with its y.
    """

    y: Tensor
    mean: Tensor
    matrix: Tensor
    eye: Tensor

    def start(self) -> Averages:
        """Return what running statistics are before any batch."""
        return self._replace(mean=torch.zeros_like(self.mean), matrix=self.eye)

    def moved(self, batch: Averages, momentum: float) -> Averages:
        mean, matrix = (
            torch.lerp(own, new, momentum)
            for own, new in ((self.mean, batch.mean), (self.matrix, batch.matrix))
        )
        return self._replace(mean=mean, matrix=matrix)


def _trained(case: Case, layer, seed: int | None = None) -> Averages:
    """Return what a batch gives in dense float64, with intermediates rounded by a seed."""
    operation = layer.operation
    rounding = Rounding() if seed is None else Rounding(case.units(operation), seed)
    n, channels, s = case.shape
    x = case.x.double().reshape(n, channels, s)
    dense = normalize(x, layer.area, operation, case.eps, case.unit, rounding)
    tables = places(layer.area, case.shape, operation.is_matrix)
    averaged, eyes = [], []
    for cov, table in zip(dense.covs, tables, strict=True):
        m = table.shape[-1]
        if layer.running == "whitening":
            cov = rounding.matrices(transform(cov, operation, case.eps, case.unit))
        elif operation.centers and operation.is_quadratic:
            cov = cov * (m / (m - 1))
        averaged.append(cov.reshape(-1))
        eyes.append(torch.eye(cov.shape[-1], dtype=cov.dtype).expand_as(cov).reshape(-1))
    means = torch.cat([mean.reshape(-1) for mean in dense.means])
    return Averages(dense.y.view(case.x.shape), means, torch.cat(averaged), torch.cat(eyes))


def _running(layer) -> tuple[Tensor, Tensor]:
    """Return a layer's running statistics without padding."""
    matrix = layer.running_cov if layer.running == "covariance" else layer.running_whitening
    parts = [
        matrix[rows, :d, :d].reshape(-1)
        for _, rows, d in layer._applied_area.places(1, layer.num_features, 1)
    ]
    return layer.running_mean.double(), torch.cat(parts).double()


def _check_eval(layer, case: Case) -> None:
    """Compare y and dx of eval with W(x − μ) of the layer's own running statistics."""
    matrix = layer.running_cov if layer.running == "covariance" else layer.running_whitening
    unit = torch.finfo(matrix.dtype).eps
    running, start = [], 0
    for _, rows, d in layer._applied_area.places(1, layer.num_features, 1):
        own = matrix[rows, :d, :d].double()
        count = own.shape[0] * d
        mean = layer.running_mean[start : start + count].double().view(-1, d)
        start += count
        running.append((mean, own))

    def exact(rounding: Rounding | None) -> tuple[Tensor, Tensor]:
        parts = []
        for mean, own in running:
            if layer.running == "covariance":
                own = own if rounding is None else rounding.matrices(own)
                own = transform(own, layer.operation, layer.eps, unit)
            parts.append((mean, own))
        if not layer.operation.is_matrix:
            parts = [tuple(torch.cat(ts) for ts in zip(*parts, strict=True))]
        leaf = case.x.double().reshape(case.shape).requires_grad_()
        y = apply(leaf, layer.area, layer.operation, parts, rounding)
        (dx,) = torch.autograd.grad(y, leaf, case.dy.double().reshape(case.shape))
        return y.detach().view(case.x.shape), dx.view(case.x.shape)

    leaf = case.x.detach().requires_grad_()
    with isonorm.backend(case.backend):
        y = layer(leaf)
        (dx,) = torch.autograd.grad(y, leaf, case.dy)
    coarsest = max(unit, case.unit)
    units = OWN_UNITS if coarsest < 1e-10 else UNITS
    noisy = [exact(Rounding(units * coarsest, seed)) for seed in range(DRAWS)]
    for name, got, want, *others in zip(
        ("y", "dx"), (y.detach(), dx), exact(None), *noisy, strict=True
    ):
        must_be_near(got, want, others, coarsest, case.x.dtype, f"{name} in eval")
