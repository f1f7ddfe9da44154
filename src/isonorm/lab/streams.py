"""What a training reads: batches to train on and batches to test on, on its devices."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .data import Batches, DataSet, ImageNet, standardize_like
from .plan import Plan

if TYPE_CHECKING:
    from lightning_fabric import Fabric

#: Iterating goes through what is left of an epoch, a process's share of each batch at a time.
Stream = Batches | ImageNet

_TEST_BATCH = 1000


@dataclass(frozen=True)
class ImageFolders:
    """ImageNet, or images sorted into folders like it, read from disk batch by batch."""

    folder: Path
    num_classes: int = 1000
    size: int = 224
    num_workers: int = 8
    few: int | None = None  # so many images of so many classes


def open_streams(
    data: DataSet | ImageFolders, plan: Plan, seed: int, fabric: Fabric
) -> tuple[Stream, Stream]:
    """Training batches in an order that follows from the seed, and the test set in its own."""
    ranks = fabric.world_size
    where: dict[str, Any] = {
        "rank": fabric.global_rank, "world_size": ranks, "device": fabric.device,
    }  # fmt: skip
    if isinstance(data, ImageFolders):
        where.update(size=data.size, num_workers=data.num_workers, few=data.few)
        where.update(standardize=bool(plan.mean or plan.std))  # by ImageNet's published numbers
        train = ImageNet(
            data.folder, "train", batch_size=_some(plan.batch_size), seed=seed, **where
        )
        return train, ImageNet(data.folder, "val", batch_size=_some(plan.batch_size), **where)

    standardize = None
    if plan.mean or plan.std:
        standardize = standardize_like(data.train_images, mean=plan.mean, std=plan.std)
    train = Batches(
        data.train_images,
        data.train_labels,
        batch_size=plan.batch_size,
        seed=seed,
        standardize=standardize,
        augment=plan.augment,
        **where,
    )
    test = Batches(
        data.test_images,
        data.test_labels,
        batch_size=_test_batch_size(len(data.test_labels), ranks),
        standardize=standardize,
        shuffle=False,
        drop_last=False,
        **where,
    )
    return train, test


def _test_batch_size(num_images: int, ranks: int) -> int:
    """At most ``_TEST_BATCH``, and such that no process's share of the last batch is empty: all
    must call the network equally often.

    >>> _test_batch_size(10_000, 1), _test_batch_size(10_001, 2)
    (1000, 998)
    """
    largest = max(1, min(_TEST_BATCH, num_images) // ranks) * ranks
    fitting = (size for size in range(largest, 0, -ranks) if not 0 < num_images % size < ranks)
    return next(fitting, ranks)


def _some(batch_size: int | None) -> int:
    if batch_size is None:
        raise ValueError("images in folders do not fit into one batch: give a batch_size.")
    return batch_size
