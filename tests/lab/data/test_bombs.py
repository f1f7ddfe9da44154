"""Small files that ask for much: memory, time or depth. Each is refused in one sentence."""

from __future__ import annotations

import gzip
import io
import pickle
import struct
import tarfile
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat

from isonorm.lab.data import DataError, load
from isonorm.lab.data.pickles import read_pickle

MEGABYTE = 1 << 20
#: Of memory: an archive's limit is that of the published one, 193 MB, of which one file is held.
MOST = 80 * MEGABYTE


@contextmanager
def little_memory(most: int = MOST) -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < most, f"{peak:,} bytes"


def refused(name: str, folder: Path) -> str:
    with little_memory(), pytest.raises(DataError) as caught:
        load(name, folder, verify=False)
    sentence = str(caught.value)
    assert "\n" not in sentence and sentence.endswith(".") and len(sentence) < 500
    return sentence


def doubled(times: int, last: bytes = b"K\x01") -> bytes:
    """A tuple of a tuple twice, and so on: small in memory, endless if walked through."""
    return last + b"".join(b"q%ch%c\x86" % (i, i) for i in range(times))


ENCODES_ONE_TEXT_OFTEN = (
    b"c_codecs\nencode\nq\x00X\x00\x00\x10\x00" + b"a" * MEGABYTE
    + b"X\x06\x00\x00\x00latin1\x86q\x01" + b"h\x00h\x01R" * 2000 + b"."
)  # fmt: skip


@pytest.mark.parametrize(
    "content",
    [
        b"Nr\x00\x00\x00\x40N0.",  # of nine bytes, as item 2^30 of the memo: 4.5 GB
        b"N" + b"r\xff\xff\xff\xff" + b".",
        b"B\xff\xff\xff\xffabc.",  # so many bytes, of which three are there
        b"\x8e" + b"\xff" * 7 + b"\x0f" + b"abc.",
        b"\x96" + struct.pack("<Q", 1 << 40) + b"abc.",
        b"X" + b"\xff\xff\xff\x7f" + b"abc.",
        b"\x8b" + b"\xff\xff\xff\x7f" + b"\x01.",
        b"(" * 20_000 + b"t" * 20_000 + b".",
        b"]" + b"](a" * 1000 + b".",
        b"}" + doubled(60) + b"K\x01s.",
        doubled(60) + doubled(60, b"N") + b"\x93.",
        b"c_codecs\nencode\n(X\x01\x00\x00\x00a" + doubled(60) + b"tR.",
        ENCODES_ONE_TEXT_OFTEN,
        b"cnumpy\ndtype\n(tR(K\x01tb.",
        b"I" + b"9" * 10_000 + b"\n.",
        b"0.", b"u.", b"e.", b"s.", b"R.", b"b.", b"h\x05.", b"\x94.", b"}q\x01h\x01h\x01s.",
    ],
    ids=lambda content: repr(content[:8]),
)  # fmt: skip
def test_pickles_take_memory_in_proportion_to_their_size(content):
    with little_memory(8 * MEGABYTE), pytest.raises(pickle.UnpicklingError) as caught:
        read_pickle(content)
    assert len(str(caught.value)) < 300 and "\n" not in str(caught.value)


def test_a_pickle_may_use_any_number_of_the_memo():
    assert read_pickle(b"}X\x01\x00\x00\x00ar\xfe\xff\xff\xffK\x07s.") == {"a": 7}


def test_pickles_of_every_protocol_are_read():
    values = {"a": [1, -2, 3.5, None, True, "ü", (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4), {"b": []}],
              "b": b"\x00\xff", "c": 2**70}  # fmt: skip
    for protocol in range(6):
        assert read_pickle(pickle.dumps(values, protocol)) == values


def test_labels_that_are_no_numbers_of_a_machine_are_refused(tmp_path):
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    for label, words in ((10**400, "a label of 1329 bits"), (True, "a list of n numbers")):
        batch = {"data": np.zeros((1, 3072), np.uint8), "labels": [label]}
        for name in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"):
            (folder / name).write_bytes(pickle.dumps(batch, protocol=2))
        assert words in refused("cifar10", tmp_path)


def test_names_in_a_pickle_reach_no_terminal(tmp_path):
    folder = tmp_path / "cifar-100-python"
    folder.mkdir()
    for name in ("train", "test"):
        (folder / name).write_bytes(pickle.dumps({"\x1b]0;owned\x07\n": 1}, protocol=2))
    assert refused("cifar100", tmp_path).isprintable()


@pytest.mark.parametrize("shape", [(20, 0, 0), (0, 28, 28)])
def test_idx_files_without_pixels_are_refused(official, tmp_path, shape):
    official.mnist(tmp_path)
    (tmp_path / "train-images-idx3-ubyte").write_bytes(struct.pack(">4I", 0x803, *shape))
    assert "elements, which are none" in refused("mnist", tmp_path)


