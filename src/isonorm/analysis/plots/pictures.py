"""Normalization in the plane: the papers' illustrations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from matplotlib.axes import Axes
from torch import Tensor, nn
from torch.nn.functional import conv2d, pad

from .._state import in_training
from .style import ACCENT, INK, PALE, axes_of, styled


@styled
def cloud(
    population: Tensor, point: Sequence[float], outputs: Tensor, *, ax: Axes | None = None
) -> Axes:
    """One point among (M, 2) others, and where (s, 2) batches put it (IterNorm Fig. 2)."""
    ax = _plane(axes_of(ax))
    _scatter(ax, population, color=PALE, s=2, label="samples")
    _scatter(ax, outputs, color=INK, s=22, marker="+", linewidths=0.8, label="normalized x")
    _scatter(ax, torch.tensor([list(point)]), color=ACCENT, s=40, marker="x", label="x", zorder=4)
    ax.legend(fontsize=8, loc="lower left", handletextpad=0.2)
    return ax


@styled
def whitening(
    norm: nn.Module | Callable[..., Any] | None, x: Tensor, *, ax: Axes | None = None
) -> Axes:
    """What a norm makes of (M, 2) points, with the eigenvectors of the result, as long as its
    standard deviations (IterNorm Fig. 1); None shows the points themselves.
    """
    ax = _plane(axes_of(ax))
    y = x if norm is None else in_training(norm)(x).detach()
    _scatter(ax, y, color=PALE, s=2)
    values, vectors = torch.linalg.eigh(torch.cov(y.T))
    for color, value, vector in zip((ACCENT, INK), values, vectors.T, strict=True):
        _arrow(ax, vector * value.sqrt() * 2, color)
    return ax


@styled
def axis_swap(
    norm: nn.Module | Callable[..., Any], shared: Tensor, others: Tensor, *, ax: Axes | None = None
) -> Axes:
    """The same (R, 2) points normalized in the company of (M, 2) others (DBN Fig. 1).

    Drawn twice with other company it shows whether the axes stay: the shared points are numbered by
    darkness.
    """
    ax = _plane(axes_of(ax))
    y = in_training(norm)(torch.cat([shared, others])).detach()
    _scatter(ax, y[len(shared) :], color=ACCENT, s=8, alpha=0.5, linewidths=0, label="others")
    order = torch.linspace(0.25, 1, len(shared)).tolist()
    _scatter(ax, y[: len(shared)], c=order, cmap="Blues", vmin=0, vmax=1, s=26, label="the same")
    return ax


@styled
def kernel_balance(image: Tensor, kernels: Tensor, *, ax: Axes | None = None) -> Axes:
    """What the positive and the negative weights of 3 × 3 kernels contribute in total to the
    output of a cyclic convolution of an (H, W) image, raw and equilibrated (EquiNorm Fig. 1):
    always the same, plus and minus the number of output positions, H·W.
    """
    ax = axes_of(ax)
    rows = [(*contributions(image, k), *contributions(image, equilibrated(image, k)))
            for k in kernels]  # fmt: skip
    at = range(len(rows))
    for shift, first, color, label in ((-0.2, 0, PALE, "raw"), (0.2, 2, INK, "equilibrated")):
        x = [i + shift for i in at]
        ax.bar(x, [row[first] for row in rows], width=0.36, color=color, label=label)
        ax.bar(x, [row[first + 1] for row in rows], width=0.36, color=color, hatch="///",
               edgecolor="white", linewidth=0)  # fmt: skip
    ax.axhline(0, color="0.4", linewidth=0.7)
    ax.set_xticks(list(at), [str(i + 1) for i in at])
    ax.set_xlabel("kernel (hatched: its negative weights)")
    ax.set_ylabel("total contribution")
    ax.legend(fontsize=8)
    return ax


def equilibrated(image: Tensor, kernel: Tensor) -> Tensor:
    """w″ = s(w + b) for one channel (EquiNorm Section 4): b = −mean w, s = r/(v·w′⁺)."""
    centered = kernel - kernel.mean()
    return centered * (image.numel() / (image.sum() * centered.clamp(min=0).sum()))


def contributions(image: Tensor, kernel: Tensor) -> tuple[float, float]:
    margin = kernel.shape[-1] // 2
    cyclic = pad(image[None, None], (margin,) * 4, mode="circular")
    parts = torch.stack([kernel.clamp(min=0), kernel.clamp(max=0)])[:, None]
    positive, negative = conv2d(cyclic, parts).sum((0, 2, 3)).tolist()
    return positive, negative


def _plane(ax: Axes) -> Axes:
    ax.set_aspect("equal")
    return ax


def _scatter(ax: Axes, points: Tensor, **how: Any) -> None:
    ax.scatter(points[:, 0].tolist(), points[:, 1].tolist(), **how)


def _arrow(ax: Axes, vector: Tensor, color: str) -> None:
    ax.annotate(
        "", xy=(vector[0].item(), vector[1].item()), xytext=(0, 0),
        arrowprops={"arrowstyle": "-|>", "color": color, "lw": 1.6, "shrinkA": 0, "shrinkB": 0},
    )  # fmt: skip
