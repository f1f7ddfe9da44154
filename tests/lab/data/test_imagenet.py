from __future__ import annotations

from random import Random

import numpy as np
import pytest
import torch

from isonorm.lab.data import DataError, ImageNet
from isonorm.lab.data.imagenet import MEAN, STD, decode, middle_box, random_box

Image = pytest.importorskip("PIL.Image")

# torch's workers are forks, which newer pythons warn of in a process that has threads.
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")


@pytest.fixture(scope="module")
def folder(official, tmp_path_factory):
    folder = tmp_path_factory.mktemp("imagenet")
    official.imagenet(folder)
    return folder


def collect(batches: ImageNet) -> tuple[torch.Tensor, torch.Tensor]:
    images, labels = zip(*batches, strict=True)
    return torch.cat(images), torch.cat(labels)


def test_images_are_standardized_and_belong_to_their_labels(folder):
    batches = ImageNet(folder, "val", batch_size=4, size=16, num_workers=0)
    assert batches.classes == ["n01440764", "n01443537"] and len(batches) == 2
    images, labels = collect(batches)
    assert labels.tolist() == [0, 0, 0, 1, 1, 1] and images.shape == (6, 3, 16, 16)
    pixels = (images * torch.tensor(STD).view(3, 1, 1) + torch.tensor(MEAN).view(3, 1, 1)) * 255
    colors = torch.tensor([[200.0, 30, 30], [30, 30, 200]])[labels].view(6, 3, 1, 1)
    torch.testing.assert_close(pixels, colors.expand_as(pixels), rtol=0, atol=3)


def test_images_can_stay_in_the_unit_interval(folder):
    scaled = ImageNet(folder, "val", batch_size=6, size=16, num_workers=0, standardize=False)
    usual = ImageNet(folder, "val", batch_size=6, size=16, num_workers=0)
    images, standardized = collect(scaled)[0], collect(usual)[0]
    assert images.min() >= 0 and images.max() <= 1
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (MEAN, STD))
    torch.testing.assert_close((images - mean) / std, standardized)


def test_a_few_images_are_the_first_of_each_of_the_first_classes(folder):
    batches = ImageNet(folder, "val", batch_size=1, size=16, num_workers=0, few=1)
    assert batches.classes == ["n01440764"] and collect(batches)[1].tolist() == [0]
    both = ImageNet(folder, "val", batch_size=1, size=16, num_workers=0, few=2)
    assert collect(both)[1].tolist() == [0, 0, 1, 1]


def test_workers_do_not_change_what_comes(official, tmp_path):
    official.imagenet(tmp_path)
    chance = np.random.default_rng(0)
    for file in tmp_path.rglob("*.JPEG"):
        noise = chance.integers(256, size=(30, 40, 3), dtype=np.uint8)
        Image.fromarray(noise).save(file)

    def run(num_workers: int) -> list:
        batches = ImageNet(
            tmp_path, "train", batch_size=2, size=16, num_workers=num_workers, seed=4
        )
        return [collect(batches) for _ in range(2)]

    alone = run(0)
    torch.testing.assert_close(run(2), alone, rtol=0, atol=0)
    assert not torch.equal(alone[0][0], alone[1][0])


def test_training_resumes_though_workers_prepare_ahead(folder):
    options = {"batch_size": 2, "size": 8, "seed": 1}
    expected = [y.tolist() for _, y in ImageNet(folder, "train", num_workers=0, **options)]
    stopped = ImageNet(folder, "train", num_workers=1, **options)
    next(iter(stopped))
    resumed = ImageNet(folder, "train", num_workers=0, **options)
    resumed.load_state_dict(stopped.state_dict())
    assert [y.tolist() for _, y in resumed] == expected[1:]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_damaged_image_is_named_in_one_sentence(official, tmp_path, num_workers):
    official.imagenet(tmp_path)
    file = tmp_path / "val" / "n01443537" / "n01443537_1.JPEG"
    file.write_bytes(file.read_bytes()[:200])
    batches = ImageNet(tmp_path, "val", batch_size=6, size=8, num_workers=num_workers)
    with pytest.raises(DataError) as caught:
        list(batches)
    assert str(caught.value).startswith(f"{file} is not a whole image")
    assert "\n" not in str(caught.value)
    assert (batches.sampler.epoch, batches.sampler.position) == (0, 0)


