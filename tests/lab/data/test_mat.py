"""The reader of MATLAB files, beside scipy's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.io import loadmat, savemat

from isonorm.lab.data.files import DataError
from isonorm.lab.data.mat import read_matrices

KINDS = ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f4", "f8"]
SHAPES = [(0, 3), (1, 1), (2, 3), (4, 5, 3, 2)]


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_matrices_are_those_that_scipy_reads(kind: str, compressed: bool, tmp_path: Path) -> None:
    path = tmp_path / "some.mat"
    draw = np.random.default_rng(0).uniform
    matrices = {f"m{i}": draw(0, 120, shape).astype(kind) for i, shape in enumerate(SHAPES)}
    savemat(path, matrices, do_compression=compressed)
    expected, read = loadmat(path), read_matrices(path, *matrices, most=120, itemsize=8)
    for name, found in zip(matrices, read, strict=True):
        assert found.dtype == expected[name].dtype
        np.testing.assert_array_equal(found, expected[name])


@pytest.mark.parametrize("compressed", [False, True])
def test_a_changed_byte_is_read_or_refused(compressed: bool, tmp_path: Path) -> None:
    """Where the type of a matrix's numbers was changed, scipy's reader ended the process."""
    path = tmp_path / "some.mat"
    savemat(path, {"m": np.array([[1.0, 1e308, np.inf, -1.0]])}, do_compression=compressed)
    whole = path.read_bytes()
    refused = 0
    for place in range(128, len(whole)):
        for byte in (0, 10, 255):
            path.write_bytes(whole[:place] + bytes([byte]) + whole[place + 1 :])
            try:
                (found,) = read_matrices(path, "m", most=1000, itemsize=8)
            except DataError as error:
                refused += 1
                assert str(error).startswith(f"{path} ") and "\n" not in str(error)
            else:
                assert found.size <= 1000
    assert refused > 50
