"""Numbers along an axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter
from torch import Tensor

from ..axes import newton_convergence
from ..curvature import Density
from .style import INK, axes_of, looks, ramp, styled

_MARKERS = "osD^vPX"


@styled
def sweep(
    curves: Mapping[str, tuple[Sequence[float], Sequence[float], Sequence[float]]],
    *,
    xlabel: str,
    ylabel: str,
    log_y: bool = True,
    styles: Sequence[tuple[str, Any]] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Name → (x, mean, spread), as over dimensions or batch sizes: a line with marks, the spread a
    band. x is in powers of two.
    """
    ax = axes_of(ax)
    dress = styles or looks(list(curves))
    for i, ((name, (x, mean, spread)), (color, dashes)) in enumerate(
        zip(curves.items(), dress, strict=True)
    ):
        marker = _MARKERS[i % len(_MARKERS)]
        ax.plot(x, mean, label=name, color=color, linestyle=dashes, marker=marker, markersize=3.5)
        low, high = ([m + s * e for m, e in zip(mean, spread, strict=True)] for s in (-1, 1))
        ax.fill_between(x, low, high, color=color, alpha=0.15, linewidth=0)
    ax.set_xscale("log", base=2)
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    if log_y:
        ax.set_yscale("log")
        ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        ax.yaxis.set_minor_formatter(NullFormatter())
    ax.set_xlabel(xlabel)
    ax.set_ylabel(ylabel)
    ax.legend(handlelength=3, fontsize=8)
    return ax


@styled
def spectrum(
    eigenvalues: Tensor | Mapping[str, Tensor],
    *,
    ylabel: str = "eigenvalue of Σ",
    ax: Axes | None = None,
) -> Axes:
    """Eigenvalues in their order, of one or of several named activations."""
    ax = axes_of(ax)
    several = eigenvalues if isinstance(eigenvalues, Mapping) else {"": eigenvalues}
    for (name, values), (color, dashes) in zip(several.items(), looks(list(several)), strict=True):
        rank = range(1, len(values) + 1)
        color = color if name else INK
        ax.plot(rank, values.tolist(), label=name, color=color, linestyle=dashes)
    ax.set_yscale("log")
    ax.set_xlabel("rank")
    ax.set_ylabel(ylabel)
    if isinstance(eigenvalues, Mapping):
        ax.legend(handlelength=3, fontsize=8)
    return ax


@styled
def density(
    densities: Density | Mapping[str, Density], *, floor: float = 1e-6, ax: Axes | None = None
) -> Axes:
    """The density of a curvature's eigenvalues, one or several; what is below ``floor`` is cut."""
    ax = axes_of(ax)
    several = densities if isinstance(densities, Mapping) else {"": densities}
    for (name, found), (color, dashes) in zip(several.items(), looks(list(several)), strict=True):
        color = color if name else INK
        ax.plot(found.grid.tolist(), found.density.clamp(min=floor).tolist(), label=name,
                color=color, linestyle=dashes, linewidth=1.3)  # fmt: skip
    ax.set_yscale("log")
    ax.set_ylim(bottom=floor * 2)
    ax.set_xlabel("eigenvalue")
    ax.set_ylabel("density")
    if isinstance(densities, Mapping):
        ax.legend(handlelength=3, fontsize=8)
    return ax


@styled
def convergence(eigenvalues: Tensor, num_iters: int = 10, *, ax: Axes | None = None) -> Axes:
    """How IterNorm's steps bring each eigendirection to 1; a darker line is a larger eigenvalue."""
    ax = axes_of(ax)
    steps = newton_convergence(eigenvalues, num_iters)
    order = eigenvalues.argsort(descending=True).tolist()
    for i, color in zip(order, ramp(len(order)), strict=True):
        share = (eigenvalues[i] / eigenvalues.sum()).item()
        ax.plot(range(num_iters + 1), steps[:, i].tolist(), color=color, label=f"{share:.1%}")
    ax.set_xlabel("Newton steps T")
    ax.set_ylabel("variance of the output")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    if len(order) <= 8:
        ax.legend(title="share of tr Σ", fontsize=8, title_fontsize=8)
    return ax


@styled
def singular_values(values: Mapping[str, Tensor], *, ax: Axes | None = None) -> Axes:
    """The distribution of Jacobians' singular values: their share below each size."""
    ax = axes_of(ax)
    for (name, found), (color, dashes) in zip(values.items(), looks(list(values)), strict=True):
        ordered = found.flatten().sort().values
        share = [(i + 1) / len(ordered) for i in range(len(ordered))]
        ax.plot(ordered.tolist(), share, label=name, color=color, linestyle=dashes)
    ax.set_xscale("log")
    ax.axvline(1, color="0.45", linewidth=0.7, zorder=1)
    ax.set_xlabel("singular value of the Jacobian")
    ax.set_ylabel("share below")
    ax.legend(handlelength=3, fontsize=8)
    return ax


@styled
def history(
    records: Sequence[Mapping[str, Any]],
    quantity: str = "condition_number",
    *,
    ax: Axes | None = None,
) -> Axes:
    """What a :class:`~isonorm.analysis.Monitor` has seen, layer by layer, against steps."""
    ax = axes_of(ax)
    layers = list(dict.fromkeys(record["layer"] for record in records))
    for layer, color in zip(layers, ramp(len(layers)), strict=True):
        own = [r for r in records if r["layer"] == layer and r.get(quantity) is not None]
        ax.plot([r["step"] for r in own], [r[quantity] for r in own], color=color, label=layer)
    ax.set_yscale("log")
    ax.set_xlabel("step")
    ax.set_ylabel(quantity.replace("_", " "))
    if len(layers) <= 10:
        ax.legend(fontsize=7)
    return ax
