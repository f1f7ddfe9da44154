"""What ``isonorm data`` prints."""

from __future__ import annotations

from pathlib import Path

from rich.table import Table
from torch import Tensor

from .dataset import DataSet
from .sources import SOURCES, is_there


def overview(folder: Path | None) -> Table:
    """Every data set that has a name: what it is, which files it needs, whether they are there."""
    table = Table()
    table.add_column("name", style="bold", no_wrap=True)
    table.add_column("content")
    table.add_column("files")
    table.add_column("here", no_wrap=True)
    for name, source in SOURCES.items():
        table.add_row(name, source.content, source.files, "yes" if is_there(name, folder) else "no")
    return table


def inspection(data: DataSet) -> Table:
    """The shapes, values and classes of a data set that was read."""
    table = Table(title=data.name)
    for column in ("part", "images", "shape", "pixels", "classes", "images in a class"):
        table.add_column(column, justify="left" if column == "part" else "right")
    for part, images, labels in (
        ("train", data.train_images, data.train_labels),
        ("test", data.test_images, data.test_labels),
    ):
        table.add_row(part, f"{len(images):,}", *_describe(images, labels, data.num_classes))
    return table


def _describe(images: Tensor, labels: Tensor, num_classes: int) -> tuple[str, ...]:
    shape = " × ".join(map(str, images.shape[1:]))
    if not len(labels):
        return shape, "–", "0", "–"
    counts = labels.bincount(minlength=num_classes)
    present = counts[counts > 0]
    return (
        shape,
        f"{images.min().item():g} to {images.max().item():g}",
        str(len(present)),
        f"{present.min()} to {present.max()}",
    )
