"""``isonorm report``: the page of all records, and the README's table."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from shutil import copy, copytree

import pytest

from isonorm.lab import ledger, run_files
from isonorm.lab.pages import all_records, readme
from isonorm.lab.papers import PAPERS
from isonorm.lab.recipe import Claim
from isonorm.lab.recipes import all_recipes
from isonorm.lab.studies import STUDIES
from tests.lab.pages.helpers import change, check_structure

ROOT = Path(__file__).parents[3]
RECIPE, STUDY = "iternorm2019-fig3", "snd-batchnorm"


@pytest.fixture
def some_records(full_run, tmp_path, isonorm_command) -> Path:
    """One run, one study and one benchmark."""
    folder = tmp_path / "records"
    (folder / "analysis").mkdir(parents=True)
    copy(ROOT / "records" / "analysis" / f"{STUDY}.json", folder / "analysis")
    copy(ROOT / "records" / "folding.json", folder)
    filed = isonorm_command("record", full_run, "--to", folder)
    assert filed.exit_code == 0, filed.output
    return folder


def test_the_table_in_the_readme_is_what_the_records_say():
    """Not edited by hand: ``isonorm report --readme README.md`` writes it."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    between = re.search(f"{readme.BEGIN}\n\n(.*)\n{readme.END}", text, re.DOTALL)
    assert between and between[1] == readme.table(ledger.read(ROOT / "records"), ROOT)


def test_the_table_follows_the_records(some_records, tmp_path, isonorm_command):
    page = tmp_path / "README.md"
    page.write_text(f"before\n{readme.BEGIN}old{readme.END}\nafter\n")

    def lines() -> list[str]:
        written = isonorm_command("report", "--readme", page, "--records", some_records)
        assert written.exit_code == 0, written.output
        text = page.read_text(encoding="utf-8")
        assert text.startswith("before\n<!-- results -->\n\n2 of ") and text.endswith("\nafter\n")
        return [line for line in text.splitlines() if line.startswith("| IterNorm")]

    run, study = lines()
    assert run.startswith("| IterNorm, Figure 3 | [4-layer MLP on MNIST")
    assert f"](records/{RECIPE}/result.json)" in run
    assert "test error, %: BN, full batch " in run and "; plain, batch 2 " in run
    assert "| all 3 hold |" in study and f"](records/analysis/{STUDY}.json)" in study

    path = some_records / "analysis" / f"{STUDY}.json"
    content = json.loads(path.read_text())
    content["claims"][1]["holds"] = False
    path.write_text(json.dumps(content))
    assert "| 2 of 3 hold, 1 fails |" in lines()[1]
    path.unlink()
    assert "disturbance" not in readme.table(ledger.read(some_records), tmp_path)


def test_labels_of_a_record_stay_text_in_the_readme(some_records, tmp_path):
    path = some_records / RECIPE / "result.json"
    content = json.loads(path.read_text())
    content["summary"][0]["configuration"] = f"<img src=x>|\n{readme.END}**b** \x1b[2J"
    path.write_text(json.dumps(content))
    (line,) = (
        line
        for line in readme.table(ledger.read(some_records), tmp_path).splitlines()
        if "img" in line
    )
    assert r"&lt;img src=x&gt;\|\\n&lt;!-- /results --&gt;\*\*b\*\* \\x1b\[2J" in line
    assert len(re.findall(r"(?<!\\)\|", line)) == 5, "four cells"


def test_a_page_beside_the_readme_is_refused(tmp_path, isonorm_command):
    page = tmp_path / "records.html"
    ran = isonorm_command("report", "--readme", tmp_path / "README.md", "--out", page)
    assert ran.exit_code == 2 and "leave out --out" in ran.stderr and not page.exists()


def test_a_readme_without_a_place_for_results_stays_as_it_is(tmp_path, isonorm_command):
    page = tmp_path / "README.md"
    for text in ("nothing", f"{readme.BEGIN} only", f"{readme.END}{readme.BEGIN}"):
        page.write_text(text)
        refused = isonorm_command("report", "--readme", page, "--records", ROOT / "records")
        assert refused.exit_code == 2 and "has no place for results" in refused.output
        assert page.read_text() == text


