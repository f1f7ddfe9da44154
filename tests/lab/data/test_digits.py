from __future__ import annotations

import pytest
import torch

from isonorm.lab.data import digits, load


def test_images_and_labels_belong_together(data):
    """A nearest-neighbor classifier is right about digits only if images and labels match."""
    test, train = data.test_images.flatten(1), data.train_images.flatten(1)
    nearest = torch.cdist(test, train).argmin(dim=1)
    assert (data.train_labels[nearest] == data.test_labels).double().mean() > 0.97


def test_pixels_are_scaled_to_the_unit_interval(data):
    images = torch.cat([data.train_images, data.test_images])
    assert images.shape == (1797, 1, 8, 8) and images.dtype == torch.float32
    assert images.min() == 0 and images.max() == 1


def test_split_is_the_same_every_time(data):
    torch.manual_seed(1)
    again = digits()
    torch.testing.assert_close(again.train_images, data.train_images, rtol=0, atol=0)
    torch.testing.assert_close(again.test_labels, data.test_labels, rtol=0, atol=0)
    other = digits(split_seed=1)
    assert not torch.equal(other.test_images, data.test_images)


def test_split_holds_every_class_in_proportion(data):
    train = data.train_labels.bincount(minlength=10)
    test = data.test_labels.bincount(minlength=10)
    torch.testing.assert_close(test / (train + test), torch.full((10,), 0.25), rtol=0, atol=0.01)


def test_unknown_data_set_is_answered_with_the_known_ones():
    with pytest.raises(ValueError, match=r"called 'nmist': choose from digits, mnist, .*, pie\.$"):
        load("nmist")
    with pytest.raises(ValueError, match=r"imagenet is read in batches: isonorm\.lab\.data\.Ima"):
        load("imagenet")
