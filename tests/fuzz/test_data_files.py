"""Files of data sets with other content, in every reader of them."""

from __future__ import annotations

import gzip
import io
import pickle
import struct
import tarfile
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import hypothesis.strategies as st
import numpy as np
import torch
from hypothesis import assume, given
from scipy.io import savemat

from isonorm.lab.data import DataSet, imagenet, load
from isonorm.lab.data.pickles import read_pickle
from tests.fuzz.edits import BYTE_EDITS, JSON_EDITS, PLACE, Refused, answer, edit_json, edited
from tests.lab.conftest import OfficialFiles

Edits = list[tuple]
#: Each data set as it may lie in a folder.
FORMS: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "mnist": ("mnist", lambda at: OfficialFiles.mnist(at, train=6, test=4)),
    "mnist.gz": ("mnist", lambda at: OfficialFiles.mnist(at, train=6, test=4, packed=True)),
    "svhn": ("svhn", lambda at: OfficialFiles.svhn(at, train=5, test=5)),
    "yaleb": ("yaleb", lambda at: OfficialFiles.faces(at, "yaleb", each=4, dtype=float)),
    **{
        f"cifar{classes} {'binary' if binary else 'python'}{' packed' * packed}": (
            f"cifar{classes}",
            lambda at, c=classes, b=binary, p=packed: OfficialFiles.cifar(
                at, classes=c, train=5, test=3, binary=b, packed=p
            ),
        )
        for classes in (10, 100)
        for binary in (True, False)
        for packed in (True, False)
    },
}


@cache
def files_of(form: str) -> dict[str, bytes]:
    """Return the content of a form's files by their paths in the folder."""
    with tempfile.TemporaryDirectory() as folder:
        FORMS[form][1](Path(folder))
        paths = sorted(path for path in Path(folder).rglob("*") if path.is_file())
        return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def read(form: str, changed: dict[str, bytes]) -> DataSet | Refused:
    """Read a form's files, of which some have other content."""
    with tempfile.TemporaryDirectory() as folder:
        for name, content in (files_of(form) | changed).items():
            path = Path(folder) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        found = answer(lambda: load(FORMS[form][0], folder, verify=False))
        if isinstance(found, Refused):
            assert folder in found.sentence, found.sentence
        else:
            check_whole(found)
        return found


@cache
def whole(form: str) -> DataSet:
    return read(form, {})  # type: ignore[return-value]


def check_whole(data: DataSet) -> None:
    """Check that a data set is one that can be trained on."""
    for images, labels in (
        (data.train_images, data.train_labels),
        (data.test_images, data.test_labels),
    ):
        assert images.dtype == torch.uint8 and images.dim() == 4 and images.numel()
        assert labels.dtype == torch.int64 and labels.shape == images.shape[:1]
        assert labels.min() >= 0 and labels.max() < data.num_classes


def same(one: DataSet, other: DataSet) -> bool:
    return all(
        torch.equal(getattr(one, f"{part}_{kind}"), getattr(other, f"{part}_{kind}"))
        for part in ("train", "test")
        for kind in ("images", "labels")
    )


@given(form=st.sampled_from([*FORMS]), which=PLACE, edits=BYTE_EDITS, early=st.booleans())
def test_data_files(form, which, edits, early):
    """Attacks the readers by bytes: a whole data set or a sentence; the same one if packed with a
    checksum.
    """
    names = sorted(files_of(form))
    name = names[int(which * len(names))]
    found = read(form, {name: edited(files_of(form)[name], edits, early)})
    if not isinstance(found, Refused) and name.endswith(".gz"):
        assert same(found, whole(form))


@given(form=st.sampled_from([form for form in FORMS if form.endswith("packed")]),
       edits=BYTE_EDITS, early=st.booleans(), level=st.integers(0, 9))  # fmt: skip
def test_archives(form, edits, early, level):
    """Attacks the reader of archives by what is packed in them: headers, sizes, contents."""
    ((name, content),) = files_of(form).items()
    packed = gzip.compress(edited(gzip.decompress(content), edits, early), level)
    read(form, {name: packed})


KINDS = st.sampled_from([bytes([kind]) for kind in b"\x00012345675SxgLKZ"])
SIZES = st.one_of(st.none(), st.sampled_from([0, 1, 511, 10**6, 10**9, 10**12, 8**12 - 1]))
PAIRS = st.dictionaries(
    st.sampled_from(["size", "path", "linkpath", "mtime", "hdrcharset", "GNU.sparse.size",
                     "GNU.sparse.map", "GNU.sparse.major", "GNU.sparse.minor",
                     "GNU.sparse.realsize", "GNU.sparse.numblocks"]),
    st.sampled_from(["0", "1", "-1", "0,1", "1000000000000", "nan", "train.bin", "ü", "1,2,3"]),
    max_size=3,
)  # fmt: skip
MEMBERS = st.lists(st.tuples(st.integers(0, 3), KINDS, SIZES, PAIRS), max_size=6)


@given(members=MEMBERS)
def test_members(members):
    """Attacks the reader of archives by members of every kind: links, holes, terabytes."""
    form, file = "cifar100 binary packed", io.BytesIO()
    content = gzip.decompress(files_of(form)["cifar-100-binary.tar.gz"])
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        files = [archive.extractfile(member) for member in archive]
        pixels = [file.read() for file in files if file is not None]
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for number, kind, size, pairs in members:
            info = tarfile.TarInfo(["train.bin", "test.bin", "else", "d/train.bin"][number])
            held = pixels[number % 2]
            info.type, info.linkname, info.pax_headers = kind, "test.bin", pairs
            info.size = len(held)
            head = info.tobuf(tarfile.PAX_FORMAT)
            if size is not None:
                info.size = size
                head = info.tobuf(tarfile.GNU_FORMAT)
            file.write(head + held + bytes(-len(held) % 512))
            archive.offset = file.tell()
    read(form, {"cifar-100-binary.tar.gz": gzip.compress(file.getvalue())})


