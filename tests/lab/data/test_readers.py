"""Files in the official formats are read as they were written."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from isonorm.lab.data import load
from isonorm.lab.data.faces import yaleb
from isonorm.lab.data.files import Folder
from isonorm.lab.data.sources import SOURCES, is_there


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("inside", ["", "MNIST/raw"])
def test_mnist(official, same, tmp_path, packed, inside):
    parts = official.mnist(tmp_path / inside, packed=packed)
    data = load("mnist", tmp_path, verify=False)
    same(data.train_images, data.train_labels, parts["train"])
    same(data.test_images, data.test_labels, parts["t10k"])
    assert data.num_classes == 10 and data.num_features == 784


@pytest.mark.parametrize("classes", [10, 100])
@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("packed", [False, True])
def test_cifar(official, same, tmp_path, classes, binary, packed):
    parts = official.cifar(tmp_path, classes=classes, binary=binary, packed=packed)
    data = load(f"cifar{classes}", tmp_path, verify=False)
    same(data.train_images, data.train_labels, parts["train"])
    same(data.test_images, data.test_labels, parts["test"])
    assert data.num_classes == classes and data.num_features == 3072


def test_cifar_is_found_from_within_its_own_folder(official, same, tmp_path):
    parts = official.cifar(tmp_path)
    data = load("cifar10", tmp_path / "cifar-10-batches-bin")
    same(data.train_images, data.train_labels, parts["train"])


def test_svhn(official, same, tmp_path):
    parts = official.svhn(tmp_path / "svhn", extra=True)
    data = load("svhn", tmp_path, verify=False)
    same(data.train_images, data.train_labels, parts["train"])
    same(data.test_images, data.test_labels, parts["test"])
    more = load("svhn_extra", tmp_path, verify=False)
    same(more.train_images[:20], more.train_labels[:20], parts["train"])
    same(more.train_images[20:], more.train_labels[20:], parts["extra"])
    same(more.test_images, more.test_labels, parts["test"])


@pytest.mark.parametrize("dtype", [np.uint8, np.float64])
@pytest.mark.parametrize(("name", "persons"), [("yaleb", 38), ("pie", 68)])
def test_faces_stand_upright_and_are_divided_in_proportion(
    official, tmp_path, name, persons, dtype
):
    images, labels = official.faces(tmp_path, name, dtype=dtype)["all"]
    data = load(name, tmp_path)
    assert data.train_images.dtype == torch.uint8 and data.num_classes == persons
    assert data.train_labels.bincount().tolist() == [3] * persons
    assert data.test_labels.bincount().tolist() == [1] * persons
    written = {image.tobytes(): label for image, label in zip(images, labels, strict=True)}
    for part, given in (
        (data.train_images, data.train_labels),
        (data.test_images, data.test_labels),
    ):
        assert [written.pop(image.numpy().tobytes()) for image in part] == given.tolist()
    assert not written


def test_faces_can_all_be_trained_on(official, same, tmp_path):
    part = official.faces(tmp_path, "yaleb")["all"]
    data = yaleb(Folder(tmp_path), test_fraction=0)
    same(data.train_images, data.train_labels, part)
    assert data.test_images.shape == (0, 1, 32, 32)


def test_data_sets_are_found_by_their_files(official, tmp_path):
    assert [name for name in SOURCES if is_there(name, tmp_path)] == ["digits"]
    official.mnist(tmp_path, packed=True)
    official.cifar(tmp_path)
    official.cifar(tmp_path, classes=100, packed=True, binary=False)
    official.svhn(tmp_path / "SVHN")
    official.faces(tmp_path, "pie")
    there = [name for name in SOURCES if is_there(name, tmp_path)]
    assert there == ["digits", "mnist", "cifar10", "cifar100", "svhn", "pie"]
    (tmp_path / "cifar-10-batches-bin" / "data_batch_4.bin").unlink()
    assert not is_there("cifar10", tmp_path)


def test_the_folder_comes_from_the_environment(official, same, tmp_path, monkeypatch):
    parts = official.mnist(tmp_path)
    monkeypatch.setenv("ISONORM_DATA", str(tmp_path))
    same(load("mnist").train_images, load("mnist").train_labels, parts["train"])


def test_scaled_pixels_lie_in_the_unit_interval(official, tmp_path):
    parts = official.mnist(tmp_path)
    data = load("mnist", tmp_path).scaled()
    expected = torch.from_numpy(parts["train"][0]) / 255
    torch.testing.assert_close(data.train_images, expected, rtol=0, atol=0)
    assert data.test_images.dtype == torch.float32
    assert data.scaled().train_images is data.train_images


def test_a_validation_set_comes_from_the_training_images_alone(official, tmp_path):
    official.cifar(tmp_path, train=100)
    data = load("cifar10", tmp_path)
    held_out = data.hold_out(30, seed=1)
    assert held_out.train_labels.bincount().tolist() == [7] * 10
    assert held_out.test_labels.bincount().tolist() == [3] * 10
    together = torch.cat([held_out.train_images, held_out.test_images]).flatten(1)
    assert torch.equal(together.unique(dim=0), data.train_images.flatten(1).unique(dim=0))
    assert not torch.equal(data.hold_out(30, seed=2).test_images, held_out.test_images)
    with pytest.raises(ValueError, match=r"a number below the 100 images there are; got 100"):
        data.hold_out(100)
    with pytest.raises(ValueError, match="cannot be divided by 5 with every class in proportion"):
        data.hold_out(5)
