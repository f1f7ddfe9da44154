"""Bars that can be read."""

from __future__ import annotations

from itertools import pairwise

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from isonorm.lab.measuring.figure import bars
from isonorm.lab.measuring.words import Measured
from isonorm.lab.recipes import all_recipes

RECIPE = all_recipes()["iternorm2019-cost"]


@pytest.mark.parametrize("ratio", [1.0, 1.3, 4.0, 16.0, 50.0, 1e3, 1e6])
def test_the_numbers_of_the_axis_do_not_overlap(ratio):
    names = [layer.name for layer in RECIPE.configurations]
    values = [3e4 * ratio ** (i / (len(names) - 1)) for i in range(len(names))]
    found = {
        name: [Measured({RECIPE.measures[0]: value}, error=0.0)]
        for name, value in zip(names, values, strict=True)
    }
    figure = bars(RECIPE, found)  # type: ignore[arg-type]
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    (axes,) = figure.axes
    low, high = axes.get_xlim()
    ticks = [*axes.xaxis.get_major_ticks(), *axes.xaxis.get_minor_ticks()]
    labels = [tick.label1 for tick in ticks if low <= tick.get_loc() <= high]
    boxes = [text.get_window_extent(canvas.get_renderer()) for text in labels if text.get_text()]
    boxes.sort(key=lambda box: box.x0)
    assert boxes
    assert all(one.x1 < other.x0 for one, other in pairwise(boxes))
