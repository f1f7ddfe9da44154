"""A data set in memory, and its division into images to train on and images to test on."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

WHITE = 255  # the brightest value of a pixel that is stored as a byte


@dataclass(frozen=True)
class DataSet:
    """Images (N, channels, height, width) and labels (N,), small enough to lie on the device.

    Pixels are bytes as the files hold them, or numbers in [0, 1].
    """

    name: str
    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor
    num_classes: int

    @property
    def num_features(self) -> int:
        return self.train_images.shape[1:].numel()

    def to(self, device: torch.device | str) -> DataSet:
        tensors = {
            name: value.to(device)
            for name, value in vars(self).items()
            if isinstance(value, Tensor)
        }
        return replace(self, **tensors)

    def scaled(self) -> DataSet:
        """The same images with pixels in [0, 1]."""
        return replace(
            self, train_images=scaled(self.train_images), test_images=scaled(self.test_images)
        )

    def hold_out(self, size: int | float, *, seed: int = 0) -> DataSet:
        """A validation set: so many (or such a fraction) of the training images take the place of
        the test images, every class in proportion.

        DBN chooses its hyper-parameters on 5,000 of CIFAR-10's training images (Section 4.2).
        """
        return split(
            self.name,
            self.train_images,
            self.train_labels,
            self.num_classes,
            test_size=size,
            seed=seed,
        )


def scaled(images: Tensor) -> Tensor:
    """Pixels in [0, 1]: bytes are divided by 255, numbers stay as they are."""
    return images.float() / WHITE if images.dtype == torch.uint8 else images


def split(
    name: str,
    images: Tensor,
    labels: Tensor,
    num_classes: int,
    *,
    test_size: int | float,
    seed: int,
) -> DataSet:
    """A data set that comes in one piece, divided with every class in proportion; 0 tests nothing.

    The division depends on its own seed alone: runs differ in initial weights and batches, and are
    tested on the same images.
    """
    available = len(labels)
    fits = 0 <= test_size < (1 if isinstance(test_size, float) else available)
    if not fits:
        raise ValueError(
            f"the images to test on are a fraction below 1, or a number below the {available} "
            f"images there are; got {test_size!r}."
        )
    train, test = torch.arange(available), torch.arange(0)
    if test_size:
        from sklearn.model_selection import train_test_split  # takes a second to import

        try:
            train, test = train_test_split(
                train, test_size=test_size, stratify=labels.numpy(), random_state=seed
            )
        except ValueError as error:
            reason = str(error).partition("\n")[0].rstrip(".")
            raise ValueError(
                f"{name} cannot be divided by {test_size!r} with every class in proportion: "
                f"{reason}."
            ) from error
    return DataSet(name, images[train], labels[train], images[test], labels[test], num_classes)