def test_a_gzip_file_that_unpacks_to_more_than_the_published_is_refused(official, tmp_path):
    official.mnist(tmp_path, packed=True)
    bomb = gzip.compress(bytes(MEGABYTE))
    (tmp_path / "train-labels-idx1-ubyte.gz").write_bytes(bomb * 100)
    assert "unpacks to more than 60,008 bytes" in refused("mnist", tmp_path)


Fill = Callable[[tarfile.TarFile], None]


def archive(path: Path, fill: Fill) -> None:
    with tarfile.open(path, "w:gz") as file:
        fill(file)


def member(name: str, content: bytes = b"", **fields) -> tuple[tarfile.TarInfo, io.BytesIO]:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    for key, value in fields.items():
        setattr(info, key, value)
    return info, io.BytesIO(content)


def _links(to: str) -> Fill:
    def fill(file: tarfile.TarFile) -> None:
        for name, target in (("train.bin", to), ("test.bin", "train.bin")):
            file.addfile(member(name, type=tarfile.SYMTYPE, linkname=target)[0])

    return fill


def _terabyte(name: str) -> Fill:
    def fill(file: tarfile.TarFile) -> None:
        info, _ = member(name)
        info.size = 10**12
        file.fileobj.write(info.tobuf())
        file.offset += 512

    return fill


def _large(file: tarfile.TarFile) -> None:
    file.addfile(*member("train.bin", bytes(170 * MEGABYTE)))


def _many(file: tarfile.TarFile) -> None:
    for _ in range(5000):
        file.addfile(member("a")[0])


def _holes(file: tarfile.TarFile) -> None:
    pairs = {"GNU.sparse.map": "0,1", "GNU.sparse.size": "1000000000000"}
    info, content = member("train.bin", b"1", pax_headers=pairs)
    file.addfile(info, content)


@pytest.mark.parametrize(
    ("fill", "words"),
    [
        (_links("nothing"), "train.bin otherwise than as a plain file"),
        (_links("test.bin"), "train.bin otherwise than as a plain file"),
        (_terabyte("train.bin"), "more than 100 files or 193,048,576 bytes"),
        (_terabyte("else"), "more than 100 files or 193,048,576 bytes"),
        (_large, "train.bin otherwise than as a plain file of at most 160,000,000 bytes"),
        (_holes, "train.bin otherwise than as a plain file"),
        (_many, "more than 100 files"),
    ],
    ids=[
        "link to nothing",
        "circle of links",
        "terabyte",
        "terabyte of something else",
        "too large",
        "holes",
        "many",
    ],
)
def test_archives_that_are_none_of_cifars(fill, words, tmp_path):
    archive(tmp_path / "cifar-100-binary.tar.gz", fill)
    assert words in refused("cifar100", tmp_path)


def test_an_archive_that_unpacks_to_more_than_the_published_is_refused(official, tmp_path):
    official.cifar(tmp_path, classes=100, packed=True)
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes() + gzip.compress(bytes(MEGABYTE)) * 200)
    assert "unpacks to more than 193,048,576 bytes" in refused("cifar100", tmp_path)


def test_a_flipped_bit_in_an_archive_is_found_by_its_checksum(official, tmp_path):
    official.cifar(tmp_path, classes=100, packed=True)
    (path,) = tmp_path.iterdir()
    content = bytearray(gzip.decompress(path.read_bytes()))
    plain = bytearray(gzip.compress(content, compresslevel=0))
    plain[20_000] ^= 1  # of a pixel
    path.write_bytes(plain)
    assert "is not a whole .tar.gz archive (CRC check failed" in refused("cifar100", tmp_path)


def test_a_matrix_that_unpacks_to_more_than_the_published_is_refused(official, tmp_path):
    official.faces(tmp_path, "yaleb")
    path = tmp_path / "YaleB_32x32.mat"
    bomb = zlib.compress(bytes(100 * MEGABYTE), 1)
    path.write_bytes(path.read_bytes()[:128] + struct.pack("<II", 15, len(bomb)) + bomb)
    assert "unpacks to more than 95,698,944 bytes" in refused("yaleb", tmp_path)


CELLS = np.array([[np.eye(2)]], object)


@pytest.mark.parametrize("value", [CELLS, {"a": 1}, np.zeros((2, 6_000_000), np.uint8)])
def test_matrices_of_other_kinds_or_sizes_are_refused(value, tmp_path):
    savemat(tmp_path / "YaleB_32x32.mat", {"fea": value, "gnd": [[1.0]]}, do_compression=True)
    assert "holds fea as" in refused("yaleb", tmp_path)