def test_the_page_has_every_figure_of_the_papers_once(some_records):
    page = check_structure(all_records.document(ledger.read(some_records)))
    states = [text for _, text in page.all("tr")]
    for name, recipe in all_recipes().items():
        where = "" if recipe.data.startswith("noise") else " --data DIR"
        missing = f"{recipe.title}isonorm run {name}{where}– not recorded"
        assert sum(missing in text for text in states) == (name != RECIPE), name
    for name, study in STUDIES.items():
        assert sum(f"isonorm analyze {name} " in text for text in states) == (name != STUDY), name
        assert sum(study.title in text for text in states) >= 1
    assert page.all("h1")[0][1] == "The papers, run again"
    assert [text.partition(":")[0] for _, text in page.all("h2")] == [
        *(paper.short for paper in PAPERS), "Benchmarks of speed, memory and cost"]  # fmt: skip


def test_the_page_shows_what_is_recorded(some_records):
    page = check_structure(all_records.document(ledger.read(some_records)))
    titles = [text for _, text in page.all("h3")]
    assert len(titles) == len(page.all("img")) + 1 == 3  # a benchmark has no figure
    run = json.loads((some_records / RECIPE / "result.json").read_text())
    assert all(claim["evidence"] in page.text for claim in run["claims"])
    study = json.loads((some_records / "analysis" / f"{STUDY}.json").read_text())
    assert all(claim["sentence"] in page.text for claim in study["claims"])
    ratio = json.loads((some_records / "folding.json").read_text())["ratio_to_without_norms"]
    assert f"{ratio['folded']['median']:.4g} [" in page.text
    assert "Recorded in part: 3 of 8 configurations (BN, *; plain, batch 2)." in page.text


def test_a_record_of_a_recipe_that_has_changed_says_so(some_records):
    sentence = (
        "The recipe is defined otherwise now than when this was recorded, and the verdicts are "
        "those of then."
    )

    def caveats() -> list[str]:
        (entry,) = ledger.recorded(ledger.read(some_records).entries[RECIPE])
        return entry.caveats

    assert sentence in caveats()  # its sizes were quick scale's
    recipe = all_recipes()[RECIPE].only(["BN, *", "plain, batch 2"])
    change(some_records / RECIPE, configurations=recipe.definition())
    assert sentence not in caveats()
    change(some_records / RECIPE, only=["a name of another time"])
    assert sentence in caveats()


def test_verdicts_follow_what_the_recipe_claims_now(some_records, tmp_path, monkeypatch):
    """On the page and in the README, by the record's own numbers."""
    recipe = all_recipes()[RECIPE].shrunk()  # what was recorded
    claims = (
        Claim("Errors are small.", "BN, full batch", 1.5),
        Claim("Time is short.", 1e9, "plain, batch 2", "seconds_per_epoch"),
        Claim("Of what was not recorded.", "DBN, full batch", 1.5),
    )
    now = replace(recipe, claims=claims)
    monkeypatch.setattr(ledger, "all_recipes", lambda: {RECIPE: now})
    monkeypatch.setattr(run_files, "find_recipe", lambda name: now)
    found = ledger.read(some_records)
    (entry,) = found.entries[RECIPE]
    assert [(claim.text, claim.answer) for claim in entry.claims] == [
        ("Errors are small.", "holds"), ("Time is short.", "fails")]  # fmt: skip
    assert len(entry.caveats) == 1  # recorded in part
    assert "| 1 of 2 hold, 1 fails |" in readme.table(found, tmp_path)
    page = check_structure(all_records.document(found))
    stored = json.loads((some_records / RECIPE / "result.json").read_text())["claims"]
    assert "Time is short." in page.text and stored[0]["evidence"] not in page.text

    (some_records / RECIPE / "curves.csv.gz").write_bytes(b"")
    with pytest.raises(ValueError, match=r"curves\.csv\.gz is missing or damaged"):
        ledger.read(some_records)


