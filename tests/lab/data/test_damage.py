"""Files that are missing, cut short or foreign are answered in one sentence."""

from __future__ import annotations

import gzip
import os
import pickle
import tarfile

import numpy as np
import pytest
from scipy.io import savemat

from isonorm.lab.data import DataError, load
from isonorm.lab.data.pickles import ForbiddenName, read_pickle


def refused(name, folder, *, verify=False) -> str:
    with pytest.raises(DataError) as caught:
        load(name, folder, verify=verify)
    sentence = str(caught.value)
    assert "\n" not in sentence and str(folder) in sentence and sentence.endswith(".")
    return sentence


@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("mnist", ["train-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"]),
        ("cifar10", ["cifar-10-binary.tar.gz", "cifar-10-batches-py/", "--download"]),
        ("cifar100", ["cifar-100-python.tar.gz", "cifar-100-binary/"]),
        ("svhn", ["train_32x32.mat", "test_32x32.mat"]),
        ("svhn_extra", ["extra_32x32.mat"]),
        ("yaleb", ["YaleB_32x32.mat"]),
        ("pie", ["PIE_32x32.mat"]),
    ],
)
def test_missing_files_are_named(tmp_path, name, files):
    sentence = refused(name, tmp_path)
    assert sentence.startswith(f"{name} was not found in {tmp_path}")
    assert all(file in sentence for file in files)
    assert ("--download" in sentence) == (name not in ("yaleb", "pie"))


def test_files_are_fetched_to_where_they_were_missing(tmp_path, monkeypatch):
    elsewhere = tmp_path / "my data"
    assert f"'isonorm data mnist --download --folder '{elsewhere}''." in refused("mnist", elsewhere)
    monkeypatch.setenv("ISONORM_DATA", str(elsewhere))
    assert "'isonorm data mnist --download'." in refused("mnist", elsewhere)


