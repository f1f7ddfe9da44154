"""The pages as a reader sees them, in a browser without a window."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from isonorm.lab import ledger
from isonorm.lab.pages import all_records, parts
from tests.browser import NAMES, Browser, find

ROOT = Path(__file__).parents[3]
COMMAND = find()

pytestmark = pytest.mark.skipif(
    COMMAND is None, reason=f"needs a browser: none of {', '.join(NAMES)} is installed"
)

PICTURES = """Promise.all([...document.images].map(image => image.decode())).then(() =>
  [...document.images].map(image => {
    const box = image.getBoundingClientRect();
    return [image.naturalWidth, box.width, box.height];
  }))"""
# What a picture and the page around it are painted in, at the corner of the first figure.
CORNER = """document.images[0].decode().then(() => {
  const image = document.images[0], canvas = document.createElement('canvas');
  canvas.width = image.naturalWidth; canvas.height = image.naturalHeight;
  const context = canvas.getContext('2d');
  context.drawImage(image, 0, 0);
  return [...context.getImageData(2, 2, 1, 1).data.slice(0, 3)];
})"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory) -> Iterator[Browser]:
    assert COMMAND is not None
    browser = Browser(COMMAND, tmp_path_factory.mktemp("profile"))
    try:
        browser.__enter__()
    except OSError as error:  # such as a command that only says how to install the browser
        pytest.skip(f"{COMMAND} does not start: {error}")
    yield browser
    browser.__exit__()


@pytest.fixture(scope="module")
def pages(quick_run, quick_comparison, tmp_path_factory) -> dict[str, Path]:
    """A run's page, a comparison's, and one of records with two studies and all benchmarks."""
    folder = tmp_path_factory.mktemp("records")
    (folder / "analysis").mkdir()
    for name in ("analysis/snd-batchnorm", "analysis/iternorm2019-section3.1"):
        (folder / f"{name}.json").symlink_to(ROOT / "records" / f"{name}.json")
    for path in (ROOT / "records").glob("*.json"):
        (folder / path.name).symlink_to(path)
    parts.write(folder / "records.html", all_records.document(ledger.read(folder)))
    return {
        "run": quick_run / "report.html",
        "comparison": quick_comparison / "report.html",
        "records": folder / "records.html",
    }


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("name", ["run", "comparison", "records"])
def test_figures_are_there_text_fits_and_nothing_is_fetched(browser, pages, name, width, scheme):
    browser.open(pages[name], width=width, scheme=scheme)
    browser.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    pictures = browser.evaluate(PICTURES)
    assert len(pictures) == (2 if name == "records" else 1)
    assert all(natural > 300 and wide > 300 and high > 100 for natural, wide, high in pictures)
    wide, window = browser.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
    assert window == width and wide <= window
    assert browser.complaints == []
    fetched = [address for address in browser.requests if not address.startswith("data:")]
    assert fetched == [pages[name].resolve().as_uri()]


@pytest.mark.parametrize("name", ["run", "records"])
def test_a_page_fits_on_paper_in_dark_ink(browser, pages, name):
    browser.open(pages[name], width=794, scheme="dark", media="print")  # A4 at 96 dots an inch
    assert browser.evaluate("document.documentElement.scrollWidth") <= 794
    ink = browser.evaluate("getComputedStyle(document.body).color.match(/\\d+/g).map(Number)")
    assert max(ink) < 100


def test_the_page_and_its_figures_are_dark_where_the_screen_is(browser, pages):
    painted = {}
    for scheme in ("light", "dark"):
        browser.open(pages["run"], width=1280, scheme=scheme)
        painted[scheme] = browser.evaluate("getComputedStyle(document.body).backgroundColor")
        corner = browser.evaluate(CORNER)
        assert (min(corner) > 200) == (scheme == "light"), corner
    assert painted["light"] != painted["dark"]


def test_no_line_of_a_command_ends_amid_the_dashes_of_an_option(browser, tmp_path):
    page = tmp_path / "command.html"
    command = "isonorm run" + " --some-option value --other x" * 20
    parts.write(page, parts.page("A command", parts.code(command)))
    for width in (320, 390, 500, 1280):
        browser.open(page, width=width)
        pieces = "[...document.querySelectorAll('pre .option')].map(o => o.getClientRects().length)"
        assert browser.evaluate(pieces) == [1] * 40
        assert browser.evaluate("document.querySelector('pre').textContent") == command


def test_a_page_that_is_wrong_is_found_out(browser, tmp_path):
    """The checks above can fail."""
    page = tmp_path / "wrong.html"
    page.write_text(
        "<!DOCTYPE html><img src='missing.png' alt=''><div style='width:3000px'>wide</div>"
        "<script>console.error('wrong')</script>"
    )
    browser.open(page, width=390)
    assert any("wrong" in complaint for complaint in browser.complaints)
    assert any(address.endswith("missing.png") for address in browser.requests)
    assert browser.evaluate("document.documentElement.scrollWidth") > 390
    assert browser.evaluate("document.images[0].naturalWidth") == 0
