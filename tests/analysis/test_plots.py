"""Figures show the numbers they are given, on the axes they are given."""

from __future__ import annotations

import matplotlib
import pytest
import torch
from matplotlib.figure import Figure

import isonorm
from isonorm.analysis import plots
from isonorm.analysis.curvature import Density
from isonorm.analysis.plots.pictures import contributions, equilibrated
from isonorm.analysis.plots.style import ramp

matplotlib.use("Agg")

POINTS = torch.randn(30, 2)
DENSITY = Density(torch.linspace(-1, 1, 20), torch.rand(20), 0.1)
DRAWINGS = {
    "sweep": lambda ax: plots.sweep(
        {"dbn": ([2, 4], [1.0, 2.0], [0.1, 0.1])}, xlabel="d", ylabel="SND", ax=ax
    ),
    "spectrum": lambda ax: plots.spectrum(torch.tensor([3.0, 2.0, 1.0]), ax=ax),
    "spectra": lambda ax: plots.spectrum({"dbn": torch.ones(3), "other": torch.ones(3)}, ax=ax),
    "density": lambda ax: plots.density(DENSITY, ax=ax),
    "densities": lambda ax: plots.density({"dbn": DENSITY, "iternorm": DENSITY}, ax=ax),
    "convergence": lambda ax: plots.convergence(torch.tensor([3.0, 1.0]), ax=ax),
    "singular values": lambda ax: plots.singular_values({"dbn": torch.rand(9)}, ax=ax),
    "history": lambda ax: plots.history(
        [{"step": s, "layer": n, "snd": 1.0 + s} for s in (0, 10) for n in "ab"], "snd", ax=ax
    ),
    "cloud": lambda ax: plots.cloud(POINTS, (1.0, 1.0), POINTS[:5], ax=ax),
    "whitening": lambda ax: plots.whitening(isonorm.DBN(2), POINTS, ax=ax),
    "axis swap": lambda ax: plots.axis_swap(isonorm.DBN(2), POINTS[:9], POINTS[9:], ax=ax),
    "kernel balance": lambda ax: plots.kernel_balance(
        torch.rand(3, 3), torch.randn(2, 3, 3), ax=ax
    ),
}


@pytest.mark.parametrize("name", DRAWINGS)
def test_axes_in_axes_out_in_the_houses_style(name, tmp_path):
    given = Figure().subplots()
    assert DRAWINGS[name](given) is given
    assert given.has_data()
    given.figure.savefig(tmp_path / "figure.png")
    before = dict(matplotlib.rcParams)
    ax = DRAWINGS[name](None)
    assert ax.has_data() and not ax.spines["top"].get_visible()
    assert dict(matplotlib.rcParams) == before
    matplotlib.pyplot.close(ax.figure)


def test_lines_are_the_numbers():
    ax = DRAWINGS["sweep"](Figure().subplots())
    assert ax.lines[0].get_ydata().tolist() == [1.0, 2.0]
    assert ax.get_xscale() == ax.get_yscale() == "log" and ax.get_xlabel() == "d"
    ax = DRAWINGS["history"](Figure().subplots())
    assert [line.get_label() for line in ax.lines] == ["a", "b"]
    assert ax.lines[0].get_ydata().tolist() == [1.0, 11.0]


def test_looks_differ_without_color():
    known = plots.looks(["plain", "batchnorm", "dbn", "iternorm"])
    assert len({str(dashes) for _, dashes in known}) == 4
    assert len({color for color, _ in known}) == 4
    assert len(set(ramp(6))) == 6


def test_equilibrated_kernels_contribute_alike():
    """EquiNorm Section 4: plus and minus r = H·W whatever the kernel."""
    image = torch.rand(5, 4, dtype=torch.float64)
    for kernel in torch.randn(5, 3, 3, dtype=torch.float64):
        plus, minus = contributions(image, equilibrated(image, kernel))
        assert plus == pytest.approx(20) and minus == pytest.approx(-20)
