"""The table of results in the README: written from the records, never by hand."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ..claims import in_words
from ..ledger import Entry, Ledger, recorded, showing
from ..output import visible
from ..tables import estimate_text, papers_number, shown_measures
from .all_records import tally
from .parts import write

BEGIN, END = "<!-- results -->", "<!-- /results -->"
#: Configurations whose numbers a line of the table has room for.
_MOST_NUMBERS = 4


def rewrite(readme: Path, ledger: Ledger) -> None:
    """The text between the two markers anew, everything else as it was."""
    text = readme.read_text(encoding="utf-8")
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{readme} has no place for results: put {BEGIN} and {END} into it.")
    between = table(ledger, readme.resolve().parent)
    write(readme, f"{before}{BEGIN}\n\n{between}\n{END}{after}")


def table(ledger: Ledger, root: Path) -> str:
    """What is on record as a table in Markdown, with links from the folder ``root``."""
    rows = []
    for paper in ledger.papers():
        for exhibit, found in ledger.of_paper(paper):
            for entry in recorded(found):
                where = quote(os.path.relpath(entry.path.resolve(), root).replace(os.sep, "/"))
                shows = f"[{_plain(entry.title)}]({where})"
                with showing(entry.path, entry.name):
                    numbers = _plain("; ".join(_numbers(entry)))
                rows.append([f"{paper.short}, {exhibit.label}", shows, entry.counts, numbers])
    headings = ["paper", "shows", "claims", "key numbers (the paper's)"]
    if not any(row[-1] for row in rows):
        headings, rows = headings[:-1], [row[:-1] for row in rows]
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join([tally(ledger), "", *(f"| {' | '.join(line)} |" for line in lines), ""])


def _numbers(entry: Entry) -> Iterator[str]:
    """Of each configuration the number the paper gives, too, or else the test error."""
    content: Mapping[str, Any] = entry.content or {}
    rows = content.get("summary", ())
    if not rows:
        return
    told = [row for row in rows if row.get("paper")]
    measure = next(iter(told[0]["paper"])) if told else "test_error"
    if measure not in shown_measures(content):
        return
    for i, row in enumerate((told or rows)[:_MOST_NUMBERS]):
        number = estimate_text(content, row, measure, quartiles=content.get("spread") == "median")
        papers = papers_number(row, measure)
        beside = f" ({papers})" if papers else ""
        name = f"{in_words(measure)}: " * (i == 0)
        yield f"{name}{row['configuration']} {number}{beside}"
    if len(told or rows) > _MOST_NUMBERS:
        yield "…"


def _plain(text: str) -> str:
    r"""Return text that stays text in Markdown: in one line, without markup of its own.

    >>> print(_plain("a|b <b> *c*"))
    a\|b &lt;b&gt; \*c\*
    """
    text = escape(visible(text), quote=False)
    return re.sub(r"([\\|\[\]`*_~])", r"\\\1", text)
