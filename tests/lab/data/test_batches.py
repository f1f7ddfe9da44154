from __future__ import annotations

import pytest
import torch

from isonorm.lab.data import Batches, FlipAndCrop, standardize_like
from isonorm.lab.data.batches import fits


@pytest.fixture
def images() -> torch.Tensor:
    return torch.randint(256, (30, 3, 8, 8), dtype=torch.uint8)


@pytest.fixture
def labels() -> torch.Tensor:
    return torch.arange(30)


def collect(batches: Batches) -> tuple[torch.Tensor, torch.Tensor]:
    images, labels = zip(*batches, strict=True)
    return torch.cat(images), torch.cat(labels)


@pytest.mark.parametrize("resident", [None, True, False])
def test_batches_are_standardized_images_with_their_labels(images, labels, resident):
    standardize = standardize_like(images, mean="pixel", std="channel")
    x, y = collect(
        Batches(images, labels, batch_size=7, standardize=standardize, resident=resident)
    )
    assert len(y) == 28 and len(y.unique()) == 28
    torch.testing.assert_close(x, standardize(images)[y], rtol=0, atol=0)


def test_without_preprocessing_pixels_are_scaled(images, labels):
    x, y = collect(Batches(images, labels, shuffle=False, batch_size=8, drop_last=False))
    assert torch.equal(y, labels)
    torch.testing.assert_close(x, images / 255, rtol=0, atol=0)


def test_images_are_standardized_first_and_augmented_with_the_epochs_draws(images, labels):
    standardize, augment = standardize_like(images, mean="pixel", std="pixel"), FlipAndCrop(2)
    batches = Batches(images, labels, batch_size=10, standardize=standardize, augment=augment)
    plan = batches.sampler.plan()
    x, y = collect(batches)
    assert torch.equal(y, plan.order)
    expected = augment(standardize(images)[plan.order], plan.draws)
    torch.testing.assert_close(x, expected, rtol=0, atol=0)
    assert not torch.equal(collect(batches)[0], x)


def test_two_processes_together_see_what_one_does(images, labels):
    def run(**ranks: int) -> list:
        options = {"batch_size": 8, "augment": FlipAndCrop(2), "seed": 3, "drop_last": False}
        return list(Batches(images, labels, **options, **ranks))

    for alone, first, second in zip(
        run(), run(rank=0, world_size=2), run(rank=1, world_size=2), strict=True
    ):
        for whole, *shares in zip(alone, first, second, strict=True):
            assert torch.equal(whole, torch.cat(shares))


def test_resumed_batches_are_augmented_as_without_interruption(images, labels):
    options = {"batch_size": 6, "augment": FlipAndCrop(2), "seed": 3}
    batches = Batches(images, labels, **options)
    expected = [x for _ in range(2) for x, _ in batches]

    stopped = Batches(images, labels, **options)
    for number, _ in enumerate(stopped, start=1):
        if number == 3:
            break
    resumed = Batches(images, labels, **{**options, "seed": 4})
    resumed.load_state_dict(stopped.state_dict())
    rest = [x for _ in range(2) for x, _ in resumed]
    assert len(rest) == 7
    torch.testing.assert_close(rest, expected[3:], rtol=0, atol=0)


def test_images_and_labels_must_be_equally_many(images, labels):
    with pytest.raises(ValueError, match="30 images and 29 labels"):
        Batches(images, labels[:29])


def test_data_fits_on_the_device_if_it_leaves_room(monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1000, 4000))
    assert fits(500, torch.device("cuda")) and not fits(501, torch.device("cuda"))
    assert fits(501, torch.device("cpu"))


@pytest.mark.gpu
@pytest.mark.parametrize("resident", [None, False])
def test_a_gpu_gives_the_cpus_batches(images, labels, resident):
    standardize = standardize_like(images, mean="channel", std="channel")
    options = {"batch_size": 8, "standardize": standardize, "augment": FlipAndCrop(2)}
    on_gpu = Batches(images, labels, **options, device="cuda", resident=resident)
    assert on_gpu.resident is (resident is None)
    for (x, y), (expected_x, expected_y) in zip(
        on_gpu, Batches(images, labels, **options), strict=True
    ):
        assert x.is_cuda and y.is_cuda
        torch.testing.assert_close((x.cpu(), y.cpu()), (expected_x, expected_y))
