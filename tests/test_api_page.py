"""docs/api.md has every public name, and no other."""

from __future__ import annotations

import re
from importlib import import_module
from inspect import ismodule
from pathlib import Path
from types import ModuleType

import pytest

PAGE = Path(__file__).parents[1] / "docs" / "api.md"
PACKAGES = [
    "isonorm",
    "isonorm.analysis",
    "isonorm.area",
    "isonorm.functional",
    "isonorm.kernels",
    "isonorm.linalg",
    "isonorm.operation",
    "isonorm.optim",
    "isonorm.recovery",
    "isonorm.surgery",
    "isonorm.weights",
]


def names_on_the_page() -> dict[str, set[str]]:
    """Module → names, from the first column of the tables below the headings that name it."""
    found: dict[str, set[str]] = {}
    for section in re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        heading, tables = section.split("\n", 1)
        cells = re.findall(r"^\| (`.*?) \|", tables, re.MULTILINE)
        names = {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}
        assert names, f"no names below {heading!r}"
        for module in re.findall(r"`(isonorm[\w.]*)`", heading):
            found.setdefault(module, set()).update(names)
    return found


def public_names(module: ModuleType) -> set[str]:
    """What a package says it exports; where it does not say, what its ``__init__`` imports."""
    imported = (
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and not ismodule(value)
    )
    return set(getattr(module, "__all__", imported))


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_is_on_the_page(package: str) -> None:
    assert public_names(import_module(package)) - names_on_the_page()[package] == set()


@pytest.mark.parametrize("module", names_on_the_page())
def test_every_name_on_the_page_exists(module: str) -> None:
    names = names_on_the_page()[module]
    assert {name for name in names if not hasattr(import_module(module), name)} == set()


def test_the_index_lists_every_page_once() -> None:
    pages = sorted(page.name for page in PAGE.parent.glob("*.md") if page.name != "README.md")
    index = (PAGE.parent / "README.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^\| \[(\w+\.md)\]\(\1\)", index, re.MULTILINE)) == pages
