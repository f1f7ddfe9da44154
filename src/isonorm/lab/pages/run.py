"""The page of one run, from what its folder holds: ``result.json`` and the figures."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..tables import has_number
from . import parts, pictures
from .estimates import results_table, runs_table
from .markup import Markup, element

REPORT = "report.html"
_CAPTIONS = {"curves": "Train loss and test error by epoch", "bars": "Layers side by side"}
_STATES = {
    "interrupted": "This run was stopped before its end: what follows is what there was by then.",
    "running": "This run has not ended: what follows is what there was when the page was written.",
}

Content = Mapping[str, Any]


def write(folder: Path) -> Path:
    """``report.html`` beside the files it shows."""
    content = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    parts.write(folder / REPORT, document(content, pictures.of_files(folder)))
    return folder / REPORT


def document(content: Content, figures: Mapping[str, str]) -> str:
    """The whole page; figures are data URIs by the stems of their files."""
    title = content.get("title") or name(content)
    title = title[:1].upper() + title[1:]
    return parts.page(
        f"{name(content)}: {title}",
        parts.header(title, f"isonorm · {name(content)}", parts.paragraph(when(content))),
        *findings(content, figures),
        *particulars(content),
    )


def name(content: Content) -> str:
    return content.get("recipe") or "comparison"


def findings(content: Content, figures: Mapping[str, str], level: int = 2) -> Iterator[Markup]:
    """What came out of a run; what it does not have is left out."""
    for warning in warnings(content):
        yield parts.paragraph(warning, class_="note")
    for stem, source in figures.items():
        yield _figure(stem, source, content)
    if content.get("summary"):
        yield parts.section("Results", results_table(content), level=level)
    if content.get("claims"):
        claims = ((c["claim"], c["answer"], c.get("evidence", "")) for c in content["claims"])
        yield parts.section("What the paper claims", parts.verdicts(claims), level=level)


def particulars(content: Content, level: int = 2) -> Iterator[Markup]:
    """How it came about: choices, configuration, command and environment."""
    if content.get("choices"):
        silent = parts.items(content["choices"])
        yield parts.section("Where the paper is silent", silent, level=level)
    configuration = [*_trained(content.get("trained", ())), parts.facts(_settings(content))]
    if content.get("runs"):
        configuration.append(parts.details("Each run by itself", runs_table(content)))
    if content.get("configurations"):
        exact = parts.facts(
            {key: element("code", text) for key, text in content["configurations"].items()}
        )
        configuration.append(parts.details("The configurations to the letter", exact))
    yield parts.section("Configuration", *configuration, level=level)
    if content.get("command"):
        yield parts.section("Command", parts.code(content["command"]), level=level)
    found = [parts.facts(environment(content.get("environment", {})))]
    for other in content.get("resumed_in", ()):
        found += [parts.paragraph("Resumed in another:"), parts.facts(environment(other))]
    yield parts.section("Environment", *found, level=level)


def warnings(content: Content) -> list[str]:
    """What a reader must know before the numbers."""
    found = []
    if content.get("scale") == "quick":
        found.append(
            "At quick scale a run shows that everything works. Its numbers mean nothing, and its "
            "verdicts nothing either."
        )
    if content.get("status") in _STATES:
        found.append(_STATES[content["status"]])
    return found


def environment(found: Mapping[str, Any]) -> dict[str, str]:
    """What a result was measured with, by name."""
    packages = found.get("packages", {})
    return {
        "python": str(found.get("python") or ""),
        **{package: str(version) for package, version in packages.items() if version},
        "system": str(found.get("system") or ""),
        "processor": _processor(found),
        "accelerator": str(found.get("accelerator") or ""),
        "CUDA": str(found.get("cuda") or ""),
    }


def _processor(found: Mapping[str, Any]) -> str:
    cores = found.get("cores")
    return str(found.get("processor") or "") + (f", {cores} cores" if cores else "")


def when(content: Content) -> str:
    """In a line: when, with how many seeds, on what."""
    seeds, started = content.get("seeds"), content.get("started", "")
    machine = content.get("environment", {})
    device = machine.get("accelerator") or machine.get("processor")
    words = [
        started.replace("T", " ")[:16],
        f"{seeds} seed{'s' * (seeds != 1)}" if seeds else "",
        str(device or ""),
    ]
    return " · ".join(word for word in words if word)


def _figure(stem: str, source: str, content: Content) -> Markup:
    caption = _CAPTIONS.get(stem, stem.replace("-", " ").replace("_", " "))
    if stem == "curves" and has_number(content, "condition_number"):
        caption = "Train loss, test error and condition number by epoch"
    shown = ", ".join(row["configuration"] for row in content.get("summary", ()))
    return parts.figure(source, f"{caption}: {shown}" if shown else caption, caption)


def _trained(rows: list[dict[str, str]]) -> Iterator[Markup]:
    """What each configuration is; what all have in common is told once, and what their names say
    already, not at all.
    """
    if not rows:
        return
    keys = [key for key in rows[0] if key != "configuration"]
    common = [key for key in keys if len({row[key] for row in rows}) == 1] if len(rows) > 1 else []
    yield parts.facts({f"{key} (all)": rows[0][key] for key in common})
    differing = [
        key
        for key in keys
        if key not in common and any(row[key] != row["configuration"] for row in rows)
    ]
    if differing:
        yield parts.table(
            "What was trained",
            ["configuration", *differing],
            ([row["configuration"], *(row[key] for key in differing)] for row in rows),
            words=1 + len(differing),
        )


def _settings(content: Content) -> dict[str, str]:
    """The run's own settings: those of the machine that are not at rest, and all others."""
    keys = ("scale", "seeds", "data", "only", "verify", "keep_weights")
    found = {key: _text(content[key]) for key in keys if content.get(key) not in (None, [], ())}
    return {key.replace("_", " "): text for key, text in found.items()} | {
        "machine": _text(content.get("machine", {}))
    }


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_text(item)}".replace("_", " ") for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_text, value))
    return str(value)
