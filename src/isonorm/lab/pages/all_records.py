"""One page of everything on record, paper by paper, and what is not on record yet."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from matplotlib import rc_context

from ...analysis.plots.style import STYLE
from ..ledger import Entry, Ledger, recorded, showing
from ..papers import Exhibit, Paper
from ..studies import STUDIES
from . import benchmarks, parts, pictures, run
from .markup import Markup, element, join


def document(ledger: Ledger) -> str:
    title = "The papers, run again"
    return parts.page(
        f"isonorm: {title}",
        parts.header(title, "isonorm · records", parts.paragraph(tally(ledger)), _how()),
        _contents(ledger),
        *(_paper(ledger, paper) for paper in ledger.papers()),
        _benchmarks(ledger),
    )


def _how() -> Markup:
    return parts.paragraph(
        "A run that ",
        element("code", "isonorm run"),
        " has finished becomes a record by ",
        element("code", "isonorm record RUN"),
        ", a study by ",
        element("code", "isonorm analyze NAME --out records/analysis"),
        ". What is not on record yet stands here with its command.",
        class_="soft",
    )


def tally(ledger: Ledger) -> str:
    """All verdicts in a sentence."""
    entries = [entry for found in ledger.entries.values() for entry in found]
    there = recorded(entries)
    answers = [claim.answer for entry in there for claim in entry.claims]
    count = {answer: answers.count(answer) for answer in ("holds", "fails", "undecided")}
    return (
        f"{len(there)} of {len(entries)} recipes and studies are on record. Of the "
        f"{len(answers)} claims they were made to check, {count['holds']} hold, {count['fails']} "
        f"fail and {count['undecided']} are undecided."
    )


def _contents(ledger: Ledger) -> Markup:
    lines = [parts.link(paper.heading, paper.key) for paper in ledger.papers()]
    if ledger.benchmarks:
        lines.append(parts.link("Benchmarks of speed, memory and cost", "benchmarks"))
    return element("nav", parts.items(lines), aria_label="Contents")


def _paper(ledger: Ledger, paper: Paper) -> Markup:
    exhibits = list(ledger.of_paper(paper))
    return parts.section(
        paper.heading,
        parts.paragraph(paper.where, class_="soft") if paper.where else "",
        parts.table(
            "Figures, tables and sections of the paper, and their state",
            ["where", "shows", "claims"],
            (line for exhibit, found in exhibits for line in _lines(exhibit, found)),
            words=3,
        ),
        *(_entry(exhibit, entry) for exhibit, found in exhibits for entry in recorded(found)),
        anchor=paper.key,
    )


def _lines(exhibit: Exhibit, found: Sequence[Entry]) -> Iterator[list[str]]:
    if not found:
        yield [exhibit.label, exhibit.remark or "not to be run yet", ""]
    for entry in found:
        state = parts.badge(entry.answer, entry.counts)
        if entry.content is None:
            command = element("code", entry.command)
            yield [exhibit.label, parts.lines(entry.title, command), state]
        else:
            yield [exhibit.label, parts.link(entry.title, anchor(entry)), state]


def anchor(entry: Entry) -> str:
    return f"{entry.kind}-{entry.name}"


def _entry(exhibit: Exhibit, entry: Entry) -> Markup:
    assert entry.content is not None
    with showing(entry.path, entry.name):
        body = list(_run(entry) if entry.kind == "recipe" else _study(entry))
    title = f"{exhibit.label}: {entry.title}"
    return parts.section(title, *body, anchor=anchor(entry), level=3)


def _run(entry: Entry) -> Iterator[Markup]:
    content = entry.content or {}
    yield parts.paragraph(run.when(content), class_="soft")
    for caveat in entry.caveats:
        yield parts.paragraph(caveat, class_="note")
    yield from run.findings(content, pictures.of_files(entry.path.parent), level=4)
    yield parts.details("How it was made", *run.particulars(content, level=4))


def _study(entry: Entry) -> Iterator[Markup]:
    content = entry.content or {}
    with rc_context(STYLE):
        drawn = STUDIES[entry.name].draw(content)
    yield parts.figure(pictures.of_figure(drawn), f"Figure: {entry.title}", entry.title)
    yield parts.verdicts(entry.claims)
    found = {
        "command": element("code", content["command"]),
        "made": content["made"].replace("T", " ")[:16],
        "seconds": f"{content['seconds']:.0f}",
        "sizes": join([f"{key} {value}" for key, value in content.get("config", {}).items()], "; "),
        **run.environment(content["environment"]),
    }
    yield parts.details("How it was made", parts.facts(found))


def _benchmarks(ledger: Ledger) -> Markup:
    if not ledger.benchmarks:
        return Markup("")
    sections = []
    for path, content in ledger.benchmarks.items():
        with showing(path, path.stem):
            sections.append(benchmarks.section(path.stem, content, f"benchmark-{path.stem}"))
    return parts.section("Benchmarks of speed, memory and cost", *sections, anchor="benchmarks")