def test_the_middle_is_that_of_the_resized_image(tmp_path):
    chance = np.random.default_rng(0)
    small = chance.integers(256, size=(12, 16, 3), dtype=np.uint8)
    image = Image.fromarray(small).resize((640, 512), Image.Resampling.BICUBIC)
    image.save(tmp_path / "image.png")
    resized = image.resize((320, 256), Image.Resampling.BILINEAR)
    expected = np.asarray(resized)[16:240, 48:272].astype(int)
    result = decode(str(tmp_path / "image.png"), 224, None).permute(1, 2, 0).numpy()
    assert np.abs(result - expected).max() <= 2


def test_gray_and_transparent_images_have_three_channels(tmp_path):
    for mode, color in (("L", 9), ("RGBA", (9, 9, 9, 128)), ("CMYK", (0, 0, 0, 246))):
        path = tmp_path / f"{mode}.{'jpg' if mode == 'CMYK' else 'png'}"
        Image.new(mode, (20, 10), color).save(path)
        pixels = decode(str(path), 8, None)
        assert pixels.shape == (3, 8, 8) and (pixels.int() - 9).abs().max() <= 2


@pytest.mark.parametrize("size", [(500, 375), (30, 200), (1, 1), (1000, 10)])
def test_random_boxes_lie_within_the_image_and_have_the_right_size(size):
    width, height = size
    chance = Random(0)
    areas = []
    for _ in range(300):
        left, top, right, bottom = random_box(width, height, chance)
        assert 0 <= left < right <= width and 0 <= top < bottom <= height
        areas.append((right - left) * (bottom - top) / (width * height))
        assert 0.7 < (right - left) / (bottom - top) < 1.4
    if size == (500, 375):  # what fits of boxes drawn with numpy
        numbers = np.random.default_rng(0)
        area = numbers.uniform(0.08, 1, 10**5) * width * height
        ratio = np.exp(numbers.uniform(np.log(3 / 4), np.log(4 / 3), 10**5))
        fitting = area[(area * ratio <= width**2) & (area / ratio <= height**2)] / (width * height)
        deviation = fitting.std() / len(areas) ** 0.5
        assert abs(np.mean(areas) - fitting.mean()) < 4 * deviation
        assert 0.075 < min(areas) < 0.12 and max(areas) > 0.9
    left, top, right, bottom = middle_box(width, height)
    assert right - left == bottom - top == pytest.approx(min(size) * 0.875)


def test_every_second_training_image_is_mirrored(tmp_path):
    ramp = np.broadcast_to(np.arange(0, 240, dtype=np.uint8)[None, :, None], (240, 240, 3))
    Image.fromarray(np.ascontiguousarray(ramp)).save(tmp_path / "ramp.png")
    chance = Random(1)
    images = [decode(str(tmp_path / "ramp.png"), 8, chance).int() for _ in range(100)]
    mirrored = sum(bool(image[0, 0, 0] > image[0, 0, -1]) for image in images)
    assert 30 < mirrored < 70


def test_folders_that_are_not_imagenet_are_refused(official, tmp_path):
    def refused(part: str = "train") -> str:
        with pytest.raises(ValueError) as caught:
            ImageNet(tmp_path, part, batch_size=2)
        return str(caught.value)

    sentence = refused()
    assert str(tmp_path / "train") in sentence and str(tmp_path / "val") in sentence
    official.imagenet(tmp_path)
    assert "'train' and 'val'; got 'test'" in refused("test")
    for file in (tmp_path / "val" / "n01443537").iterdir():
        file.rename(tmp_path / "val" / file.name)
    assert "n01443537 holds no image" in refused("val")
    (tmp_path / "val" / "n01443537").rmdir()
    assert "they hold 2 and 1, 1 of them in one only" in refused()