def test_a_record_from_before_a_revision_keeps_its_verdicts_with_a_caveat(
    some_records, monkeypatch
):
    stored = json.loads((some_records / RECIPE / "result.json").read_text())
    recipe = all_recipes()[RECIPE].shrunk()
    for moved, caveats in ((timedelta(hours=-1), 1), (timedelta(hours=1), 2)):
        revised = (datetime.fromisoformat(stored["started"]) + moved).isoformat()
        now = replace(recipe, claims=(), revised=revised)
        monkeypatch.setattr(ledger, "all_recipes", lambda now=now: {RECIPE: now})
        monkeypatch.setattr(run_files, "find_recipe", lambda name, now=now: now)
        (entry,) = ledger.read(some_records).entries[RECIPE]
        assert len(entry.caveats) == caveats
        assert bool(entry.claims) == (caveats == 2), "those of then, or those of now"
    with pytest.raises(ValueError, match="is defined otherwise now"):
        run_files.read(some_records / RECIPE)


def test_verdicts_on_layers_follow_what_the_recipe_claims_now(tmp_path, monkeypatch):
    name = "iternorm2019-cost"
    copytree(ROOT / "records" / name, tmp_path / name)
    recipe = all_recipes()[name]
    claim = Claim("Nothing is free.", 0, recipe.configurations[0].name, "operations")
    monkeypatch.setattr(ledger, "all_recipes", lambda: {name: replace(recipe, claims=(claim,))})
    (entry,) = ledger.read(tmp_path).entries[name]
    assert [(claim.text, claim.answer) for claim in entry.claims] == [("Nothing is free.", "holds")]


def test_every_benchmark_on_record_has_numbers_on_the_page():
    from isonorm.lab.pages import benchmarks
    from tests.lab.pages.helpers import Parsed

    for path, content in ledger.read(ROOT / "records").benchmarks.items():
        page = Parsed(benchmarks.section(path.stem, content, "anchor"))
        assert page.all("td"), path
        assert benchmarks.title(path.stem) != path.stem, "a title is missing"
        assert "/root/" not in page.texts[0]


@pytest.mark.parametrize(
    ("told", "cut"), [({"complete": False}, True), ({"complete": True}, False)]
)
def test_a_benchmark_that_was_cut_short_says_so(told, cut):
    from isonorm.lab.pages import benchmarks

    page = benchmarks.section("cpu", {"rows": [{"case": "a", "us": 1.5}], **told}, "anchor")
    assert (benchmarks.CUT in page) == cut


def test_a_damaged_record_is_named(some_records, tmp_path, isonorm_command):
    (some_records / "folding.json").write_text('{"half": ')
    out = tmp_path / "page.html"
    for damaged, folder in (
        ("folding.json is not a record", some_records),
        ("no folder", tmp_path / "x"),
    ):
        refused = isonorm_command("report", "--records", folder, "--out", out)
        assert refused.exit_code == 2 and damaged in refused.output
        assert len(refused.output.splitlines()) == 1 and not out.exists()


@pytest.mark.parametrize(
    ("path", "more"),
    [
        (f"{RECIPE}/result.json", {"claims": 3}),
        (f"{RECIPE}/result.json", {"claims": [{}]}),
        (f"{RECIPE}/result.json", {"configurations": []}),
        (f"{RECIPE}/result.json", {"summary": [{"x": 1}]}),
        (f"{RECIPE}/result.json", {"command": 7}),
        (f"analysis/{STUDY}.json", {"made": 7}),
        ("folding.json", {"command": 7}),
        (f"analysis/{STUDY}.json", {"claims": [{}]}),
        (f"analysis/{STUDY}.json", {"config": None, "environment": 1}),
    ],
)
def test_json_of_another_kind_is_one_sentence(some_records, path, more, tmp_path, isonorm_command):
    content = json.loads((some_records / path).read_text())
    (some_records / path).write_text(json.dumps({**content, **more}))
    out = tmp_path / "page.html"
    refused = isonorm_command("report", "--records", some_records, "--out", out)
    assert refused.exit_code == 2 and f"{path} is not a record of" in refused.output
    assert len(refused.output.splitlines()) == 1 and not out.exists()


@pytest.mark.parametrize("path", [f"{RECIPE}/result.json", f"analysis/{STUDY}.json"])
@pytest.mark.parametrize("text", ["{}", "[]"])
def test_something_else_in_the_place_of_a_record_is_named(some_records, path, text):
    (some_records / path).write_text(text)
    with pytest.raises(ValueError, match=rf"{path} is not a record: it"):
        ledger.read(some_records)
