"""``report.html``: complete, well formed, and unharmed by what its run is called."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from isonorm.lab import figures, records
from isonorm.lab.pages import run
from isonorm.lab.summary import Estimate
from tests.lab.pages.helpers import Parsed, check_structure

HOSTILE = "\"><script>alert('&amp;')</script><img src=https://example.org/x.png>"


def content_of(folder: Path) -> dict:
    return json.loads((folder / "result.json").read_text(encoding="utf-8"))


def rows(page: Parsed) -> list[str]:
    return [text for _, text in page.all("tr")]


def test_a_run_leaves_a_page_with_all_it_found(quick_run):
    page = check_structure((quick_run / "report.html").read_text(encoding="utf-8"))
    content = content_of(quick_run)
    (figure,) = page.all("img")
    assert figure[0]["src"].startswith("data:image/svg+xml;base64,")
    assert all(row["configuration"] in figure[0]["alt"] for row in content["summary"])
    assert content["title"] in page.all("h1")[0][1]
    assert content["command"] == page.all("pre")[0][1]
    for claim in content["claims"]:
        (line,) = [t for _, t in page.all("li") if claim["claim"] in t and claim["evidence"] in t]
        assert claim["answer"] in line
    listed = [text for _, text in page.all("li")]
    assert all(choice in listed for choice in content["choices"])
    environment = content["environment"]
    for version in (environment["python"], environment["packages"]["torch"]):
        assert version in page.text
    assert all(text in page.text for text in content["configurations"].values())
    assert all(row["training"] in page.text for row in content["trained"])
    assert "At quick scale" in page.text


def test_the_table_has_the_numbers_of_the_result(quick_run):
    content = content_of(quick_run)
    page = Parsed(run.document(content, {}))
    for row in content["summary"]:
        (line,) = [t for t in rows(page) if t.startswith(row["configuration"] + row["setting"])]
        error = Estimate(**row["test_error"]).scaled(100)
        assert f"{error.mean:.2f} ± {error.spread:.2f}" in line


def estimates(*values: float | None) -> dict:
    found = Estimate.over(values)
    return {**found.__dict__, "quartiles": found.quartiles and list(found.quartiles)}


def result(**more: object) -> dict:
    row = {"configuration": "A", "setting": "", "test_error": estimates(0.1, 0.2, 0.4)}
    return {"recipe": "some-fig1", "title": "T", "seeds": 3, "summary": [row], **more}


def test_median_and_quartiles_where_the_paper_shows_these():
    page = Parsed(run.document(result(spread="median"), {}))
    assert "A20.00 [15.00, 30.00]" in rows(page)
    assert page.all("caption")[0][1] == "Median and quartiles over 3 seeds"


def test_the_papers_numbers_stand_beside_ours():
    content = result()
    content["summary"][0]["paper"] = {"test_error": 7.94}
    page = Parsed(run.document(content, {}))
    assert [text for _, text in page.all("th")][:3] == ["configuration", "test error, %", "paper"]
    assert rows(page)[1].endswith("7.94")


def test_divergence_is_said_and_what_was_not_measured_is_not():
    content = result(runs=[{"name": "A", "seed": 0, "diverged": True}])
    content["summary"] = [
        {"configuration": "A", "train_loss": estimates(None), "test_error": estimates(None)},
        {"configuration": "B", "train_loss": estimates(0.125), "test_error": estimates(None)},
    ]
    page = Parsed(run.document(content, {}))
    assert rows(page)[:3] == ["configurationtrain loss", "Adiverged", "B0.1250"]


def test_the_caption_names_every_panel():
    def captions(content: dict) -> list[str]:
        figure = {"curves": "data:image/svg+xml;base64,"}
        return [text for _, text in Parsed(run.document(content, figure)).all("figcaption")]

    content = result()
    assert captions(content) == ["Train loss and test error by epoch"]
    content["summary"][0]["condition_number"] = estimates(None, 12.5)
    assert captions(content) == ["Train loss, test error and condition number by epoch"]


def test_an_infinite_condition_number_is_not_one_that_was_not_measured():
    none, some = estimates(None, None), estimates(12.5, 13.5)
    content = result(
        claims=[{"claim": "Better.", "measure": "condition_number", "answer": "holds"}],
        summary=[
            {"configuration": name, "condition_number": found}
            for name, found in (("BN", some), ("plain", none), ("other", none))
        ],
        trained=[
            {"configuration": "plain", "training": "9 epochs, lr 1.0, condition_every 3"},
            {"configuration": "other", "training": "9 epochs, lr 1.0"},
        ],
    )
    assert rows(Parsed(run.document(content, {})))[1:4] == ["BN13.00 ± 0.71", "plain∞", "other–"]


def test_a_run_that_trained_nothing_has_its_own_measures():
    row = {"configuration": "DBN", "milliseconds": estimates(12.5, 13.5)}
    content = {"recipe": "x", "summary": [row], "claims": [], "seeds": 2}
    page = check_structure(run.document(content, {}))
    assert "DBN13.00 ± 0.71" in rows(page)


def test_what_a_configurations_name_says_is_not_said_again():
    norms = [{"configuration": n, "network": "mlp", "norm": n} for n in ("batchnorm", "dbn")]
    assert "What was trained" not in Parsed(run.document(result(trained=norms), {})).text
    norms[1]["configuration"] = "DBN"
    assert "What was trained" in Parsed(run.document(result(trained=norms), {})).text


def test_a_comparison_tells_what_it_costs():
    content = result(comparison={"norms": ["A"], "threshold": 0.95})
    content["summary"][0] |= {
        "epochs_to_threshold": estimates(None, None),
        "seconds_per_step": estimates(0.5),
        "seconds_per_epoch": estimates(7.0),
    }
    page = Parsed(run.document(content, {}))
    headings = [text for attributes, text in page.all("th") if attributes["scope"] == "col"]
    assert headings == ["norm", "test error, %", "epochs to 95%", "ms per step"]
    content["summary"][0]["epochs_to_threshold"] = estimates(None, 4.0)
    headings, row = rows(Parsed(run.document(content, {})))[:2]
    assert "epochs to 95%" in headings and row == "A23.33 ± 15.284.0 (1 of 2)500.00"


@pytest.mark.parametrize("content", [{}, {"recipe": "x", "status": "running"}])
def test_whatever_is_missing_is_left_out(content):
    check_structure(run.document(content, {}))


@pytest.mark.parametrize("status", ["interrupted", "running"])
def test_a_run_that_did_not_end_says_so(quick_run, status):
    content = {**content_of(quick_run), "status": status, "scale": "full"}
    (note,) = [t for a, t in Parsed(run.document(content, {})).all("p") if a.get("class") == "note"]
    assert "This run" in note


def hostile(value: object) -> object:
    """Every text in a result made dangerous."""
    if isinstance(value, dict):
        return {f"{key}": hostile(item) for key, item in value.items()}
    if isinstance(value, list):
        return [hostile(item) for item in value]
    return value + HOSTILE if isinstance(value, str) else value


def test_names_and_texts_cannot_break_the_page(quick_run):
    content = hostile(content_of(quick_run))
    assert isinstance(content, dict)
    content["configurations"] = {
        key + HOSTILE: text for key, text in content["configurations"].items()
    }
    page = check_structure(run.document(content, {HOSTILE: "data:image/png;base64,"}))
    assert len(page.all("img")) == 1
    assert page.all("pre")[0][1] == content["command"]
    for row in content["summary"]:
        assert row["configuration"] in [text for _, text in page.all("th")]


def test_a_full_disk_leaves_the_earlier_page(quick_run, tmp_path, monkeypatch):
    (tmp_path / "result.json").write_text((quick_run / "result.json").read_text())
    (tmp_path / "report.html").write_text("earlier")

    def full_disk(path):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(records, "_flush_to_disk", full_disk)
    with pytest.raises(OSError, match="No space"):
        run.write(tmp_path)
    assert (tmp_path / "report.html").read_text() == "earlier"
    assert len(list(tmp_path.iterdir())) == 2


def test_the_figures_of_a_run_are_taken_once_each(tmp_path, quick_run):
    from matplotlib.figure import Figure

    from isonorm.lab.pages.pictures import of_files

    figures.save(Figure(), tmp_path, "a")
    figures.save(Figure(), tmp_path, "b", kinds=("png",))
    found = of_files(tmp_path)
    assert list(found) == ["a", "b"]
    assert found["a"].startswith("data:image/svg") and found["b"].startswith("data:image/png")
