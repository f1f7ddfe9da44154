"""Figures on dark screens."""

from __future__ import annotations

import base64
import re
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure

from isonorm.analysis.plots.style import _LOOKS, _OTHER_COLORS, ramp
from isonorm.lab.pages import pictures
from isonorm.lab.pages.markup import element
from tests.lab.pages.helpers import Parsed


def luminance(color: str) -> float:
    """WCAG 2's relative luminance."""
    shares = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [s / 12.92 if s <= 0.04045 else ((s + 0.055) / 1.055) ** 2.4 for s in shares]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize(
    "color", [*(look[0] for look in _LOOKS.values()), *_OTHER_COLORS, *ramp(7), "#333333"]
)
def test_lines_stand_out_from_dark_paper(color):
    assert contrast(pictures.dark(color), pictures.dark("#ffffff")) >= 3.0


def test_a_ramp_stays_in_order_on_dark_paper():
    lights = [luminance(pictures.dark(color)) for color in ramp(7)]
    assert lights == sorted(lights)


def test_every_color_of_a_drawing_has_one_for_the_dark():
    figure = Figure()
    figure.subplots().plot([1, 2], color="#0072B2")
    uri = pictures.of_figure(figure)
    text = base64.b64decode(uri.removeprefix("data:image/svg+xml;base64,")).decode()
    ElementTree.fromstring(text)  # well formed
    used = set(re.findall(r"var\((--c[0-9a-f]{6}), #", text))
    assert {"--cffffff", "--c0072b2"} <= used
    rule = re.search(r"prefers-color-scheme: dark\) \{ svg \{(.*?)\}", text)
    assert rule and used == set(re.findall(r"(--c[0-9a-f]{6}):", rule[1]))


def test_a_drawing_of_very_many_points_becomes_a_png():
    figure = Figure()
    figure.subplots().scatter(range(4000), range(4000))
    assert pictures.of_figure(figure).startswith("data:image/png;base64,")


def test_what_is_no_svg_is_refused():
    with pytest.raises(ValueError, match="not an SVG"):
        pictures.of_svg("<html></html>")


@given(
    st.text(st.characters(exclude_categories=["Cs", "Cc"])), st.text(st.sampled_from("<>&\"' ;a"))
)
def test_text_comes_out_of_markup_as_it_went_in(text, attribute):
    page = Parsed(element("p", text, element("b", attribute), title=attribute))
    assert page.elements == [("p", {"title": attribute}), ("b", {})]
    assert page.texts == [text + attribute, attribute]
