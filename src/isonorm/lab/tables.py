"""The results of a run as a table, from what ``result.json`` says: for the terminal, for pages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from .claims import MEASURES, PERCENT, in_words
from .summary import Estimate

#: What every table of trainings shows.
_USUAL = ("train_loss", "train_error", "test_error")
#: What a comparison is made for, where units suit it: heading, factor and decimals.
_COMPARED = {
    "epochs_to_threshold": ("epochs to {:g}%", 1.0, 1),
    "seconds_per_step": ("ms per step", 1e3, 2),
    "peak_bytes": ("peak MB", 1e-6, 2),
}


class Tabulated(NamedTuple):
    """Cells by row; the first ``words`` columns are words, the others numbers."""

    headings: list[str]
    rows: list[list[str]]
    words: int


def tabulate(content: Mapping[str, Any]) -> Tabulated:
    """A row for each configuration: mean ± spread or median and quartiles, then the paper's."""
    rows = content["summary"]
    quartiles = content.get("spread") == "median"
    searched = any(row.get("setting") for row in rows)
    shown = shown_measures(content)
    papers = {key for row in rows for key in row.get("paper", {})}
    first = "norm" if content.get("comparison") else "configuration"
    headings = [first, *["chosen"] * searched]
    for key in shown:
        headings += [_heading(content, key), *["paper"] * (key in papers)]
    lines = []
    for row in rows:
        line = [row["configuration"], *[row.get("setting", "")] * searched]
        for key in shown:
            line.append(estimate_text(content, row, key, quartiles=quartiles))
            line += [papers_number(row, key)] * (key in papers)
        lines.append(line)
    return Tabulated(headings, lines, words=1 + searched)


def shown_measures(content: Mapping[str, Any]) -> list[str]:
    """Those everybody looks at, those the paper speaks of, and those only this kind of run has."""
    rows = content["summary"]
    usual = ("train_loss", "test_error", *_COMPARED) if content.get("comparison") else _USUAL
    spoken_of = set(usual)
    spoken_of.update(claim.get("measure") for claim in content.get("claims", ()))
    spoken_of.update(key for row in rows for key in row.get("paper", {}))
    measured = [
        key
        for key in dict.fromkeys([*usual, *(key for row in rows for key in row)])
        if has_number(content, key)
        or (key == "epochs_to_threshold" and key in rows[0])  # that none reached it is a result
    ]
    wanted = [key for key in measured if key in spoken_of or key not in MEASURES]
    return wanted or measured


def estimate_text(
    content: Mapping[str, Any], row: Mapping[str, Any], key: str, *, quartiles: bool = False
) -> str:
    """A number over seeds, in percent where it is a fraction of the images."""
    found = row.get(key)
    if not isinstance(found, Mapping):
        return "–"
    estimate, decimals = Estimate(**found), None
    if key in PERCENT:
        estimate, decimals = estimate.scaled(100), 2
    elif content.get("comparison") and key in _COMPARED:
        _, factor, decimals = _COMPARED[key]
        estimate = estimate.scaled(factor)
    missing = "not reached" if key.startswith("epochs_to") else "–"
    if _diverged(content, row["configuration"]):
        missing = "diverged"
    elif key == "condition_number" and _looks_at_condition(content, row["configuration"]):
        missing = "∞"  # which JSON cannot say: the matrix is singular, as with dead features
    return estimate.text(missing, decimals=decimals, quartiles=quartiles)


def _heading(content: Mapping[str, Any], key: str) -> str:
    if not content.get("comparison") or key not in _COMPARED:
        return in_words(key)
    return _COMPARED[key][0].format(100 * content["comparison"].get("threshold", 0))


def has_number(content: Mapping[str, Any], key: str) -> bool:
    """Whether a configuration has this measure, with one of its seeds at least."""
    found = [row.get(key) for row in content.get("summary", ())]
    return any(isinstance(one, Mapping) and one.get("mean") is not None for one in found)


def papers_number(row: Mapping[str, Any], key: str) -> str:
    """As the paper has it; "" where it has none."""
    number = row.get("paper", {}).get(key)
    if number is None:
        return ""
    return f"{number:.3e}" if number >= 1e4 else f"{number:g}"


def _diverged(content: Mapping[str, Any], configuration: str) -> bool:
    runs = [run for run in content.get("runs", ()) if run.get("name") == configuration]
    return bool(runs) and all(run.get("diverged") for run in runs)


def _looks_at_condition(content: Mapping[str, Any], configuration: str) -> bool:
    trained = [row for row in content.get("trained", ()) if row["configuration"] == configuration]
    return any("condition_every" in row.get("training", "") for row in trained)
