"""What pages are built of: the page itself, sections, tables, facts, figures and verdicts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path

from .. import records
from .markup import Markup, element, join

#: Nothing is fetched and no script runs, whatever the page holds: the browser sees to it.
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"

_SIGNS = {"holds": "✓", "fails": "✗", "undecided": "?", "not measured": "–", "not recorded": "–"}


def page(title: str, *content: str) -> str:
    """A whole document that needs nothing beside it."""
    style = (files("isonorm.lab.pages") / "style.css").read_text(encoding="utf-8")
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        element("title", title),
        element("style", Markup(style)),
    )
    body = element("body", element("main", *content))
    return "<!DOCTYPE html>\n" + element("html", head, "\n", body, lang="en") + "\n"


def write(path: Path, document: str) -> None:
    """The page at ``path``, whole or not at all."""
    with records.whole_file(path) as temporary:
        temporary.write_text(document, encoding="utf-8", errors="backslashreplace")


def header(title: str, kicker: str, *more: str) -> Markup:
    return element("header", element("p", kicker, class_="kicker"), element("h1", title), *more)


def section(title: str, *content: str, anchor: str | None = None, level: int = 2) -> Markup:
    return element("section", element(f"h{level}", title), *content, id=anchor)


def paragraph(*content: str, class_: str | None = None) -> Markup:
    return element("p", *content, class_=class_)


def table(
    caption: str,
    headings: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    words: int = 1,
) -> Markup:
    """Rows whose first cell is their heading; the first ``words`` columns are words, the others
    numbers. A table wider than the page scrolls by itself.
    """

    def kind(i: int) -> str | None:
        return None if i < words else "number"

    head = [element("th", text, scope="col", class_=kind(i)) for i, text in enumerate(headings)]
    body = [
        element(
            "tr",
            element("th", row[0], scope="row"),
            *(element("td", cell, class_=kind(i)) for i, cell in enumerate(row[1:], start=1)),
        )
        for row in rows
    ]
    whole = element(
        "table",
        element("caption", caption),
        element("thead", element("tr", *head)),
        element("tbody", *body),
    )
    return _scrolling(whole, caption)


def figure(source: str, alt: str, caption: str) -> Markup:
    """A picture, given as a data URI."""
    picture = element("img", src=source, alt=alt)
    return element("figure", _scrolling(picture, caption), element("figcaption", caption))


def facts(pairs: Mapping[str, str]) -> Markup:
    """Names and what they stand for; empty ones are left out."""
    return element(
        "dl",
        *(
            element("div", element("dt", name), element("dd", value))
            for name, value in pairs.items()
            if value
        ),
    )


def items(lines: Iterable[str]) -> Markup:
    return element("ul", *(element("li", line) for line in lines))


def code(text: str) -> Markup:
    """A command, which may be long; a line does not end amid the dashes of an option."""
    words = (element("span", w, class_="option") if w[:1] == "-" else w for w in text.split(" "))
    return element("pre", element("code", join(words, " ")), tabindex="0")


def details(summary: str, *content: str) -> Markup:
    """What only some want to see, and on the screen: closed at first."""
    return element("details", element("summary", summary), *content)


def badge(answer: str, text: str | None = None) -> Markup:
    """An answer such as "holds": a word and a sign, not a color alone."""
    kind = answer.replace(" ", "-") if answer in _SIGNS else "other"
    sign = element("span", _SIGNS.get(answer, "·"), aria_hidden="true")
    return element("span", sign, f" {text or answer}", class_=f"badge {kind}")


def verdicts(claims: Iterable[tuple[str, str, str]]) -> Markup:
    """Claims as (text, answer, evidence)."""
    return element(
        "ul",
        *(
            element(
                "li",
                badge(answer),
                element(
                    "div",
                    paragraph(text),
                    paragraph(evidence, class_="evidence") if evidence else "",
                ),
            )
            for text, answer, evidence in claims
        ),
        class_="verdicts",
    )


def link(text: str, anchor: str) -> Markup:
    """To a section of the same page."""
    return element("a", text, href=f"#{anchor}")


def _scrolling(content: Markup, name: str) -> Markup:
    """Whoever has no mouse can scroll it, too: it takes the focus, and has a name."""
    return element("div", content, class_="scrolling", role="region", aria_label=name, tabindex="0")


def lines(*content: str) -> Markup:
    """One below the other."""
    return join(content, Markup("<br>"))
