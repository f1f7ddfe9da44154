"""SND against its definition, written out and sampled far longer."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import isonorm
from isonorm.analysis import snd, snd_with_error
from isonorm.analysis._data import draw_distinct


def bessel(s: int) -> float:
    return ((s - 1) / s) ** 0.5


def direct_estimate(d: int, batch_size: int, num_samples: int, s: int) -> tuple[float, float]:
    """BatchNorm's SND on N(0, I), from fresh Gaussian draws and the formula of Eq. 1."""
    values = []
    for x in torch.randn(num_samples, d, dtype=torch.float64):
        others = torch.randn(s, batch_size - 1, d, dtype=torch.float64)
        batch = torch.cat([x.expand(s, 1, d), others], dim=1)
        y = (x - batch.mean(1)) / (batch.var(1, unbiased=False) + 1e-5).sqrt()
        values.append((y - y.mean(0)).norm(dim=1).mean() / bessel(s))
    values = torch.stack(values)
    return values.mean().item(), (values.std() / num_samples**0.5).item()


@pytest.mark.parametrize("batch_size", [4, 32])
def test_batchnorm_on_gaussian_data_agrees_with_a_direct_estimate(batch_size):
    s = 64
    expected, expected_error = direct_estimate(8, batch_size, 200, 600)
    found = snd_with_error(
        isonorm.BatchNorm(8), torch.randn(20000, 8),
        batch_size=batch_size, num_samples=200, num_batches=s,
    )  # fmt: skip
    error = (found.error**2 + expected_error**2) ** 0.5
    assert abs(found.mean / bessel(s) - expected) < 3 * error
    assert found.error < 0.05 * found.mean  # or the comparison would say nothing


def test_standard_errors_cover_what_repetition_shows():
    """Over repetitions the mean scatters as its standard error says, within a factor of 1.5."""
    x, draws = torch.randn(5000, 4), torch.Generator().manual_seed(0)
    sizes = dict(batch_size=8, num_samples=16, num_batches=8)
    runs = [snd_with_error(nn.BatchNorm1d(4), x, **sizes, generator=draws) for _ in range(60)]
    scatter = torch.tensor([run.mean for run in runs]).std()
    stated = torch.tensor([run.error for run in runs]).mean()
    assert 1 / 1.5 < scatter / stated < 1.5


def test_error_of_a_single_value_covers_what_repetition_shows():
    x = torch.randn(64, 4)
    x[1:] = torch.randn(63, 4)
    values, errors = [], []
    for seed in range(60):
        generator = torch.Generator().manual_seed(seed)
        run = snd_with_error(
            nn.BatchNorm1d(4), x, batch_size=8, num_samples=64, num_batches=24, generator=generator
        )
        order = draw_distinct(64, 64, 1, torch.Generator().manual_seed(seed))[0]
        own = int((order == 0).nonzero())
        values.append(run.values[own])
        errors.append(run.errors[own])
    assert 1 / 1.5 < torch.stack(values).std() / torch.stack(errors).mean() < 1.5


@pytest.mark.parametrize(
    "norm",
    [
        isonorm.BatchNorm(6),
        nn.BatchNorm1d(6),
        isonorm.DBN(6, group_size=4),
        isonorm.IterNorm(6),
        isonorm.functional.iter_norm,
        nn.Sequential(nn.Linear(6, 5), isonorm.IterNorm(5), nn.ReLU()),
    ],
    ids=lambda norm: getattr(norm, "__name__", type(norm).__name__),
)
def test_batches_together_are_batches_one_by_one(norm):
    x = torch.randn(100, 6)
    together, some, single = (
        snd(norm, x, batch_size=7, num_samples=5, num_batches=3, chunk_size=chunk,
            generator=torch.Generator().manual_seed(1))
        for chunk in (None, 4, 1)
    )  # fmt: skip
    assert torch.allclose(together, single, atol=1e-5) and torch.allclose(some, single, atol=1e-5)
    assert (single > 0).all()


def test_the_sample_is_a_member_of_each_batch_and_the_others_differ():
    x = torch.arange(40.0)[:, None]
    seen = []

    def record(batch):
        seen.append(batch.flatten().tolist())
        return batch

    values = snd(record, x, batch_size=5, num_samples=3, num_batches=4, chunk_size=1)
    assert torch.equal(values, torch.zeros(3))  # its own value does not depend on the others
    firsts = [batch[0] for batch in seen]
    assert len(set(firsts)) == 3 and all(firsts.count(first) == 4 for first in firsts)
    assert all(len(set(batch)) == 5 for batch in seen)
    assert len({tuple(sorted(batch)) for batch in seen}) == 12


def test_sample_wise_layers_have_none():
    assert snd(nn.LayerNorm(4), torch.randn(50, 4), batch_size=8, num_samples=5,
               num_batches=4).max() < 1e-6  # fmt: skip


