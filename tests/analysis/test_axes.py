"""Axes that swap, and directions that converge."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import isonorm
from isonorm.analysis import axis_swaps, covariance, newton_convergence


def test_pca_swaps_axes_where_zca_does_not():
    x = torch.randn(3000, 16)
    sizes = dict(batch_size=128, num_batches=6)
    pca = axis_swaps(isonorm.DBN(16, method="pca"), x, **sizes)
    assert pca.swapped.shape == (15,)
    assert pca.swapped.mean() > 0.5 and pca.similarity.mean() < 0.5
    for norm in (isonorm.DBN(16), isonorm.IterNorm(16), nn.BatchNorm1d(16)):
        kept = axis_swaps(norm, x, **sizes)
        assert kept.swapped.max() == 0 and kept.similarity.min() > 0.8


def test_pca_keeps_axes_that_variances_tell_apart():
    x = torch.randn(3000, 4) * torch.tensor([1.0, 10.0, 100.0, 1000.0])
    kept = axis_swaps(isonorm.DBN(4, method="pca"), x, batch_size=128, num_batches=4)
    assert kept.swapped.max() == 0 and kept.similarity.min() > 0.95


def test_a_known_permutation_is_found():
    """Axes 0 and 1 change places in every other batch: half of four axes, in those pairs."""
    calls = []

    def swap(batch):
        calls.append(len(batch))
        return batch[:, [1, 0, 2, 3]] if len(calls) % 2 else batch

    found = axis_swaps(swap, torch.randn(500, 4), batch_size=60, num_batches=4)
    expected = [0.5, 0.0, 0.5, 0.5, 0.0, 0.5]  # pairs 01 02 03 12 13 23
    assert found.swapped.tolist() == expected


@pytest.mark.parametrize(
    "sizes",
    [dict(batch_size=40, num_batches=3), dict(batch_size=8, num_batches=3, num_shared=8)],
)
def test_sizes_that_do_not_fit_are_refused(sizes):
    with pytest.raises(ValueError, match="2 < num_shared < batch_size"):
        axis_swaps(nn.BatchNorm1d(3), torch.randn(20, 3), **sizes)


@pytest.mark.parametrize("num_iters", [0, 1, 5])
def test_eigenvalues_converge_as_iternorm_makes_them(num_iters):
    x = torch.randn(500, 6, dtype=torch.float64) @ torch.randn(6, 6, dtype=torch.float64)
    values = torch.linalg.eigvalsh(covariance(x)).flip(0)
    norm = isonorm.IterNorm(6, num_iters=num_iters, affine=False, eps=0).double()
    output = covariance(norm(x))
    expected = newton_convergence(values, num_iters)
    assert expected.shape == (num_iters + 1, 6)
    assert torch.allclose(torch.linalg.eigvalsh(output).flip(0), expected[-1], atol=1e-10)


def test_larger_directions_converge_first():
    steps = newton_convergence(torch.tensor([8.0, 1.0, 0.1, 0.001], dtype=torch.float64), 5)
    assert (steps[:, :-1] > steps[:, 1:]).all()
    assert steps[-1, 0] > 1 - 1e-12 and steps[-1, -1] < 0.01
    with pytest.raises(ValueError, match="none below 0"):
        newton_convergence(torch.tensor([1.0, -1.0]), 3)
    with pytest.raises(ValueError, match="one above"):
        newton_convergence(torch.zeros(2), 3)


def test_constants_do_not_swap_and_nan_does_not_hide():
    sizes = dict(batch_size=16, num_batches=3)
    assert axis_swaps(nn.Identity(), torch.ones(40, 3), **sizes).swapped.max() == 0
    assert (
        axis_swaps(nn.Identity(), torch.full((40, 3), float("nan")), **sizes).swapped.isnan().all()
    )


def test_eigenvalues_may_be_numbers():
    found = newton_convergence([8.0, 1.0, 1.0], 2)
    assert torch.equal(found, newton_convergence(torch.tensor([8.0, 1.0, 1.0]), 2))
