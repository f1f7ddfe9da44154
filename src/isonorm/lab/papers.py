"""The papers, with every figure and table they have, in their order."""

from __future__ import annotations

from typing import NamedTuple


class Exhibit(NamedTuple):
    """A figure, a table or a section: the recipes and studies that make it again, or why none."""

    label: str
    made_by: tuple[str, ...] = ()
    remark: str = ""


class Paper(NamedTuple):
    key: str  # with which the names of its recipes and studies begin
    short: str
    title: str
    where: str
    exhibits: tuple[Exhibit, ...]

    @property
    def heading(self) -> str:
        return f"{self.short}: {self.title}" if self.title else self.short


def _numbered(key: str, kind: str, label: str, *numbers: str) -> tuple[Exhibit, ...]:
    return tuple(Exhibit(f"{label} {number}", (f"{key}-{kind}{number}",)) for number in numbers)


_ITERNORM, _DBN, _EQUINORM, _SURVEY = "iternorm2019", "dbn2018", "equinorm2018", "survey2020"

PAPERS = (
    Paper(
        _ITERNORM,
        "IterNorm",
        "Iterative Normalization: Beyond Standardization towards Efficient Whitening",
        "Huang, Zhou, Zhu, Liu, Shao; CVPR 2019",
        (
            Exhibit("Section 3.1", (f"{_ITERNORM}-section3.1",)),
            *_numbered(_ITERNORM, "fig", "Figure", *"1234567"),
            Exhibit("Figure 8", remark="the curves of Table 1's trainings"),
            *_numbered(_ITERNORM, "table", "Table", *"123"),
            Exhibit("Section 3.3, cost", (f"{_ITERNORM}-cost",)),
            Exhibit("Section 4.1, SND", ("snd-batchnorm",)),
            Exhibit("Supplement, Figure 1", (f"{_ITERNORM}-supp-fig1",)),
            Exhibit("Supplement, Figure 2", (f"{_ITERNORM}-supplement-fig2",)),
            Exhibit("Supplement, Table 1", (f"{_ITERNORM}-supp-table1",)),
            Exhibit("Supplement, time of VGG", (f"{_ITERNORM}-supp-time",)),
            Exhibit("Supplement, Table 2", remark="a network, isonorm.lab.models has it: vgg"),
        ),
    ),
    Paper(
        _DBN,
        "DBN",
        "Decorrelated Batch Normalization",
        "Huang, Yang, Lang, Deng; CVPR 2018",
        (
            *_numbered(_DBN, "fig", "Figure", "1", "2", "3"),
            Exhibit("Section 3.5", (f"{_DBN}-section3.5",)),
            *_numbered(_DBN, "fig", "Figure", "4", "5", "6"),
            *_numbered(_DBN, "table", "Table", "1"),
            Exhibit("Table 2", (f"{_DBN}-table2", f"{_DBN}-table2-cifar100")),
            *_numbered(_DBN, "table", "Table", "3"),
            Exhibit("Appendix B, cost", (f"{_DBN}-cost",)),
            *(Exhibit(f"Table B.{i}", (f"{_DBN}-tableB{i}",)) for i in (1, 2, 3, 4)),
        ),
    ),
    Paper(
        _EQUINORM,
        "EquiNorm",
        "Controlling Covariate Shift using Equilibrium Normalization of Weights",
        "2018",
        _numbered(_EQUINORM, "fig", "Figure", "1", "2", "3", "4a", "4b", "4c", "4d"),
    ),
    Paper(
        _SURVEY,
        "Survey",
        "Normalization Techniques in Training DNNs: Methodology, Analysis and Application",
        "Huang, Qin, Zhou, Zhu, Liu, Shao; 2020",
        (
            Exhibit("Criteria", (f"{_SURVEY}-criteria",)),
            Exhibit("Scales", (f"{_SURVEY}-scales",)),
            Exhibit("Hessian", (f"{_SURVEY}-hessian",)),
        ),
    ),
)
