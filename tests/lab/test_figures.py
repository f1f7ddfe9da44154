from __future__ import annotations

import numpy as np
import pytest
from matplotlib.image import imread

from isonorm.lab import figures


def test_lines_are_means_and_bands_hold_every_seed(results):
    loss, error = figures.curves(results, "title", threshold=0.95).axes
    plain, iternorm, _ = loss.lines
    np.testing.assert_allclose(iternorm.get_ydata(), [1.1, 0.15, 0.02])
    np.testing.assert_allclose(plain.get_ydata(), [2.3, np.nan, np.nan])
    band = loss.collections[1].get_paths()[0].vertices
    assert (band[:, 1].min(), band[:, 1].max()) == (0.01, 1.2)
    # The first line of this panel marks the threshold.
    np.testing.assert_allclose(error.lines[2].get_ydata(), [25, 5, 3])
    assert error.lines[0].get_ydata()[0] == pytest.approx(5)
    assert [text.get_text() for text in error.texts] == ["95%\ncorrect"]


def test_no_threshold_no_mark(results):
    _, error = figures.curves(results, "title").axes
    assert len(error.lines) == len(results) and not error.texts


def test_legend_names_every_norm_and_tells_who_diverged(results):
    figure = figures.curves(results, "title")
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["plain (1 of 2 diverged)", "iternorm", "dbn:group_size=32"]


def test_no_two_norms_look_alike(results):
    names = [
        "plain",
        "batchnorm",
        "dbn",
        "iternorm",
        *(f"dbn:group_size={n}" for n in range(1, 11)),
    ]
    looks = figures.looks(names)
    assert len(set(looks)) == len(names)
    assert figures.looks(["iternorm"]) == [looks[3]], "a norm keeps its look in every comparison"


def test_png_and_svg_are_written_and_are_the_same_every_time(results, tmp_path):
    contents = []
    for folder in (tmp_path / "a", tmp_path / "b"):
        folder.mkdir()
        paths = figures.save(figures.curves(results, "title"), folder, "curves")
        assert sorted(folder.iterdir()) == paths == [folder / "curves.png", folder / "curves.svg"]
        contents.append([path.read_bytes() for path in paths])
    assert contents[0] == contents[1]
    pixels = imread(paths[0])
    assert pixels.shape[1] > 1500
    blue = np.array([0x00, 0x72, 0xB2]) / 255  # the solid line of iternorm
    assert (np.abs(pixels[..., :3] - blue).max(axis=-1) < 0.01).sum() > 500
    assert contents[0][1].startswith(b"<?xml") and contents[0][1].rstrip().endswith(b"</svg>")
