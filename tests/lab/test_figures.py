from __future__ import annotations

import numpy as np
import pytest
from matplotlib.image import imread

from isonorm.lab import figures
from isonorm.lab.train import Epoch, Result


def test_lines_are_means_and_bands_hold_every_seed(results):
    loss, error = figures.curves(results, "title", threshold=0.95).axes
    plain, iternorm, _ = loss.lines
    np.testing.assert_allclose(iternorm.get_ydata(), [1.1, 0.15, 0.02])
    np.testing.assert_allclose(plain.get_ydata(), [2.3, np.nan, np.nan])
    band = loss.collections[1].get_paths()[0].vertices
    assert (band[:, 1].min(), band[:, 1].max()) == (0.01, 1.2)
    # The last line of this panel marks the threshold.
    np.testing.assert_allclose(error.lines[1].get_ydata(), [25, 5, 3])
    assert error.lines[-1].get_ydata()[0] == pytest.approx(5)
    assert [text.get_text() for text in error.texts] == ["95%\ncorrect"]


def test_no_threshold_no_mark(results):
    _, error = figures.curves(results, "title").axes
    assert len(error.lines) == len(results) and not error.texts


def run_of(*epochs: tuple[float, float]) -> Result:
    """One training by its losses and condition numbers."""
    return Result(
        tuple(
            Epoch(number, loss, 0.5, seconds=1.0, condition_number=condition)
            for number, (loss, condition) in enumerate(epochs, 1)
        ),
        steps_per_epoch=1,
    )


def test_condition_numbers_have_a_panel_with_the_epochs_that_have_one():
    trained = run_of((1.0, np.nan), (0.5, 100.0), (0.2, np.nan), (0.1, 10.0))
    *_, panel = figures.curves({"BN": [trained]}, "title").axes
    assert panel.get_title(loc="left") == "Condition number"
    np.testing.assert_allclose(panel.lines[0].get_xydata(), [[2, 100], [4, 10]])


def test_condition_numbers_that_are_infinite_are_told_in_words():
    conditioned, never = run_of((1.0, 10.0), (0.5, np.inf)), run_of((1.0, np.inf), (0.5, np.inf))
    results = {"BN": [conditioned], "plain": [never], "LN": [run_of((1.0, np.nan), (0.5, np.nan))]}
    *_, panel = figures.curves(results, "title").axes
    assert [text.get_text() for text in panel.texts] == ["∞: plain"]


def test_medians_and_quartiles_end_only_where_seeds_that_diverge_make_them_infinite():
    learns = [run_of(*[(loss, np.nan)] * 3) for loss in (1.0, 2.0, 3.0, 4.0, 5.0)]
    diverges = [run_of((9.0, np.nan), (np.nan, np.nan))] * 3
    results = {
        f"{lost} of 5": [*learns[: 5 - lost], *diverges[:lost]]
        for lost in range(1, len(diverges) + 1)
    }
    figure = figures.curves(results, "title", spread="median")
    assert figure.get_suptitle() == "title (line: median, band: quartiles)"
    loss, _ = figure.axes
    lines = [line.get_ydata() for line in loss.lines]
    np.testing.assert_array_equal(lines, [[3, 3, 3], [3, 3, 3], [9, np.nan, np.nan]])
    bands = [
        np.concatenate([path.vertices for path in band.get_paths()]) for band in loss.collections
    ]
    assert [band[:, 0].max() for band in bands] == [3, 1, 1]
    assert (bands[0][:, 1].min(), bands[0][:, 1].max()) == (2, 4)


def test_a_condition_number_that_was_measured_once_can_be_seen():
    trained = run_of((1.0, 100.0), (0.5, np.nan))
    loss, _, panel = figures.curves({"BN": [trained]}, "title").axes
    assert panel.lines[0].get_marker() == "o" and loss.lines[0].get_marker() == ""


@pytest.mark.parametrize("spread", ["mean", "median"])
def test_between_infinite_condition_numbers_is_a_gap_and_what_is_alone_there_is_a_point(spread):
    numbers = (5.0, np.nan, np.inf, 7.0, np.inf, 8.0, 9.0)
    trained = run_of(*((1.0, number) for number in numbers))
    *_, panel = figures.curves({"BN": [trained] * 2}, "title", spread=spread).axes
    (line,) = panel.lines
    np.testing.assert_array_equal(line.get_xdata(), [1, 3, 4, 5, 6, 7])
    np.testing.assert_array_equal(line.get_ydata(), [5, np.nan, 7, np.nan, 8, 9])
    assert line.get_marker() == "o"
    np.testing.assert_array_equal(line.get_markevery(), [True, False, True, False, False, False])


def test_a_loss_that_explodes_leaves_the_picture():
    calm, explodes = ((2.0, np.nan), (0.1, np.nan)), ((3.0, np.nan), (1e30, np.nan))
    loss, _ = figures.curves({"a": [run_of(*calm)], "b": [run_of(*explodes)]}, "title").axes
    low, high = loss.get_ylim()
    assert low < 0.1 and high == 30
    ticks = [tick for tick in loss.yaxis.get_majorticklocs() if low < tick < high]
    assert 2 <= len(ticks) <= 9


def test_legend_names_every_norm_and_tells_who_diverged(results):
    figure = figures.curves(results, "title")
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["plain (1 of 2 diverged)", "iternorm", "dbn:group_size=32"]


def test_parts_of_an_experiment_have_a_row_each():
    """With epochs of their own, and one look for each norm."""
    long, short = run_of(*[(1.0, np.nan)] * 200), run_of(*[(0.5, np.nan)] * 2)
    results = {"BN, full batch": [long], "DBN, full batch": [long], "BN, batch 2": [short]}
    diverged = Result((*short.epochs, Epoch(3, np.nan, 0.9, seconds=1.0)), steps_per_epoch=1)
    figure = figures.curves(results | {"DBN, batch 2": [short, diverged]}, "title")
    loss, _, small_loss, small_error = figure.axes
    assert loss.get_title(loc="left") == "Train loss, full batch"
    assert small_error.get_title(loc="left") == "Test error, batch 2"
    assert loss.get_xlim()[1] > 200 and 3 < small_loss.get_xlim()[1] < 4
    for above, below in zip(loss.lines, small_loss.lines, strict=True):
        assert above.get_color() == below.get_color()
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["BN", "DBN (batch 2: 1 of 2 diverged)"]


@pytest.mark.parametrize("names", [("BN", "BN, mixup"), ("a, x", "b, y"), ("a, x", "b, x")])
def test_other_names_share_one_row(names):
    figure = figures.curves({name: [run_of((1.0, np.nan))] for name in names}, "title")
    assert len(figure.axes) == 2
    assert tuple(text.get_text() for text in figure.legends[0].get_texts()) == names


def test_the_papers_names_look_as_the_norms_do():
    assert figures.looks(["BN", "IterNorm"]) == figures.looks(["batchnorm", "iternorm"])
    first, second = figures.looks(["BN", "BatchNorm"])
    assert first != second


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
