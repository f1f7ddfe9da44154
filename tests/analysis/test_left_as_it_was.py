"""Whoever is analysed goes on as if nothing had happened: random state, statistics, training."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import isonorm
from isonorm import analysis
from isonorm.analysis._state import copy_to_try


def dropping() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))


class Checkpointed(nn.Module):
    """Its first half runs a second time in backward."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(8, 8), isonorm.IterNorm(8), nn.Dropout(0.5))
        self.second = nn.Sequential(nn.BatchNorm1d(8), nn.Linear(8, 3))

    def forward(self, x):
        return self.second(checkpoint(self.first, x, use_reentrant=False))


SIZES = dict(batch_size=8, num_samples=2, num_batches=2)
QUESTIONS = {
    "layer_conditioning": lambda model, x: analysis.layer_conditioning(model, x),
    "layer_drift": lambda model, x: analysis.layer_drift(model, x, lambda: None),
    "fisher_condition": lambda model, x: analysis.fisher_condition(model, x),
    "fisher_factors": lambda model, x: analysis.fisher_factors(model, x),
    "jacobian_singular_values": lambda model, x: analysis.jacobian_singular_values(model, x[:4]),
    "scale_invariance": lambda model, x: analysis.scale_invariance(model, x),
    "hessian_spectrum": lambda model, x: analysis.hessian_spectrum(
        model, [(x, x.argmax(1) % 3)], steps=2, runs=1, samples=2
    ),
    "snd": lambda model, x: analysis.snd(model, x, **SIZES),
    "snd_with_error": lambda model, x: analysis.snd_with_error(model, x, **SIZES),
    "axis_swaps": lambda model, x: analysis.axis_swaps(model, x, batch_size=16, num_batches=2),
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_the_random_state_stays(question):
    model, x = dropping(), torch.randn(32, 8)
    before = torch.get_rng_state()
    QUESTIONS[question](model, x)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.gpu
@pytest.mark.parametrize("question", QUESTIONS)
def test_the_random_state_of_a_gpu_stays(question):
    model, x = dropping().cuda(), torch.randn(32, 8).cuda()
    before = torch.cuda.get_rng_state()
    QUESTIONS[question](model, x)
    assert torch.equal(torch.cuda.get_rng_state(), before)


def test_draws_follow_the_seed_and_a_generator_of_ones_own_moves_on():
    norm, x = nn.BatchNorm1d(8), torch.randn(64, 8)
    torch.manual_seed(1)
    first = analysis.snd(norm, x, **SIZES)
    torch.manual_seed(2)
    assert not torch.equal(analysis.snd(norm, x, **SIZES), first)
    torch.manual_seed(1)
    assert torch.equal(analysis.snd(norm, x, **SIZES), first)
    generator = torch.Generator().manual_seed(0)
    drawn = [analysis.snd(norm, x, **SIZES, generator=generator) for _ in range(2)]
    assert not torch.equal(*drawn)


def test_a_step_of_training_inside_layer_drift_draws_as_it_would():
    """The passes before and after it keep the random state, not the step."""
    model, x, drawn = dropping(), torch.randn(32, 8), []
    torch.manual_seed(0)
    expected = torch.rand(2)
    torch.manual_seed(0)
    analysis.layer_drift(model, x, lambda: drawn.append(torch.rand(1)))
    assert torch.equal(torch.cat([*drawn, torch.rand(1)]), expected)


@pytest.mark.parametrize("question", ["fisher_factors", "fisher_condition", "layer_conditioning"])
def test_running_statistics_stay_where_backward_runs_the_model_again(question):
    model, x = Checkpointed(), torch.randn(32, 8)
    before = copy.deepcopy(model.state_dict())
    random = torch.get_rng_state()
    QUESTIONS[question](model, x)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random)


def test_checkpointed_parts_have_the_factors_of_others():
    model, x = Checkpointed(), torch.randn(32, 8)
    labels = torch.randint(3, (32,))
    plain = nn.Sequential(model.first, model.second)
    found = analysis.fisher_factors(model, x, labels)
    expected = analysis.fisher_factors(plain, x, labels)
    assert list(found) == ["first.0", "second.1"]
    for name, factors in zip(found, expected.values(), strict=True):
        for a, b in zip(found[name], factors, strict=True):
            assert a.effective_rank == pytest.approx(b.effective_rank)


def test_a_copy_to_try_shares_nothing_and_speaks_to_nobody():
    model = nn.Sequential(
        isonorm.IterNorm(4, process_group="world"),
        isonorm.EquiLinear(4, 4, process_group="world"),
        nn.SyncBatchNorm(4),
    )
    tried, x = copy_to_try(model), torch.rand(16, 4)
    assert [tried[0].process_group, tried[1].process_group] == ["", ""]
    assert type(tried[2]) is not nn.SyncBatchNorm and type(model[2]) is nn.SyncBatchNorm
    assert [model[0].process_group, model[1].process_group] == ["world", "world"]
    torch.testing.assert_close(tried[2](x), nn.BatchNorm1d(4)(x))
    y = tried(x)
    (y * torch.randn_like(y)).sum().backward()
    assert model[1].weight.grad is None and model[2].num_batches_tracked == 0


def test_a_norm_that_cannot_be_called_alone_does_not_stop_the_training():
    class Conditional(isonorm.BatchNorm):
        def forward(self, x, shift):
            return super().forward(x) + shift

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.other = Conditional(6), nn.BatchNorm1d(6)

        def forward(self, x):
            return self.other(self.norm(x, x.mean()))

    with analysis.Monitor(model := Model(), every=1, disturbance=True) as monitor:
        model(torch.randn(16, 6))
        with pytest.warns(UserWarning, match=r"disturbance of layer 'norm' .* is None: TypeError"):
            monitor.step()
    found = {record["layer"]: record["snd"] for record in monitor.latest}
    assert found["norm"] is None and found["other"] > 0
    assert monitor.latest[0]["effective_rank"] > 1
