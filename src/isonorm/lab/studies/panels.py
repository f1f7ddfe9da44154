"""A figure of panels side by side."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure


def panels(count: int, title: str, height: float = 3.1, width: float = 4.2) -> tuple[Figure, Any]:
    figure = Figure(figsize=(width * count, height), layout="constrained")
    figure.suptitle(title, x=0.01, ha="left", fontsize=8.5, color="0.35")
    return figure, figure.subplots(1, count, squeeze=False)[0]