@given(protocol=st.integers(0, 5), edits=st.one_of(st.just([]), JSON_EDITS),
       form=st.sampled_from(["cifar10", "cifar100"]), by_columns=st.booleans())  # fmt: skip
def test_pickled_values(protocol, edits, form, by_columns):
    """Attacks the reader of pickles by values of other kinds, in pickles that are whole: what is
    read is what was written.
    """
    form, key = f"{form} python", "labels" if form == "cifar10" else "fine_labels"
    name = sorted(files_of(form))[0]
    content = pickle.loads(files_of(form)[name], encoding="bytes")
    content = {key.decode(): value for key, value in content.items()}
    if by_columns:
        content["data"] = np.asfortranarray(content["data"])
    content = edit_json(content, edits)
    found = read(form, {name: pickle.dumps(content, protocol)})
    if isinstance(found, Refused):
        assert edits or protocol == 5, found  # which has arrays in another way
        return
    images, labels = found.train_images, found.train_labels
    if "test" in name:
        images, labels = found.test_images, found.test_labels
    count = len(content[key])
    assert np.array_equal(images[:count].flatten(1), content["data"])
    assert labels[:count].tolist() == content[key]


OPCODES = st.sampled_from([
    b"(", b"}", b"]", b")", b"N", b"0", b"2", b"1", b"a", b"e", b"s", b"u", b"t", b"l", b"d",
    b"\x85", b"\x86", b"\x87", b"R", b"b", b"\x94", b"\x93", b"q\x01", b"h\x01",
    b"r\xff\xff\xff\x7f", b"p3\n", b"g3\n", b"K\x05", b"J\xff\xff\xff\xff",
    b"\x8a\x08" + b"\x7f" * 8, b"U\x02u1", b"X\x02\0\0\0ab", b"X\x06\0\0\0latin1",
    b"B\xff\xff\xff\x7f", b"\x8e" + b"\xff" * 8, b"\x96" + b"\0" * 8, b"I7\n",
    b"cnumpy\ndtype\n", b"cnumpy.core.multiarray\n_reconstruct\n", b"cnumpy\nndarray\n",
    b"c_codecs\nencode\n", b"cos\nsystem\n", b"\x95" + struct.pack("<Q", 5), b"\x80\x04", b".",
])  # fmt: skip


@given(program=st.lists(OPCODES, max_size=40), around=st.booleans())
def test_pickle_programs(program, around):
    """Attacks the reader of pickles by programs; what both it and Python's own read is the same."""
    content = b"".join([b"}U\x04data", *program, b"s."] if around else [*program, b"."])
    try:
        found = read_pickle(content)
    except pickle.UnpicklingError as error:
        assert len(str(error)) < 300
        return
    # Python's own takes memory for these, runs that, and checks frames, which this one ignores
    assume(not any(part in content for part in (b"\xff\xff\xff\x7f", b"system", b"\x95")))
    theirs = pickle.loads(content, encoding="bytes")
    keys = [key.decode() if isinstance(key, bytes) else key for key in theirs]
    assert [*found] == keys
    if b"c" not in content:
        assert repr([*found.values()]) == repr([*theirs.values()])


MATRICES = st.one_of(
    st.builds(np.zeros, st.lists(st.integers(0, 5), max_size=4).map(tuple),
              st.sampled_from([np.uint8, float, np.int32, complex, bool])),
    st.sampled_from([np.full((4, 1024), 255.0), np.full((4, 1024), np.nan), "text", {"a": 1},
                     np.array([[1.0], [1e308], [np.inf], [-1]]), np.ones((4, 1))]),
)  # fmt: skip


@given(pictures=MATRICES, labels=MATRICES, compressed=st.booleans(),
       edits=st.one_of(st.just([]), BYTE_EDITS), early=st.booleans())  # fmt: skip
def test_matrices(pictures, labels, compressed, edits, early):
    """Attacks the reader of MATLAB files by matrices of other kinds, shapes and values."""
    file = io.BytesIO()
    savemat(file, {"fea": pictures, "gnd": labels}, do_compression=compressed)
    read("yaleb", {"YaleB_32x32.mat": edited(file.getvalue(), edits, early)})


@cache
def picture(kind: str) -> bytes:
    image = pillow_image()
    file = io.BytesIO()
    image.effect_noise((40, 30), 50).convert("RGB").save(file, kind)
    return file.getvalue()


def pillow_image() -> Any:
    import pytest

    return pytest.importorskip("PIL.Image")


@given(kind=st.sampled_from(["JPEG", "PNG"]), edits=BYTE_EDITS, early=st.booleans(),
       seed=st.one_of(st.none(), st.integers(0, 5)))  # fmt: skip
def test_images(kind, edits, early, seed):
    """Attacks the reader of images by bytes: pixels, or a sentence that names the file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "image"
        path.write_bytes(edited(picture(kind), edits, early))
        chance = None if seed is None else Random(seed)
        found = answer(lambda: imagenet.decode(str(path), 8, chance))
        if isinstance(found, Refused):
            assert str(path) in found.sentence
        else:
            assert found.shape == (3, 8, 8) and found.dtype == torch.uint8
