"""Curvature in training mode against the dense matrix, in float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import isonorm
from isonorm.analysis import (
    curvature_operator,
    curvature_trace,
    extreme_eigenvalues,
    hessian_spectrum,
    spectral_density,
)

NORMS = {
    "batchnorm": lambda d: isonorm.BatchNorm(d),
    "torch batchnorm": lambda d: nn.BatchNorm1d(d),
    "dbn": lambda d: isonorm.DBN(d, group_size=3),
    "iternorm": lambda d: isonorm.IterNorm(d),
}


def network(norm: str) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(4, 6), NORMS[norm](6), nn.Tanh(), nn.Linear(6, 3)
    ).double()  # fmt: skip


def batches(count: int = 2, size: int = 24) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [
        (torch.randn(size, 4, dtype=torch.float64), torch.randint(3, (size,))) for _ in range(count)
    ]


def dense_hessian(model: nn.Module, data: list) -> torch.Tensor:
    """∂²L/∂θ² of the mean loss over batches, row by row, the model as it is called in training."""
    parameters = list(model.parameters())
    loss = torch.stack([F.cross_entropy(model(x), y) for x, y in data]).mean()
    gradient = torch.cat(
        [g.flatten() for g in torch.autograd.grad(loss, parameters, create_graph=True)]
    )
    rows = [
        torch.cat([g.flatten() for g in torch.autograd.grad(entry, parameters, retain_graph=True)])
        for entry in gradient
    ]
    return torch.stack(rows)


def dense_gauss_newton(model: nn.Module, data: list) -> torch.Tensor:
    """Jᵀ·(∂²L/∂z²)·J, z the logits of a whole batch."""
    total = 0
    for x, y in data:
        parameters = list(model.parameters())
        z = model(x)
        jacobian = torch.stack(
            [
                torch.cat(
                    [g.flatten() for g in torch.autograd.grad(e, parameters, retain_graph=True)]
                )
                for e in z.flatten()
            ]
        )
        inner = torch.autograd.functional.hessian(
            lambda z, y=y: F.cross_entropy(z, y), z.detach()
        ).reshape(z.numel(), z.numel())
        total = total + jacobian.T @ inner @ jacobian
    return total / len(data)


DENSE = {"hessian": dense_hessian, "gauss-newton": dense_gauss_newton}


@pytest.mark.parametrize("kind", DENSE)
@pytest.mark.parametrize("norm", NORMS)
def test_products_are_those_of_the_dense_matrix(norm, kind):
    model, data = network(norm), batches()
    dense = DENSE[kind](model, data)
    v = torch.randn(len(dense), dtype=torch.float64)
    with curvature_operator(model.eval(), data, kind=kind) as operator:
        assert torch.allclose(operator.matvec(v), dense @ v, atol=1e-10)


@pytest.mark.parametrize("norm", NORMS)
def test_spectrum_is_that_of_the_dense_hessian(norm):
    model, data = network(norm), batches(1)
    dense = dense_hessian(model, data)
    values = torch.linalg.eigvalsh((dense + dense.T) / 2)
    found = hessian_spectrum(model, data, samples=30, runs=1, steps=35)
    assert found.size == len(dense)
    assert found.extremes.converged
    assert found.extremes.largest.item() == pytest.approx(values[-1].item(), rel=1e-3)
    assert found.extremes.smallest.item() == pytest.approx(values[0].item(), rel=1e-3)
    assert abs(found.trace.estimate - values.sum().item()) < 3 * found.trace.error
    assert 0 < found.trace.error < 0.2 * values.abs().sum().item()
    # the density integrates to one, and its mean is the trace over the size
    grid, density, _ = found.density
    assert torch.trapezoid(density, grid).item() == pytest.approx(1, abs=1e-3)
    mean = torch.trapezoid(grid * density, grid).item()
    assert mean == pytest.approx(values.mean().item(), abs=0.05 * values.max().item())


def test_density_is_the_blurred_dense_spectrum():
    model, data = network("torch batchnorm"), batches(1)
    dense = dense_hessian(model, data)
    values = torch.linalg.eigvalsh((dense + dense.T) / 2)
    sigma = 0.05 * values.max().item()
    with curvature_operator(model, data) as operator:
        found = spectral_density(operator, runs=20, steps=30, sigma=sigma)
    kernel = torch.exp(-((found.grid[:, None] - values) ** 2) / (2 * sigma**2))
    expected = kernel.mean(1) / (sigma * (2 * torch.pi) ** 0.5)
    assert (found.density - expected).abs().max() < 0.1 * expected.max()


def test_training_mode_differs_from_eval():
    model, data = network("iternorm"), batches(1)
    v = torch.randn(63, dtype=torch.float64)
    with curvature_operator(model, data) as operator:
        training = operator.matvec(v)
    with curvature_operator(model, data, train=False) as operator:
        fixed = operator.matvec(v)
    assert (training - fixed).norm() > 0.2 * fixed.norm()


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("kind", DENSE)
@pytest.mark.parametrize("norm", NORMS)
def test_nothing_is_changed(norm, kind, train):
    model, data = network(norm), batches(1)
    model(data[0][0])
    model[1].eval()  # a mixed mode is restored, too
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with curvature_operator(model, data, kind=kind, train=train) as operator:
        operator.matvec(torch.randn(operator.size, dtype=torch.float64))
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert model.training and not model[1].training
    assert all(p.grad is None for p in model.parameters())


def test_parameters_are_chosen_and_dropout_is_one_matrix():
    model = nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.5), nn.Linear(6, 3)).double()
    data = batches(1)
    with curvature_operator(
        model, data, parameters=lambda name, p: name.startswith("2.")
    ) as operator:
        assert operator.size == 21
        v = torch.randn(21, dtype=torch.float64)
        first = operator.matvec(v)
        torch.manual_seed(7)  # what happens elsewhere does not matter
        assert torch.equal(first, operator.matvec(v))
        w = torch.randn(21, dtype=torch.float64)
        assert torch.allclose(w @ operator.matvec(v), v @ operator.matvec(w))


def test_a_model_of_several_outputs():
    class Several(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = network("batchnorm")

        def forward(self, x):
            return self.net(x), x

    model, data = Several(), batches(1)
    v = torch.randn(sum(p.numel() for p in model.parameters())).double()
    with curvature_operator(model, data, kind="gauss-newton") as operator:
        found = operator.matvec(v)
    with curvature_operator(model.net, data, kind="gauss-newton") as operator:
        assert torch.allclose(found, operator.matvec(v))
    with curvature_operator(model, data, lambda y, t: F.cross_entropy(y[0], t)) as operator:
        found = operator.matvec(v)
    with curvature_operator(model.net, data) as operator:
        assert torch.allclose(found, operator.matvec(v))


def test_bad_arguments_get_a_sentence():
    model = network("iternorm")
    with (
        pytest.raises(ValueError, match="kind must be one of"),
        curvature_operator(model, batches(), kind="fisher"),
    ):
        pass
    with (
        pytest.raises(TypeError, match="again and again"),
        curvature_operator(model, iter(batches())),
    ):
        pass
    with (
        curvature_operator(model, batches()) as operator,
        pytest.raises(ValueError, match="at least 2"),
    ):
        curvature_trace(operator, samples=1)
    with (
        curvature_operator(model, batches()) as operator,
        pytest.raises(ValueError, match="count and steps must be at least 1"),
    ):
        extreme_eigenvalues(operator, count=0)
    for frozen in (nn.ReLU(), network("iternorm").requires_grad_(False)):
        with (
            pytest.raises(ValueError, match="curvature needs parameters"),
            curvature_operator(frozen, batches()),
        ):
            pass
    with pytest.raises(TypeError, match="each batch must be a pair"):
        hessian_spectrum(model, [{"x": 1}])
