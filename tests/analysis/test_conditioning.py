"""Spectra against covariances that are known, and hooks that leave nothing behind."""

from __future__ import annotations

from math import inf, isnan, log

import pytest
import torch
from torch import nn

import isonorm
from isonorm.analysis import (
    condition,
    condition_number,
    covariance,
    drift,
    effective_rank,
    jacobian_singular_values,
    layer_conditioning,
    layer_drift,
    off_diagonal_energy,
    spectrum,
)


def with_covariance(cov: torch.Tensor, n: int = 400) -> torch.Tensor:
    """(n, C) float64 samples with exactly this covariance."""
    x = torch.randn(n, len(cov), dtype=torch.float64)
    x = x - x.mean(0)
    white = x @ torch.linalg.inv(torch.linalg.cholesky(x.T @ x / n)).T
    return white @ torch.linalg.cholesky(cov.double()).T + 100


@pytest.fixture
def cov() -> torch.Tensor:
    a = torch.randn(5, 5, dtype=torch.float64)
    return a @ a.T + 0.1 * torch.eye(5)


def test_numbers_of_a_known_covariance(cov):
    x = with_covariance(cov)
    values = torch.linalg.eigvalsh(cov).flip(0)
    share = values / values.sum()
    scale = cov.diagonal().sqrt()
    squares = (cov / (scale[:, None] * scale)).square()
    assert torch.allclose(covariance(x), cov)
    assert torch.allclose(spectrum(x), values)
    assert condition_number(x) == pytest.approx((values[0] / values[-1]).item())
    assert condition_number(x, fraction=0.6) == pytest.approx((values[0] / values[2]).item())
    assert effective_rank(x) == pytest.approx((-(share * share.log()).sum()).exp().item())
    assert off_diagonal_energy(x) == pytest.approx(1 - 5 / squares.sum().item())
    found = condition(x)
    assert found.condition_number == condition_number(x)
    assert found.effective_rank == effective_rank(x)
    assert found.off_diagonal_energy == off_diagonal_energy(x)
    assert [found.largest, found.smallest] == pytest.approx([values[0].item(), values[-1].item()])


def test_positions_are_samples(cov):
    x = with_covariance(cov)  # (400, 5) as 25 maps of 4 × 4
    images = x.view(25, 4, 4, 5).permute(0, 3, 1, 2)
    assert torch.allclose(spectrum(images), spectrum(x))


def test_singular_covariances_are_infinite_and_say_so_in_every_dtype():
    x = torch.randn(200, 3, dtype=torch.float64)
    x = torch.cat([x, x[:, :1] + x[:, 1:2]], dim=1)
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        rounded = x.to(dtype)
        if dtype == torch.bfloat16:  # the sum itself is rounded there: repeat a channel instead
            rounded[:, 3] = rounded[:, 0]
        assert condition_number(rounded) == inf
    assert condition_number(torch.randn(3, 8)) == inf  # fewer samples than channels
    assert condition_number(x[:, :3]) < 2


def test_a_dead_channel_is_correlated_with_nothing():
    x = torch.randn(100, 3)
    x[:, 1] = 4
    assert off_diagonal_energy(x) < 0.1
    assert off_diagonal_energy(torch.ones(10, 3)) == 0


def test_not_finite_activations_give_no_number():
    x = torch.randn(10, 3)
    x[0, 0] = float("nan")
    assert spectrum(x).isnan().all()


def network() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), isonorm.IterNorm(4), nn.ReLU(), nn.BatchNorm2d(4), nn.Flatten(),
        nn.Linear(4 * 36, 5),
    )  # fmt: skip


def test_layers_are_seen_where_they_are():
    model, x = network(), torch.randn(20, 3, 8, 8)
    inputs = layer_conditioning(model, x, of="input")
    outputs = layer_conditioning(model, x)
    assert list(inputs) == list(outputs) == ["0", "1", "3", "5"]
    assert inputs["1"] == outputs["0"]
    with torch.no_grad():
        assert outputs["0"] == condition(model[0](x))
    assert list(layer_conditioning(model, x, layers="[34]")) == ["3", "4"]
    assert list(layer_conditioning(model, x, layers=["5"])) == ["5"]
    norms = layer_conditioning(model, x, layers=lambda name, m: isinstance(m, nn.BatchNorm2d))
    assert list(norms) == ["3"]


@pytest.mark.parametrize("train", [True, False])
def test_looking_changes_nothing(train):
    model = network().train(train)
    model.register_buffer("calls", torch.zeros(()))
    model.register_forward_hook(lambda m, args, out: model.calls.add_(1) and None)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    layer_conditioning(model, torch.randn(20, 3, 8, 8))
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(module.training == train for module in model.modules())
    assert not any(module._forward_hooks for module in model[:])
    model(torch.randn(20, 3, 8, 8))  # and the model still works, and tracks
    assert model[1].num_batches_tracked.item() == int(train)


