from __future__ import annotations

import numpy as np
import pytest
import torch

from isonorm.lab.data import Standardize, standardize_like


@pytest.fixture
def images() -> torch.Tensor:
    """More than are read at once, with a mean for each pixel and one that never varies."""
    base = torch.randint(200, (1, 3, 4, 5))
    images = (base + torch.randint(55, (150, 3, 4, 5))).byte()
    images[:, 1, 2, 3] = 77
    return images


@pytest.mark.parametrize("mean", ["channel", "pixel", None])
@pytest.mark.parametrize("std", ["channel", "pixel", None])
def test_statistics_are_numpys(images, mean, std):
    pixels = images.numpy() / 255
    over = {"channel": (0, 2, 3), "pixel": 0}
    expected = pixels - (pixels.mean(over[mean], keepdims=True) if mean else 0)
    if std:
        deviation = pixels.std(over[std], keepdims=True)
        expected = expected / np.where(deviation > 1e-12, deviation, 1)
    result = standardize_like(images, mean=mean, std=std)(images)
    assert result.dtype == torch.float32
    np.testing.assert_allclose(result.numpy(), expected, rtol=1e-5, atol=1e-6)


def test_images_in_the_unit_interval_are_not_scaled_again(images):
    bytes_first = standardize_like(images, mean="pixel", std="channel")
    numbers_first = standardize_like(images.float() / 255, mean="pixel", std="channel")
    torch.testing.assert_close(bytes_first(images), numbers_first(images.float() / 255))
    torch.testing.assert_close(bytes_first.std, numbers_first.std)


def test_wrong_words_and_no_images_are_refused(images):
    with pytest.raises(ValueError, match="got 'image' and None"):
        standardize_like(images, mean="image", std=None)
    with pytest.raises(ValueError, match="no images"):
        standardize_like(images[:0], mean="pixel", std=None)


def test_a_map_can_be_given_by_its_numbers():
    standardize = Standardize(torch.tensor([0.5]).view(1, 1, 1), torch.tensor([0.25]).view(1, 1, 1))
    image = torch.tensor([0, 51, 255], dtype=torch.uint8).view(1, 1, 1, 3)
    torch.testing.assert_close(standardize(image).flatten(), torch.tensor([-2.0, -1.2, 2.0]))
