"""Data sets by name: who reads them, which files they are, where the files come from."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from . import cifar, mnist, svhn
from .dataset import DataSet
from .download import Remote, fetch
from .faces import pie, yaleb
from .files import FilesMissing, Folder
from .scikit_digits import digits

_MNIST = "https://ossci-datasets.s3.amazonaws.com/mnist/"
_CIFAR = "https://www.cs.toronto.edu/~kriz/"
_SVHN = "http://ufldl.stanford.edu/housenumbers/"


@dataclass(frozen=True)
class Source:
    """A data set that can be loaded into memory."""

    read: Callable[[Folder], DataSet]
    content: str
    files: str = ""  # as a sentence lists them; nothing where no file is needed
    forms: tuple[tuple[str, ...], ...] = ((),)  # the same as names: any of these sets will do
    remotes: tuple[Remote, ...] = ()  # what download=True fetches
    usual_names: tuple[str, ...] = ()  # folders in which the files are often found


def _svhn(*parts: str) -> tuple[Remote, ...]:
    names = [f"{part}_32x32.mat" for part in parts]
    return tuple(Remote(_SVHN + name, svhn.MD5[name]) for name in names)


def _cifar(releases: tuple[cifar.Release, ...]) -> tuple[Remote, ...]:
    """The first release, which is read without pickles."""
    return (Remote(_CIFAR + releases[0].archive, releases[0].md5),)


def _forms(releases: tuple[cifar.Release, ...]) -> tuple[tuple[str, ...], ...]:
    unpacked = [(*release.train, release.test) for release in releases]
    within = [
        tuple(f"{release.folder}/{name}" for name in names)
        for release, names in zip(releases, unpacked, strict=True)
    ]
    return (*within, *unpacked, *((release.archive,) for release in releases))


def _either(releases: tuple[cifar.Release, ...]) -> str:
    return " or ".join(f"{release.archive} (or {release.folder}/)" for release in releases)


SOURCES = {
    "digits": Source(lambda folder: digits(), "1,797 digits, 8 × 8 gray; come with scikit-learn"),
    "mnist": Source(
        mnist.mnist,
        "60,000 + 10,000 digits, 28 × 28 gray",
        ", ".join(mnist.MD5) + " (or unpacked, without .gz)",
        (tuple(mnist.MD5), tuple(name.removesuffix(".gz") for name in mnist.MD5)),
        tuple(Remote(_MNIST + name, md5) for name, md5 in mnist.MD5.items()),
        ("MNIST/raw", "mnist"),
    ),
    "cifar10": Source(
        cifar.cifar10,
        "50,000 + 10,000 photographs of 10 classes, 32 × 32 color",
        _either(cifar.CIFAR10),
        _forms(cifar.CIFAR10),
        _cifar(cifar.CIFAR10),
        ("cifar10",),
    ),
    "cifar100": Source(
        cifar.cifar100,
        "50,000 + 10,000 photographs of 100 classes, 32 × 32 color",
        _either(cifar.CIFAR100),
        _forms(cifar.CIFAR100),
        _cifar(cifar.CIFAR100),
        ("cifar100",),
    ),
    "svhn": Source(
        svhn.svhn,
        "73,257 + 26,032 house-number digits, 32 × 32 color",
        "train_32x32.mat and test_32x32.mat",
        (("train_32x32.mat", "test_32x32.mat"),),
        _svhn("train", "test"),
        ("svhn", "SVHN"),
    ),
    "svhn_extra": Source(
        svhn.svhn_extra,
        "svhn with 531,131 more to train on",
        "train_32x32.mat, extra_32x32.mat and test_32x32.mat",
        (("train_32x32.mat", "extra_32x32.mat", "test_32x32.mat"),),
        _svhn("train", "extra", "test"),
        ("svhn", "SVHN"),
    ),
    "yaleb": Source(
        yaleb,
        "2,414 faces of 38 persons, 32 × 32 gray",
        "YaleB_32x32.mat",
        (("YaleB_32x32.mat",),),
        usual_names=("yaleb", "YaleB"),
    ),
    "pie": Source(
        pie,
        "11,554 faces of 68 persons, 32 × 32 gray",
        "PIE_32x32.mat",
        (("PIE_32x32.mat",),),
        usual_names=("pie", "PIE"),
    ),
}


def load(
    name: str,
    folder: str | Path | None = None,
    *,
    download: bool = False,
    verify: bool = True,
) -> DataSet:
    """A data set by name, from the files in a folder.

    >>> load("digits").train_images.shape
    torch.Size([1347, 1, 8, 8])

    The folder is ``$ISONORM_DATA``, or ``data`` here, unless another is given. ``download=True``
    fetches files that are missing; ``verify=False`` takes archives with another checksum.
    """
    source = source_of(name)
    files = _folder(source, folder, verify)
    try:
        return source.read(files)
    except FilesMissing as missing:
        if not (download and source.remotes):
            raise FilesMissing(_expected(name, source, files.path, str(missing))) from None
    for remote in source.remotes:
        if files.find(remote.name) is None:
            fetch(remote, files.path)
    return source.read(files)


def is_there(name: str, folder: str | Path | None = None) -> bool:
    """Whether the files of a data set are in the folder; nothing is read."""
    source = source_of(name)
    files = _folder(source, folder)
    return any(all(files.find(file) for file in form) for form in source.forms)


def source_of(name: str) -> Source:
    if name not in SOURCES:
        hint = " imagenet is read in batches: isonorm.lab.data.ImageNet." * (name == "imagenet")
        raise ValueError(
            f"there is no data set called {name!r}: choose from {', '.join(SOURCES)}.{hint}"
        )
    return SOURCES[name]


def _folder(source: Source, folder: str | Path | None, verify: bool = True) -> Folder:
    return Folder(_place(folder), source.usual_names, verify)


def _place(folder: str | Path | None) -> Path:
    """The folder, or where files are looked for unless one is given."""
    return Path(os.environ.get("ISONORM_DATA", "data") if folder is None else folder)


def _expected(name: str, source: Source, place: Path, missing: str) -> str:
    words = ["isonorm", "data", name, "--download"]
    if place.absolute() != _place(None).absolute():
        words += ["--folder", str(place)]
    fetching = f", or fetch with '{shlex.join(words)}'" if source.remotes else ""
    return (
        f"{name} was not found in {place.absolute()} (no {missing}): "
        f"put {source.files} there{fetching}."
    )