def test_a_folder_without_one_of_the_files_says_which(official, tmp_path):
    official.mnist(tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte").unlink()
    assert "(no t10k-labels-idx1-ubyte.gz)" in refused("mnist", tmp_path)


@pytest.mark.parametrize("keep", [0, 3, 10, -1])
def test_idx_cut_short(official, tmp_path, keep):
    official.mnist(tmp_path)
    file = tmp_path / "train-images-idx3-ubyte"
    file.write_bytes(file.read_bytes()[:keep])
    expected = "20 × 28 × 28 = 15680" if keep == -1 else "not an IDX file of unsigned bytes"
    assert expected in refused("mnist", tmp_path)


def test_idx_of_another_kind_or_number(official, tmp_path):
    official.mnist(tmp_path)
    images, labels = (tmp_path / f"train-{kind}-ubyte" for kind in ("images-idx3", "labels-idx1"))
    whole = labels.read_bytes()
    labels.write_bytes(images.read_bytes())
    assert "of rank 1: it begins with 00 00 08 03" in refused("mnist", tmp_path)
    labels.write_bytes(whole[:7] + b"\x05" + whole[8:13])
    assert "holds 20 images" in refused("mnist", tmp_path)
    labels.write_bytes(whole[:-1] + b"\x0b")
    assert "holds the label 11 where whole numbers from 0 to 9" in refused("mnist", tmp_path)


def test_gzip_cut_short_or_foreign(official, tmp_path):
    official.mnist(tmp_path, packed=True)
    file = tmp_path / "train-images-idx3-ubyte.gz"
    file.write_bytes(file.read_bytes()[:-100])
    assert "train-images-idx3-ubyte.gz is not a whole gzip file" in refused("mnist", tmp_path)
    file.write_text("<html>404</html>")
    assert "is not a whole gzip file" in refused("mnist", tmp_path)


def test_wrong_checksums_are_refused_before_anything_is_read(official, tmp_path):
    official.mnist(tmp_path, packed=True)
    official.cifar(tmp_path, packed=True)
    official.svhn(tmp_path)
    for name, file, md5 in (
        ("mnist", "train-images-idx3-ubyte.gz", "f68b3c2dcbeaaa9fbdd348bbdeb94873"),
        ("cifar10", "cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530"),
        ("svhn", "train_32x32.mat", "e26dedcc434d2e4c54c9b2d4a06d8373"),
    ):
        sentence = refused(name, tmp_path, verify=True)
        assert f"{file} is not the published file" in sentence and f"expected {md5}" in sentence


def test_binary_cifar_cut_short(official, tmp_path):
    official.cifar(tmp_path)
    file = tmp_path / "cifar-10-batches-bin" / "data_batch_2.bin"
    content = file.read_bytes()
    file.write_bytes(content[:-1])
    assert "data_batch_2.bin has 12291 bytes, not a multiple of the 3073" in refused(
        "cifar10", tmp_path
    )
    file.write_bytes(content[:-3073])
    assert "hold 4, 3, 4, 4, 4 images where equal numbers" in refused("cifar10", tmp_path)
    file.write_bytes(b"")
    assert "has 0 bytes" in refused("cifar10", tmp_path)
    file.write_bytes(b"\x0c" + content[1:])
    assert "holds the label 12 where whole numbers from 0 to 9" in refused("cifar10", tmp_path)


@pytest.mark.parametrize("binary", [False, True])
def test_archives_cut_short_foreign_or_incomplete(official, tmp_path, binary):
    official.cifar(tmp_path, classes=100, binary=binary, packed=True)
    (archive,) = tmp_path.iterdir()
    archive.write_bytes(archive.read_bytes()[:-1000])
    assert f"{archive} is not a whole .tar.gz archive" in refused("cifar100", tmp_path)
    archive.write_bytes(gzip.compress(b"something else" * 100))
    assert "is not a whole .tar.gz archive" in refused("cifar100", tmp_path)
    with tarfile.open(archive, "w:gz") as empty:
        empty.addfile(tarfile.TarInfo("readme.txt"))
    assert "lacks test" in refused("cifar100", tmp_path)


def cifar_pickle(tmp_path, content: bytes):
    folder = tmp_path / "cifar-100-python"
    folder.mkdir(exist_ok=True)
    for name in ("train", "test"):
        (folder / name).write_bytes(content)
    return refused("cifar100", tmp_path)


def test_pickles_cut_short_or_foreign(official, tmp_path):
    good = official._cifar_pickle(*official.random(5, (3, 32, 32), 100), 100)
    assert "was not read as a CIFAR pickle" in cifar_pickle(tmp_path, good[:-1000])
    assert "was not read as a CIFAR pickle" in cifar_pickle(tmp_path, b"")
    assert "holds a list, not a dictionary" in cifar_pickle(tmp_path, pickle.dumps([1]))
    assert "'fine_labels', a list of n numbers; it has labels" in cifar_pickle(
        tmp_path, pickle.dumps({"labels": [1]})
    )
    doubles = pickle.dumps({"data": np.zeros((5, 3072)), "fine_labels": [0] * 5}, protocol=2)
    assert "elements are not unsigned bytes" in cifar_pickle(tmp_path, doubles)
    few = pickle.dumps({"data": np.zeros((4, 3072), np.uint8), "fine_labels": [0] * 5}, protocol=2)
    assert "expected 'data', n × 3072 bytes" in cifar_pickle(tmp_path, few)


class Malicious:
    """Creates a file when it is unpickled by a reader that trusts it."""

    def __init__(self, victim, function=os.mkdir):
        self.victim, self.function = victim, function

    def __reduce__(self):
        return self.function, (str(self.victim),)


@pytest.mark.parametrize("protocol", range(6))
def test_malicious_pickles_run_nothing(tmp_path, protocol):
    victim = tmp_path / "created"
    bomb = pickle.dumps({"data": Malicious(victim)}, protocol)
    sentence = cifar_pickle(tmp_path, bomb)
    assert f"it asks for {os.mkdir.__module__}.mkdir" in sentence
    assert not victim.exists()
    pickle.loads(bomb)
    assert victim.exists(), "the pickle must be dangerous for the test to mean anything"


@pytest.mark.parametrize(
    "name", ["builtins.eval", "numpy.load", "numpy.dtype.__class__", "_codecs.decode", "os.system"]
)
def test_only_what_arrays_need_can_be_named(name):
    module, _, attribute = name.partition(".")
    program = f"c{module}\n{attribute}\n.".encode()
    with pytest.raises(ForbiddenName, match=name):
        read_pickle(program)


def test_arrays_by_columns_keep_their_order():
    array = np.asfortranarray(np.arange(6, dtype=np.uint8).reshape(2, 3))
    for protocol in (0, 1, 2, 3, 4):
        read = read_pickle(pickle.dumps({"a": array}, protocol))["a"]
        np.testing.assert_array_equal(read, array)


@pytest.mark.parametrize("name", ["svhn", "yaleb"])
def test_matlab_files_cut_short_or_foreign(official, tmp_path, name):
    official.svhn(tmp_path) if name == "svhn" else official.faces(tmp_path, name)
    file = tmp_path / ("train_32x32.mat" if name == "svhn" else "YaleB_32x32.mat")
    whole = file.read_bytes()
    for length in (0, 50, 200, len(whole) // 2, len(whole) - 10):
        file.write_bytes(whole[:length])
        assert file.name in refused(name, tmp_path)
    file.write_text("this is not MATLAB " * 100)
    assert "was not read as a MATLAB file" in refused(name, tmp_path)
    savemat(file, {"something": np.zeros(3)})
    assert "lacks the matrix" in refused(name, tmp_path)


def test_matlab_files_of_version_7_3_are_refused(tmp_path):
    header = b"MATLAB 7.3 MAT-file, Platform: GLNXA64".ljust(512) + b"\x89HDF\r\n\x1a\n"
    (tmp_path / "PIE_32x32.mat").write_bytes(header)
    assert "MATLAB 7.3 file, which is HDF5 inside: save it again" in refused("pie", tmp_path)


def test_matrices_of_other_shapes_are_refused(tmp_path):
    savemat(tmp_path / "YaleB_32x32.mat", {"fea": np.zeros((5, 4096)), "gnd": np.ones((5, 1))})
    assert "it has float64 5 × 4096 and 5" in refused("yaleb", tmp_path)
    savemat(tmp_path / "YaleB_32x32.mat", {"fea": np.full((5, 1024), 0.5), "gnd": np.ones((5, 1))})
    assert "whole numbers from 0 to 255" in refused("yaleb", tmp_path)
    savemat(tmp_path / "YaleB_32x32.mat", {"fea": np.zeros((5, 1024)), "gnd": np.zeros((5, 1))})
    assert "the label 0.0 where whole numbers from 1 to 38" in refused("yaleb", tmp_path)
    savemat(tmp_path / "YaleB_32x32.mat", {"fea": np.zeros((5, 1024)), "gnd": np.full(5, 1.5)})
    assert "the label 1.5 where whole numbers from 1 to 38" in refused("yaleb", tmp_path)
    savemat(tmp_path / "YaleB_32x32.mat", {"fea": np.zeros((5, 1024)), "gnd": np.full(5, np.inf)})
    assert "the label inf where whole numbers from 1 to 38" in refused("yaleb", tmp_path)
    savemat(tmp_path / "YaleB_32x32.mat", {"fea": np.zeros((5, 1024)), "gnd": np.array(["a"] * 5)})
    assert "holds gnd as char of 5 × 1" in refused("yaleb", tmp_path)
    savemat(
        tmp_path / "train_32x32.mat", {"X": np.zeros((4, 4, 3, 5), np.uint8), "y": np.ones((5, 1))}
    )
    assert "it has uint8 4 × 4 × 3 × 5 and 5" in refused("svhn", tmp_path)


def test_a_pickle_as_python_2_wrote_it_is_read():
    """The opcodes of the official files: byte strings (U, T) that python 3 no longer writes."""
    pixels = bytes([9, 8, 7, 200, 255, 0])
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
        b"(K\x01K\x02K\x03\x86cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R"
        b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89"
        b"T" + len(pixels).to_bytes(4, "little") + pixels + b"tb"
    )
    batch = read_pickle(b"\x80\x02}(U\x04data" + array + b"U\x06labels](K\x06K\x09eu.")
    assert batch["labels"] == [6, 9]
    np.testing.assert_array_equal(batch["data"], [[9, 8, 7], [200, 255, 0]])