def test_images_count_all_their_numbers():
    """A norm over channels and positions: the same images without positions, side by side."""
    x = torch.randn(200, 3, 2, 2)
    twice = torch.cat([x, x], dim=2)
    sizes = dict(batch_size=8, num_samples=10, num_batches=6)
    one, two = (
        snd(isonorm.BatchNorm(3), data, **sizes, generator=torch.Generator().manual_seed(0))
        for data in (x, twice)
    )
    assert torch.allclose(two, one * 2**0.5, atol=1e-5)


def test_a_loader_is_read_once_and_the_layer_left_alone():
    x, labels = torch.randn(30, 4), torch.zeros(30)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, labels), batch_size=10)
    norm = isonorm.IterNorm(4).eval()
    before = {name: value.clone() for name, value in norm.state_dict().items()}
    given = snd(norm, loader, batch_size=6, num_samples=4, num_batches=3,
                generator=torch.Generator().manual_seed(0))  # fmt: skip
    same = snd(norm, x, batch_size=6, num_samples=4, num_batches=3,
               generator=torch.Generator().manual_seed(0))  # fmt: skip
    assert torch.equal(given, same) and given.min() > 0
    assert not norm.training
    assert all(torch.equal(before[name], value) for name, value in norm.state_dict().items())


@pytest.mark.parametrize("count", [2, 30, 100])
def test_distinct_draws_are_uniform(count):
    picks = draw_distinct(100, count, 3000, None)
    assert all(len(set(row)) == count for row in picks[:50].tolist())
    share = torch.bincount(picks.flatten(), minlength=100) / (3000 * count)
    assert (share * 100 - 1).abs().max() < 5 * (100 / (3000 * count)) ** 0.5
    first = torch.bincount(picks[:, 0], minlength=100) / 3000  # in random order
    assert (first * 100 - 1).abs().max() < 5 * (100 / 3000) ** 0.5


@pytest.mark.parametrize(
    ("sizes", "sentence"),
    [
        (dict(batch_size=1, num_samples=2, num_batches=2), "batch_size must be between 2 and"),
        (dict(batch_size=11, num_samples=2, num_batches=2), "the 10 examples"),
        (dict(batch_size=4, num_samples=11, num_batches=2), "num_samples must be between 1"),
        (dict(batch_size=4, num_samples=2, num_batches=1), "num_batches must be at least 2"),
        (dict(batch_size=4, num_samples=2, num_batches=2, chunk_size=0), "chunk_size must be"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(sizes, sentence):
    with pytest.raises(ValueError, match=sentence):
        snd(nn.BatchNorm1d(3), torch.randn(10, 3), **sizes)


def test_what_is_no_norm_and_no_data_is_refused():
    with pytest.raises(TypeError, match="a layer or a function"):
        snd(3, torch.randn(10, 3), batch_size=4, num_samples=2, num_batches=2)
    with pytest.raises(TypeError, match="a batch must be a tensor"):
        snd(nn.BatchNorm1d(3), [{"x": 1}], batch_size=4, num_samples=2, num_batches=2)
    with pytest.raises(ValueError, match="at least one"):
        snd(nn.BatchNorm1d(3), [], batch_size=4, num_samples=2, num_batches=2)


def test_a_function_that_cannot_be_vectorized_is_told_how_to_run():
    def branching(batch):
        return batch if batch.sum() > 0 else -batch

    with pytest.raises(RuntimeError) as caught:
        snd(branching, torch.randn(20, 3), batch_size=4, num_samples=2, num_batches=2)
    assert any("chunk_size=1" in note for note in caught.value.__notes__)
    snd(branching, torch.randn(20, 3), batch_size=4, num_samples=2, num_batches=2, chunk_size=1)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_halves_are_averaged_in_float32(dtype):
    x = torch.randn(40, 3)
    sizes = dict(batch_size=8, num_samples=4, num_batches=64)
    half, whole = (
        snd(isonorm.BatchNorm(3), data, **sizes, generator=torch.Generator().manual_seed(0))
        for data in (x.to(dtype), x.to(dtype).float())
    )
    assert half.dtype == torch.float32 and torch.allclose(half, whole, rtol=torch.finfo(dtype).eps)


def test_fewer_examples_disturb_less_than_endless_ones():
    """Half of the examples in every batch: by √((M − B)/(M − 2)) less."""
    d, m, b = 8, 400, 200
    few = snd_with_error(nn.BatchNorm1d(d), torch.randn(m, d), batch_size=b, num_samples=100,
                         num_batches=32)  # fmt: skip
    many = snd_with_error(nn.BatchNorm1d(d), torch.randn(200 * m, d), batch_size=b,
                          num_samples=100, num_batches=32)  # fmt: skip
    ratio = few.mean / many.mean
    assert ratio == pytest.approx(((m - b) / (m - 2)) ** 0.5, rel=0.04)


def test_of_a_layer_that_normalizes_its_kernel():
    layer = isonorm.EquiLinear(4, 3)
    before = layer.running_v.clone()
    found = snd(layer, torch.randn(64, 4), batch_size=8, num_samples=4, num_batches=8)
    assert (found > 0).all()
    assert torch.equal(layer.running_v, before)
