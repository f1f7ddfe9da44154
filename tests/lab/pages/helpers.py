"""Pages taken apart, and results of runs changed."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

VOID = {"br", "col", "hr", "img", "link", "meta"}


class Parsed(HTMLParser):
    """A document's elements with their attributes, in order, and the text of each in whole."""

    def __init__(self, document: str) -> None:
        super().__init__()
        self.open: list[int] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.inside: list[list[str]] = []  # the names of each element's ancestors
        self.feed(document)
        self.close()
        assert not self.open, "elements without an end"

    def handle_starttag(self, tag, attrs):
        self.inside.append([self.elements[i][0] for i in self.open])
        self.elements.append((tag, dict(attrs)))
        self.texts.append("")
        if tag not in VOID:
            self.open.append(len(self.elements) - 1)

    def handle_endtag(self, tag):
        assert self.elements[self.open.pop()][0] == tag, f"</{tag}> ends something else"

    def handle_data(self, data):
        for i in self.open:
            self.texts[i] += data

    def all(self, name: str) -> list[tuple[dict[str, str | None], str]]:
        """The attributes and the text of all elements of this name."""
        both = zip(self.elements, self.texts, strict=True)
        return [(attributes, text) for (tag, attributes), text in both if tag == name]

    @property
    def text(self) -> str:
        return self.all("body")[0][1]


def check_structure(document: str) -> Parsed:
    """What every page of ours must be, for browsers and for screen readers."""
    assert document.startswith("<!DOCTYPE html>")
    page = Parsed(document)
    assert page.all("html")[0][0]["lang"] == "en"
    assert all(len(page.all(name)) == 1 for name in ("title", "main", "h1", "style"))
    for name, attributes in page.elements:
        for key in ("src", "href", "srcset", "action", "data"):
            address = attributes.get(key)
            assert address is None or address.startswith(("data:", "#")), (name, address)
        assert not any(key.startswith("on") for key in attributes)
        assert name not in ("script", "link", "iframe", "object")
    assert "url(" not in page.all("style")[0][1] and "@import" not in page.all("style")[0][1]
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    targets = [a["href"] for a, _ in page.all("a")]
    assert {str(target)[1:] for target in targets} <= set(ids)
    assert all(attributes.get("alt") for attributes, _ in page.all("img"))
    assert len(page.all("figure")) == len(page.all("img")) == len(page.all("figcaption"))
    assert all(a.get("scope") in ("col", "row") and text for a, text in page.all("th"))
    assert len(page.all("caption")) == len(page.all("table"))
    levels = [int(name[1]) for name, _ in page.elements if name in ("h1", "h2", "h3", "h4")]
    steps = pairwise(levels)
    assert all(next_ <= level + 1 for level, next_ in steps), "a level of headings is skipped"
    return page


def change(folder: Path, **values: object) -> None:
    """Rewrites some of what a run's result says."""
    path = folder / "result.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))
