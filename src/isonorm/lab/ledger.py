"""What is on record: every recipe and study of the papers, with its record if there is one."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from .papers import PAPERS, Exhibit, Paper
from .recipes import all_recipes, command_for
from .records import NOT_AS_WRITTEN, Damaged
from .rejudge import current_run, is_current, rejudged
from .run_files import RESULT
from .studies import STUDIES

STUDIES_FOLDER = "analysis"

#: What a record must hold to be shown.
_OF_RUN = ("claims", "configurations", "scale")
_OF_STUDY = ("claims", "command", "made", "seconds", "environment")


class Judged(NamedTuple):
    """A claim with its verdict."""

    text: str
    answer: str
    evidence: str = ""


@dataclass(frozen=True)
class Entry:
    """A recipe or a study."""

    kind: Literal["recipe", "study"]
    name: str
    title: str
    command: str  # that would make its record
    path: Path  # of the record's JSON, be it there or not
    content: dict[str, Any] | None

    @property
    def claims(self) -> list[Judged]:
        if self.content is None:
            return []
        if self.kind == "recipe":
            return [
                Judged(c["claim"], c["answer"], c.get("evidence", ""))
                for c in self.content["claims"]
            ]
        return [
            Judged(c["sentence"], "holds" if c["holds"] else "fails")
            for c in self.content["claims"]
        ]

    @property
    def answer(self) -> str:
        """The worst of its verdicts."""
        if self.content is None:
            return "not recorded"
        found = {claim.answer for claim in self.claims}
        return next(
            (word for word in ("fails", "undecided", "not measured") if word in found), "holds"
        )

    @property
    def counts(self) -> str:
        """In words: "all 4 hold", "3 of 4 hold, 1 undecided"."""
        claims = self.claims
        found = Counter(claim.answer for claim in claims)
        if not claims:
            return "no claims" if self.content else "not recorded"
        if found["holds"] == len(claims):
            return {1: "holds", 2: "both hold"}.get(len(claims), f"all {len(claims)} hold")
        words = {"fails": "fail" if found["fails"] > 1 else "fails"}
        others = [
            f"{found[answer]} {words.get(answer, answer)}"
            for answer in ("fails", "undecided", "not measured")
            if found[answer]
        ]
        return ", ".join([f"{found['holds']} of {len(claims)} hold", *others])

    @property
    def caveats(self) -> list[str]:
        """In what the record falls short of the recipe as it is now."""
        if self.kind != "recipe" or self.content is None:
            return []
        found, only = [], self.content.get("only", ())
        recipe = all_recipes()[self.name]
        if only:
            part = f"{len(self.content['configurations'])} of {len(recipe.configurations)}"
            found.append(f"Recorded in part: {part} configurations ({'; '.join(only)}).")
        if not is_current(recipe, self.content):
            found.append(
                "The recipe is defined otherwise now than when this was recorded, and the verdicts "
                "are those of then."
            )
        return found


@dataclass(frozen=True)
class Ledger:
    """All entries by name, and the benchmarks' records by their files."""

    entries: dict[str, list[Entry]]  # a recipe and a study may share a name: one figure
    benchmarks: dict[Path, dict[str, Any]]

    def papers(self) -> Iterator[Paper]:
        """The papers, then by its recipes' word for it each that the list does not know yet."""
        yield from PAPERS
        keys = dict.fromkeys(
            entry.name.partition("-")[0]
            for found in self.entries.values()
            for entry in found
            if entry.kind == "recipe"
        )
        known = {paper.key for paper in PAPERS}
        yield from (Paper(key, key, "", "", ()) for key in keys if key not in known)

    def of_paper(self, paper: Paper) -> Iterator[tuple[Exhibit, list[Entry]]]:
        """Each exhibit in the paper's order with what makes it, then what the list of exhibits
        does not know yet.
        """
        known = {name for each in PAPERS for exhibit in each.exhibits for name in exhibit.made_by}
        for exhibit in paper.exhibits:
            found = [e for name in exhibit.made_by for e in self.entries.get(name, ())]
            yield exhibit, found
        for name, found in self.entries.items():
            if name.startswith(f"{paper.key}-") and name not in known:
                yield Exhibit(name.removeprefix(f"{paper.key}-"), (name,)), found


def read(folder: Path) -> Ledger:
    """The ledger of a folder of records."""
    if not folder.is_dir():
        raise ValueError(f"there is no folder {folder}: name the one with the records.")
    entries: dict[str, list[Entry]] = {}
    for name, recipe in all_recipes().items():
        path = folder / name / RESULT
        content = _read(path, *_OF_RUN)
        entry = Entry("recipe", name, recipe.title, command_for(recipe), path, content)
        if content is not None:
            with showing(entry.path, entry.name):
                run = current_run(recipe, content, path.parent)
                entry = replace(entry, content=rejudged(content, run))
        entries.setdefault(name, []).append(entry)
    for name, study in STUDIES.items():
        path = folder / STUDIES_FOLDER / f"{name}.json"
        command = f"isonorm analyze {name} --out records/{STUDIES_FOLDER} --figures docs/figures"
        entries.setdefault(name, []).append(
            Entry("study", name, study.title, command, path, _read(path, *_OF_STUDY))
        )
    benchmarks = {path: content for path in sorted(folder.glob("*.json"))
                  if (content := _read(path)) is not None}  # fmt: skip
    for entry in recorded([entry for found in entries.values() for entry in found]):
        with showing(entry.path, entry.name):
            _ = entry.counts, entry.caveats
    return Ledger(entries, benchmarks)


@contextmanager
def showing(path: Path, name: str) -> Iterator[None]:
    """Refuse in one sentence JSON of another kind, which the block meets in a record of a name."""
    try:
        yield
    except Damaged:
        raise
    except (*NOT_AS_WRITTEN, RuntimeError) as error:  # RuntimeError: torch, of what is no array
        reason = f"{type(error).__name__}: {error}"
        raise Damaged(f"{path} is not a record of {name} ({reason:.200}).") from error


def recorded(found: Sequence[Entry]) -> list[Entry]:
    return [entry for entry in found if entry.content is not None]


def _read(path: Path, *needed: str) -> dict[str, Any] | None:
    """The content, None where there is no such file."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise ValueError(f"{path} is not a record: it does not hold JSON.") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} is not a record: it does not hold a JSON object.")
    for key in needed:
        if key not in content:
            raise ValueError(f"{path} is not a record: it says nothing about {key}.")
    return content