def test_looking_that_fails_changes_nothing_either():
    model = network()
    with pytest.raises(RuntimeError):
        layer_conditioning(model, torch.randn(20, 7, 8, 8))
    assert not any(module._forward_hooks for module in model.modules())
    assert model[3].running_mean is not None


def test_bad_choices_get_a_sentence():
    model, x = network(), torch.randn(2, 3, 8, 8)
    with pytest.raises(ValueError, match="no layer called 'nine'"):
        layer_conditioning(model, x, layers=["nine"])
    with pytest.raises(ValueError, match="chooses none"):
        layer_conditioning(model, x, layers="nothing*")
    with pytest.raises(ValueError, match="'input' or 'output'"):
        layer_conditioning(model, x, of="weights")
    with pytest.raises(ValueError, match="fraction must be"):
        condition_number(torch.randn(5, 2), fraction=0)
    with pytest.raises(ValueError, match=r"\(N, C, \*\)"):
        spectrum(torch.randn(5))


def test_drift_of_a_known_movement(cov):
    x = with_covariance(cov)
    sigma = cov.diagonal().sqrt()
    moved = drift(x, x + 0.3 * sigma)
    assert moved.mean == pytest.approx(0.3)
    assert moved.scale == pytest.approx(0, abs=1e-12)
    assert moved.covariance == pytest.approx(0, abs=1e-12)
    assert drift(x, 3 * x).scale == pytest.approx(log(3))
    assert drift(x, 3 * x).covariance == pytest.approx(8)
    assert drift(x, x) == (0, 0, 0)
    with pytest.raises(ValueError, match="5 before and 4 after"):
        drift(x, x[:, :4])


def test_a_norm_holds_its_output_against_a_step():
    model = nn.Sequential(nn.Linear(6, 6), isonorm.DBN(6, affine=False), nn.Linear(6, 6))
    x = torch.randn(64, 6)

    def step() -> None:
        model[0].weight.data *= 1.5
        model[0].bias.data += 1

    moved = layer_drift(model, x, step)
    assert moved["0"].scale == pytest.approx(log(1.5), rel=1e-4)
    assert moved["0"].mean > 0.5
    assert max(*moved["1"], *moved["2"]) < 1e-3


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_finite_is_not_said_to_be_well_conditioned(value):
    x = torch.randn(20, 3)
    x[0, 0] = value
    assert isnan(condition_number(x)) and isnan(effective_rank(x)) and isnan(off_diagonal_energy(x))
    moved = drift(x, x + 1)
    assert isnan(moved.mean) and isnan(moved.scale) and isnan(moved.covariance)


def test_constants_do_not_drift():
    assert drift(torch.ones(5, 2), torch.ones(5, 2)) == (0, 0, 0)


def test_whole_numbers_are_activations_and_complex_ones_are_not():
    x = torch.randint(9, (50, 3))
    assert condition(x) == condition(x.double())
    with pytest.raises(ValueError, match="real activations"):
        condition(torch.randn(9, 2, dtype=torch.complex64))


def test_the_features_of_a_linear_layer_are_last():
    layer, tokens = nn.Linear(4, 3), torch.randn(10, 7, 4)
    for of, x in (("input", tokens), ("output", layer(tokens))):
        found = layer_conditioning(layer, tokens, of=of)[""]
        assert found == pytest.approx(condition(x.flatten(0, 1)), rel=1e-9)


def test_synchronized_batchnorm_is_left_as_it_was():
    norm = nn.SyncBatchNorm(4)
    before = {name: value.clone() for name, value in norm.state_dict().items()}
    layer_conditioning(norm, torch.randn(9, 4))
    assert jacobian_singular_values(norm, torch.randn(9, 4)).shape == (9, 4)
    assert norm.track_running_stats and norm.num_batches_tracked is not None
    assert all(torch.equal(before[name], value) for name, value in norm.state_dict().items())


def test_a_layer_whose_statistics_were_averaged_stays_right():
    """Looking at it derives its W anew, which must not be put back."""
    model = nn.Sequential(isonorm.IterNorm(6)).eval()
    x = torch.randn(30, 6) @ torch.randn(6, 6)
    with torch.no_grad():
        model[0].running_cov.mul_(9)
    layer_conditioning(model, x)
    expected = nn.Sequential(isonorm.IterNorm(6))
    expected.load_state_dict(model.state_dict())
    torch.testing.assert_close(model(x), expected.eval()(x))


def test_looking_at_a_frozen_model_leaves_what_unfreeze_will_do():
    from isonorm.analysis._state import observed

    model = isonorm.freeze(nn.Sequential(isonorm.IterNorm(6))).eval()
    with observed(model, train=True):
        pass
    assert not isonorm.unfreeze(model)[0].training


def test_layers_that_normalize_their_kernels():
    values = jacobian_singular_values(nn.Sequential(isonorm.EquiLinear(4, 3)), torch.randn(5, 4))
    assert values.isfinite().all()
