"""Data and results small enough to reason about by hand."""

from __future__ import annotations

import gzip
import io
import math
import pickle
import struct
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from lightning_fabric import Fabric
from scipy.io import savemat

from isonorm.lab import figures
from isonorm.lab.data import DataSet, digits
from isonorm.lab.devices import make_fabric
from isonorm.lab.progress import LineProgress
from isonorm.lab.train import Epoch, Result


class OfficialFiles:
    """Writes random images under the names and in the formats of the official releases.

    Each method returns what it wrote: images (n, channels, height, width) and labels by part.
    """

    @staticmethod
    def random(n: int, shape: Sequence[int], num_classes: int) -> tuple[np.ndarray, np.ndarray]:
        chance = np.random.default_rng(n)
        images = chance.integers(256, size=(n, *shape), dtype=np.uint8)
        return images, np.arange(n, dtype=np.int64) * 7 % num_classes

    @classmethod
    def mnist(cls, folder: Path, *, train: int = 20, test: int = 10, packed: bool = False) -> Parts:
        folder.mkdir(parents=True, exist_ok=True)
        parts = {}
        for part, n in (("train", train), ("t10k", test)):
            images, labels = parts[part] = cls.random(n, (1, 28, 28), 10)
            contents = {
                f"{part}-images-idx3-ubyte": struct.pack(">4I", 0x803, n, 28, 28)
                + images.tobytes(),
                f"{part}-labels-idx1-ubyte": struct.pack(">2I", 0x801, n)
                + labels.astype(np.uint8).tobytes(),
            }
            for name, content in contents.items():
                if packed:
                    (folder / f"{name}.gz").write_bytes(gzip.compress(content))
                else:
                    (folder / name).write_bytes(content)
        return parts

    @classmethod
    def cifar(
        cls,
        folder: Path,
        *,
        classes: int = 10,
        train: int = 20,
        test: int = 10,
        binary: bool = True,
        packed: bool = False,
    ) -> Parts:
        """``train`` is the number of images in all; CIFAR-10 divides them among five files."""
        parts = {
            "train": cls.random(train, (3, 32, 32), classes),
            "test": cls.random(test, (3, 32, 32), classes),
        }
        files: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        if classes == 10:
            for number, rows in enumerate(np.split(np.arange(train), 5), start=1):
                files[f"data_batch_{number}"] = tuple(values[rows] for values in parts["train"])
            files["test_batch"] = parts["test"]
        else:
            files |= parts
        encode = cls._cifar_binary if binary else cls._cifar_pickle
        contents = {
            f"{name}.bin" if binary else name: encode(images, labels, classes)
            for name, (images, labels) in files.items()
        }
        release = f"cifar-{classes}-{'binary' if binary else 'python'}"
        inside = f"cifar-10-batches-{'bin' if binary else 'py'}" if classes == 10 else release
        if packed:
            folder.mkdir(parents=True, exist_ok=True)
            with tarfile.open(folder / f"{release}.tar.gz", "w:gz") as archive:
                for name, content in contents.items():
                    member = tarfile.TarInfo(f"{inside}/{name}")
                    member.size = len(content)
                    archive.addfile(member, io.BytesIO(content))
        else:
            (folder / inside).mkdir(parents=True)
            for name, content in contents.items():
                (folder / inside / name).write_bytes(content)
        return parts

    @staticmethod
    def _cifar_binary(images: np.ndarray, labels: np.ndarray, classes: int) -> bytes:
        columns = [labels] if classes == 10 else [labels // 5, labels]
        head = np.stack(columns, axis=1).astype(np.uint8)
        return np.concatenate([head, images.reshape(len(images), -1)], axis=1).tobytes()

    @staticmethod
    def _cifar_pickle(images: np.ndarray, labels: np.ndarray, classes: int) -> bytes:
        """As python 2 and its numpy wrote it: protocol 2, keys that are bytes."""
        content = {
            b"batch_label": b"a batch",
            b"labels" if classes == 10 else b"fine_labels": labels.tolist(),
            b"data": images.reshape(len(images), -1),
            b"filenames": [b"image.png"] * len(images),
        }
        if classes == 100:
            content[b"coarse_labels"] = (labels // 5).tolist()
        return pickle.dumps(content, protocol=2)

    @classmethod
    def svhn(cls, folder: Path, *, extra: bool = False, train: int = 20, test: int = 10) -> Parts:
        folder.mkdir(parents=True, exist_ok=True)
        sizes = {"train": train, "test": test} | ({"extra": 5} if extra else {})
        parts = {part: cls.random(n, (3, 32, 32), 10) for part, n in sizes.items()}
        for part, (images, labels) in parts.items():
            ten_for_zero = np.where(labels == 0, 10, labels).astype(np.uint8)[:, None]
            savemat(
                folder / f"{part}_32x32.mat",
                {"X": images.transpose(2, 3, 1, 0), "y": ten_for_zero},
                do_compression=True,
            )
        return parts

    @classmethod
    def faces(cls, folder: Path, name: str, *, each: int = 4, dtype: type = np.uint8) -> Parts:
        """``yaleb`` or ``pie`` with so many images of each person, column by column as MATLAB."""
        file, persons = {"yaleb": ("YaleB", 38), "pie": ("PIE", 68)}[name]
        folder.mkdir(parents=True, exist_ok=True)
        images, _ = cls.random(each * persons, (1, 32, 32), persons)
        labels = np.repeat(np.arange(persons), each)
        rows = images.transpose(0, 1, 3, 2).reshape(len(images), -1).astype(dtype)
        savemat(folder / f"{file}_32x32.mat", {"fea": rows, "gnd": labels[:, None] + 1.0})
        return {"all": (images, labels)}

    @classmethod
    def imagenet(cls, folder: Path, *, each: int = 3, size: tuple[int, int] = (40, 30)) -> None:
        """Two classes of JPEG images of one color each, which the labels can be told by."""
        image = pytest.importorskip("PIL.Image")
        for part in ("train", "val"):
            for name, color in (("n01440764", (200, 30, 30)), ("n01443537", (30, 30, 200))):
                (folder / part / name).mkdir(parents=True)
                for number in range(each):
                    image.new("RGB", size, color).save(
                        folder / part / name / f"{name}_{number}.JPEG", quality=95
                    )


Parts = Mapping[str, tuple[np.ndarray, np.ndarray]]


@pytest.fixture(scope="session")
def data() -> DataSet:
    return digits()


@pytest.fixture(scope="session")
def fabric() -> Fabric:
    return make_fabric("cpu")


@pytest.fixture(autouse=True)
def _plain_output(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing in the environment tells rich what a terminal is like."""
    monkeypatch.setenv("TERM", "xterm")
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True)
def _no_signs_of_life(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run prints the same lines however slow the machine is."""
    monkeypatch.setattr(LineProgress, "SECONDS_BETWEEN_SIGNS", math.inf)


@pytest.fixture(scope="module")
def nothing_is_drawn() -> Iterator[None]:
    """It would take longer than everything else that a run at quick scale does."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(figures, "curves", lambda *arguments, **options: None)
        patch.setattr(figures, "save", lambda *arguments: [])
        yield


@pytest.fixture(scope="session")
def make_result() -> Callable[..., Result]:
    """A result from its curve; its epochs take 0.1, 0.2, 0.3, … seconds."""

    def make(losses: Sequence[float], errors: Sequence[float], steps_per_epoch: int = 5) -> Result:
        numbered = enumerate(zip(losses, errors, strict=True), start=1)
        epochs = [Epoch(number, loss, error, 0.1 * number) for number, (loss, error) in numbered]
        return Result(tuple(epochs), steps_per_epoch)

    return make


@pytest.fixture
def results(make_result) -> dict[str, list[Result]]:
    """Two seeds that learn, one of a pair that diverges, and one with an error of zero."""
    nan = float("nan")
    return {
        "plain": [
            make_result([2.3, nan], [0.9, 0.9]),
            make_result([2.3, 1.0, 0.5], [0.8, 0.4, 0.1]),
        ],
        "iternorm": [
            make_result([1.0, 0.1, 0.01], [0.2, 0.04, 0.02]),
            make_result([1.2, 0.2, 0.03], [0.3, 0.06, 0.04]),
        ],
        "dbn:group_size=32": [make_result([1.0, 0.1, 0.02], [0.1, 0.02, 0.0])],
    }


@pytest.fixture(scope="session")
def official() -> type[OfficialFiles]:
    """Small data sets in the formats of the official releases."""
    return OfficialFiles
