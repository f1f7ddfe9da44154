"""Everything shown in the README and the docs runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from isonorm import registry

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def python_blocks(page: Path) -> str:
    return "\n".join(
        re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_snippets_of_a_page_run_in_order(page: Path, monkeypatch) -> None:
    monkeypatch.setattr(registry, "REGISTRY", dict(registry.REGISTRY))  # what a page registers
    exec(
        compile(python_blocks(page), str(page), "exec"), {}
    )  # raises where a snippet does not hold


def test_there_are_snippets_to_run() -> None:
    assert all(python_blocks(ROOT / name) for name in ("README.md", "docs/guide.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_within_the_repository_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)\)", page.read_text(encoding="utf-8"))
    missing = [link for link in links if not (page.parent / link).exists()]
    assert not missing


def test_make_words_of_the_readme_exist() -> None:
    words = re.findall(r"\bmake (\w+)", (ROOT / "README.md").read_text(encoding="utf-8"))
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert {"demo", "test"} <= set(words)
    assert all(re.search(rf"^{word}:", makefile, re.MULTILINE) for word in words)
