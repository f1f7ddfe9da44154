"""Figures as data URIs: drawn for white paper, and still readable on a dark screen."""

from __future__ import annotations

import base64
import colorsys
import io
import re
from pathlib import Path

from matplotlib import rc_context
from matplotlib.figure import Figure

from ...analysis.plots.style import STYLE

#: An SVG with more than this, of thousands of points, is larger than its PNG and slow to show.
MOST_SVG_BYTES = 300_000

_COLOR = re.compile(r"#[0-9a-fA-F]{6}\b")
#: What becomes of black and of white on a dark screen; greys lie between.
_DARK_OF_BLACK, _DARK_OF_WHITE = (0xE6, 0xE8, 0xEB), (0x1B, 0x1F, 0x24)


def of_files(folder: Path) -> dict[str, str]:
    """Stem → data URI of every figure in a folder: the SVG, or the PNG where there is no small one.

    A path that cannot be read raises OSError.
    """
    found: dict[str, str] = {}
    for path in sorted(folder.glob("*.png")):
        found[path.stem] = of_png(path.read_bytes())
    for path in sorted(folder.glob("*.svg")):
        if path.stat().st_size <= MOST_SVG_BYTES or path.stem not in found:
            found[path.stem] = of_svg(path.read_text(encoding="utf-8"))
    return dict(sorted(found.items()))


def of_figure(figure: Figure) -> str:
    """matplotlib's figure."""
    with rc_context(STYLE):
        drawn = io.BytesIO()
        figure.savefig(drawn, format="svg", metadata={"Date": None})
        if len(drawn.getvalue()) <= MOST_SVG_BYTES:
            return of_svg(drawn.getvalue().decode())
        drawn = io.BytesIO()
        figure.savefig(drawn, format="png", dpi=130)
        return of_png(drawn.getvalue())


def of_png(content: bytes) -> str:
    return _data_uri("image/png", content)


def of_svg(text: str) -> str:
    """The drawing, which changes its colors where the screen is dark.

    Its white paper is turned round with the ink, so that a browser which does not tell pictures
    about dark screens shows it as it was drawn.
    """
    colors = sorted({color.lower() for color in _COLOR.findall(text)})
    changed = " ".join(f"--c{color[1:]}: {dark(color)};" for color in colors)
    changed += f" fill: {dark('#000000')};"  # what names no color is black
    rule = f"@media screen and (prefers-color-scheme: dark) {{ svg {{ {changed} }} }}"
    text = _COLOR.sub(lambda match: f"var(--c{match[0][1:].lower()}, {match[0]})", text)
    start = re.search(r"<svg\b[^>]*>", text)
    if start is None:
        raise ValueError("this is not an SVG: it has no <svg> element.")
    text = f"{text[: start.end()]}<style>{rule}</style>{text[start.end() :]}"
    return _data_uri("image/svg+xml", text.encode())


def dark(color: str) -> str:
    """What a color becomes on a dark screen: greys are turned round, dark colors lightened.

    >>> dark("#000000"), dark("#ffffff"), dark("#f0e442"), dark("#0072b2")
    ('#e6e8eb', '#1b1f24', '#f0e442', '#009df6')
    """
    red, green, blue = (int(color[i : i + 2], 16) for i in (1, 3, 5))
    if red == green == blue:
        share = red / 255
        mixed = [
            (1 - share) * black + share * white
            for black, white in zip(_DARK_OF_BLACK, _DARK_OF_WHITE, strict=True)
        ]
    else:
        hue, lightness, saturation = colorsys.rgb_to_hls(red / 255, green / 255, blue / 255)
        lighter = max(lightness, 0.44 + 0.12 * lightness)  # the same where it is 0.5, and no less
        mixed = [255 * channel for channel in colorsys.hls_to_rgb(hue, lighter, saturation)]
    return "#" + "".join(f"{round(channel):02x}" for channel in mixed)


def _data_uri(kind: str, content: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"
