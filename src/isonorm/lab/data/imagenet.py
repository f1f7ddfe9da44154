"""ImageNet (ILSVRC-2012) as folders of images, decoded by several processes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from .files import DataError, FilesMissing
from .sampler import Plan, Sampler
from .standardize import Standardize

# Of the training images in [0, 1], as every published ImageNet model uses them.
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_SUFFIXES = {".jpeg", ".jpg", ".png"}
_AREA, _RATIO, _ATTEMPTS = (0.08, 1.0), (3 / 4, 4 / 3), 10
_SHORTER_SIDE_PER_CROP = 256 / 224

Box = tuple[float, float, float, float]  # left, top, right, bottom
Request = tuple[list[int], list[str]]  # a batch's images, and a seed for each


class ImageNet:
    """Batches of ``train/`` or ``val/``, folders that hold one folder of images for each class.

    ``ImageNet("imagenet", "train", batch_size=256, num_workers=8, device="cuda")``

    To train, a crop of 8 to 100 % of the area with sides as 3:4 to 4:3 is resized to ``size`` and
    mirrored every second time; to test, the middle of the image whose shorter side is resized to
    256/224 of it. Images travel to the device as bytes and are standardized there, or with
    ``standardize=False`` scaled to [0, 1]. Classes are
    numbered in the order of their folders' names. Crops follow from the seed, whatever the number
    of workers. ``few=8`` takes eight images of each of the first eight classes, to try things out.
    For order, shares and resuming, see ``Sampler``.
    """

    def __init__(
        self,
        folder: str | Path,
        part: str,
        *,
        batch_size: int,
        seed: int = 0,
        size: int = 224,
        num_workers: int = 4,
        few: int | None = None,
        standardize: bool = True,
        rank: int = 0,
        world_size: int = 1,
        device: torch.device | str = "cpu",
    ) -> None:
        if part not in ("train", "val"):
            raise ValueError(f"ImageNet's parts are 'train' and 'val'; got {part!r}.")
        training = part == "train"
        self.classes = class_names(Path(folder))[:few]
        self._images = _Images(Path(folder) / part, self.classes, size, training, few)
        self.sampler = Sampler(
            len(self._images),
            batch_size,
            seed=seed,
            shuffle=training,
            drop_last=training,
            num_draws=2 if training else 0,
            rank=rank,
            world_size=world_size,
        )
        self.device, self.num_workers = torch.device(device), num_workers
        values = (MEAN, STD) if standardize else ((0.0,) * 3, (1.0,) * 3)
        mean, std = (torch.tensor(numbers).view(3, 1, 1) for numbers in values)
        self._standardize = Standardize(mean, std).to(device)

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        plan = self.sampler.plan()
        loader = DataLoader(
            self._images,
            batch_size=None,  # the sampler gives whole batches
            sampler=(_request(plan[rows]) for rows in self.sampler.remaining()),
            num_workers=self.num_workers,
            pin_memory=self.device.type == "cuda",
        )
        return self.sampler.handing_out(self._on_device(batch) for batch in loader)

    def _on_device(self, batch: tuple[Tensor, Tensor] | str) -> tuple[Tensor, Tensor]:
        if isinstance(batch, str):
            raise DataError(batch)
        images, labels = (tensor.to(self.device, non_blocking=True) for tensor in batch)
        return self._standardize(images), labels

    def state_dict(self) -> dict[str, Any]:
        return self.sampler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.sampler.load_state_dict(state)


def _request(plan: Plan) -> Request:
    """Plain values, for a tensor sent to another process occupies shared memory."""
    return plan.order.tolist(), [str(draws) for draws in plan.draws.tolist()]


class _Images(Dataset):
    """Whole batches, decoded and cropped; what a worker process holds."""

    def __init__(
        self, folder: Path, classes: list[str], size: int, training: bool, few: int | None
    ) -> None:
        self.size, self.training = size, training
        self.paths, self.labels = list[str](), list[int]()
        for label, name in enumerate(classes):
            inside = (folder / name).iterdir() if (folder / name).is_dir() else ()
            files = sorted(str(path) for path in inside if path.suffix.lower() in _SUFFIXES)
            if not files:
                raise DataError(f"{folder / name} holds no image ({', '.join(sorted(_SUFFIXES))}).")
            self.paths += files[:few]
            self.labels += [label] * len(files[:few])

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, request: Request) -> tuple[Tensor, Tensor] | str:
        """Images and labels; or a sentence, for an exception would arrive as a page of text."""
        indices, seeds = request
        images = torch.empty(len(indices), 3, self.size, self.size, dtype=torch.uint8)
        labels = torch.tensor([self.labels[index] for index in indices], dtype=torch.int64)
        for image, index, seed in zip(images, indices, seeds, strict=True):
            chance = Random(seed) if self.training else None
            try:
                image.copy_(decode(self.paths[index], self.size, chance))
            except DataError as error:
                return str(error)
        return images, labels


def decode(path: str, size: int, chance: Random | None) -> Tensor:
    """An image file as bytes (3, size, size): a random crop, or the middle where nothing is left
    to chance."""
    try:
        from PIL import Image
    except ModuleNotFoundError:
        raise DataError("reading images needs Pillow: pip install pillow brings it.") from None
    try:
        with Image.open(path) as file:
            box = middle_box(*file.size) if chance is None else random_box(*file.size, chance)
            image = file.convert("RGB").resize((size, size), Image.Resampling.BILINEAR, box)
    except Exception as error:  # whatever a damaged file makes the decoder stumble over
        raise DataError(f"{path} is not a whole image ({error}): fetch it again.") from error
    pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)
    return pixels.flip(2) if chance is not None and chance.random() < 0.5 else pixels


def middle_box(width: int, height: int) -> Box:
    """The middle that is left when the shorter side is resized to 256 and 224 × 224 are cut out."""
    side = min(width, height) / _SHORTER_SIDE_PER_CROP
    left, top = (width - side) / 2, (height - side) / 2
    return left, top, left + side, top + side


def random_box(width: int, height: int, chance: Random) -> Box:
    """A box of random area and shape; after ten that do not fit, the largest in the middle."""
    for _ in range(_ATTEMPTS):
        area = width * height * chance.uniform(*_AREA)
        ratio = math.exp(chance.uniform(*map(math.log, _RATIO)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            left, top = chance.randint(0, width - w), chance.randint(0, height - h)
            return left, top, left + w, top + h
    w, h = min(width, height * _RATIO[1]), min(height, width / _RATIO[0])
    left, top = (width - w) / 2, (height - h) / 2
    return left, top, left + w, top + h


def class_names(folder: Path) -> list[str]:
    """The names of the class folders, which train/ and val/ must share."""
    parts = [folder / "train", folder / "val"]
    if lacking := [str(part) for part in parts if not part.is_dir()]:
        raise FilesMissing(
            f"imagenet was not found: there is no folder {' and no '.join(lacking)}. Each holds "
            "a folder of images for each class, such as train/n01440764/n01440764_10026.JPEG."
        )
    train, val = (
        sorted(place.name for place in part.iterdir() if place.is_dir()) for part in parts
    )
    if not train or train != val:
        raise DataError(
            f"{parts[0]} and {parts[1]} must hold the same class folders; they hold {len(train)} "
            f"and {len(val)}, {len(set(train) ^ set(val))} of them in one only. The images of the "
            "validation archive have to be sorted into such folders first."
        )
    return train
