"""``isonorm record``: which runs become records, and what does not get into them."""

from __future__ import annotations

import csv
import gzip
import json
import re
import shlex
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from isonorm.lab import filing, records, run_files
from isonorm.lab.lock import LOCK
from isonorm.lab.recipe import Claim
from tests.lab.pages.helpers import change

RECIPE = "iternorm2019-fig3"


def files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_a_finished_run_becomes_a_record(full_run, tmp_path, isonorm_command):
    (full_run / LOCK).touch()  # as a process leaves it that was killed
    filed = isonorm_command("record", full_run, "--to", tmp_path / "records")
    assert filed.exit_code == 0, filed.output
    (folder,) = (tmp_path / "records").iterdir()
    assert folder.name == RECIPE and filed.output.startswith(f"Filed in {folder}.")
    assert sorted(files(folder)) == ["curves.csv.gz", "curves.png", "curves.svg", "result.json"]
    before, after = files(full_run), files(folder)
    assert all(after[name] == before[name] for name in ("curves.png", "curves.svg"))

    old, new = json.loads(before["result.json"]), json.loads(after["result.json"])
    changed = {key for key in old if old[key] != new[key]}
    assert changed == {"data", "command"} and new["data"] == "DIR"
    words = shlex.split(new["command"])
    assert words[:3] == ["isonorm", "run", RECIPE] and words[words.index("--data") + 1] == "DIR"
    assert shlex.split(old["command"])[5:] == words[5:]


def test_nothing_in_a_record_tells_whose_machine_it_was(full_run, tmp_path, isonorm_command):
    data = json.loads((full_run / "result.json").read_text())["data"]
    assert "secret-data" in data
    isonorm_command("record", full_run, "--to", tmp_path / "records")
    private = (data, "secret-data", str(tmp_path), str(Path.home()), socket.gethostname())
    for name, content in files(tmp_path / "records").items():
        if not name.endswith(".png"):
            for word in private:
                text = (gzip.decompress(content) if name.endswith(".gz") else content).decode()
                assert not re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text), name


def test_a_record_can_be_read_like_a_run(quick_run, tmp_path, isonorm_command, monkeypatch):
    """Its claims can be judged again, by ``isonorm check``."""
    content = json.loads((quick_run / "result.json").read_text())
    monkeypatch.setattr(filing, "_finished", lambda run: content)
    folder = filing.file_run(quick_run, tmp_path)
    filed, run = run_files.read(folder), run_files.read(quick_run)
    assert list(filed.results) == list(run.results)
    assert filed.by_configuration().keys() == run.by_configuration().keys()
    for name, results in run.by_configuration().items():
        assert filed.chosen_point(run.recipe[name]) == run.chosen_point(run.recipe[name])
        for ours, theirs in zip(filed.by_configuration()[name], results, strict=True):
            for epoch, its in zip(ours.epochs, theirs.epochs, strict=True):
                assert epoch.train_loss == pytest.approx(its.train_loss, rel=1e-6)
    checked = isonorm_command("check", folder)
    assert checked.exit_code == 0 and content["claims"][0]["evidence"] in checked.output


def test_of_points_that_were_not_chosen_a_record_has_the_last_epoch(tmp_path):
    from isonorm.lab.filing import _file_curves

    header = ["configuration", "seed", "point", "validating", "number", "train_loss"]
    losses = {("0", "0"): (2.0, 1.0), ("0", "1"): (3.0, 1 / 3), ("1", "1"): (5.0, 4.0)}
    rows = [
        ["1.50 x", seed, point, "False", str(number), str(loss)]
        for (seed, point), each in losses.items()
        for number, loss in enumerate(each, 1)
    ]
    records.write_csv(tmp_path / "curves.csv", header, rows)
    summary = [{"configuration": "1.50 x", "point": 1}]
    _file_curves(tmp_path / "curves.csv", summary, tmp_path / "curves.csv.gz")
    with gzip.open(tmp_path / "curves.csv.gz", "rt") as file:
        names, kept = zip(*((row[0], row[1:]) for row in list(csv.reader(file))[1:]), strict=True)
    assert set(names) == {"1.50 x"}
    assert [row[:2] + row[3:] for row in kept] == [
        ["0", "0", "2", "1"],
        ["0", "1", "1", "3"],
        ["0", "1", "2", "0.3333333"],
        ["1", "1", "1", "5"],
        ["1", "1", "2", "4"],
    ]


def test_a_record_has_todays_verdicts_and_figures(full_run, tmp_path, isonorm_command, monkeypatch):
    """What the recipe claims now, and the run's numbers as they are drawn now."""
    recipe = filing.all_recipes()[RECIPE].shrunk()  # what was run
    claims = (Claim("Errors are small.", "BN, full batch", 1.5),)
    now = replace(recipe, claims=claims, spread="median")
    monkeypatch.setattr(filing, "all_recipes", lambda: {RECIPE: now})
    monkeypatch.setattr(run_files, "find_recipe", lambda name: now)
    assert isonorm_command("record", full_run, "--to", tmp_path / "records").exit_code == 0
    content = json.loads((tmp_path / "records" / RECIPE / "result.json").read_text())
    (verdict,) = content["claims"]
    assert verdict["claim"] == "Errors are small." and verdict["answer"] == "holds"
    assert b"line: mean" in (full_run / "curves.svg").read_bytes()
    assert b"line: median" in (tmp_path / "records" / RECIPE / "curves.svg").read_bytes()
    assert (tmp_path / "records" / RECIPE / "curves.png").exists()


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"scale": "quick"}, "scale quick, whose numbers mean nothing: file one of 'isonorm run"),
        ({"status": "interrupted"}, "is not finished (it says 'interrupted'): go on with 'isonorm"),
        ({"status": "running"}, "is not finished (it says 'running')"),
        ({"recipe": None}, "is not the folder of a run"),
        (
            {"recipe": "iternorm2019-cost", "scale": "quick"},
            "file one of 'isonorm run iternorm2019-cost'.",  # which takes no data
        ),
        ({"recipe": "../../outside"}, "is not a run of a recipe"),
        ({"command": 7}, "result.json is missing or damaged"),
        ({"command": "isonorm run '"}, "result.json is missing or damaged"),
        ({"summary": 7}, "result.json is missing or damaged"),
    ],
)
def test_other_runs_are_refused(full_run, tmp_path, isonorm_command, values, sentence):
    change(full_run, **values)
    refused = isonorm_command("record", full_run, "--to", tmp_path / "records")
    assert refused.exit_code == 2 and sentence in refused.output
    assert len(refused.output.splitlines()) == 1
    assert not (tmp_path / "records").exists()


def test_what_is_no_run_is_refused(tmp_path, isonorm_command):
    for _ in range(2):
        refused = isonorm_command("record", tmp_path, "--to", tmp_path / "records")
        assert refused.exit_code == 2 and "is not the folder of a run" in refused.output
        (tmp_path / "result.json").write_text("{")


def test_without_its_curves_a_run_is_no_record(full_run, tmp_path, isonorm_command):
    (full_run / "curves.csv").unlink()
    refused = isonorm_command("record", full_run, "--to", tmp_path / "records")
    assert refused.exit_code == 2 and "has lost what its numbers rest on" in refused.output
    assert not (tmp_path / "records").exists()


@pytest.mark.parametrize(
    "damage", ["", "configuration\nBN\n", "configuration,point,number\n?,0,1\n"]
)
def test_with_damaged_curves_a_run_is_no_record(full_run, tmp_path, isonorm_command, damage):
    (full_run / "curves.csv").write_text(damage)
    refused = isonorm_command("record", full_run, "--to", tmp_path / "records")
    assert refused.exit_code == 2 and "curves.csv is missing or damaged" in refused.output
    assert not (tmp_path / "records" / RECIPE).exists()


@pytest.mark.parametrize("cut", [slice(0, -20), slice(20, None), slice(0, 0)])
def test_a_record_whose_curves_are_damaged_is_told_in_a_sentence(
    full_run, tmp_path, isonorm_command, cut
):
    isonorm_command("record", full_run, "--to", tmp_path / "records")
    curves = tmp_path / "records" / RECIPE / "curves.csv.gz"
    curves.write_bytes(curves.read_bytes()[cut])
    with pytest.raises(ValueError, match="is missing or damaged"), records.reading(curves):
        run_files._results(curves, [{"name": "?", "seed": 0, "point": None, "validating": False}])


def test_a_record_is_not_gone_on_with(full_run, tmp_path, isonorm_command):
    isonorm_command("record", full_run, "--to", tmp_path / "records")
    before = files(tmp_path / "records")
    refused = isonorm_command("run", "--resume", tmp_path / "records" / RECIPE)
    assert refused.exit_code == 2 and "is a record, and finished" in refused.output
    assert files(tmp_path / "records") == before


def test_an_earlier_record_gives_way_only_when_told(full_run, tmp_path, isonorm_command):
    words = ("record", full_run, "--to", tmp_path / "records")
    isonorm_command(*words)
    earlier = files(tmp_path / "records")
    change(full_run, seeds=77)
    (full_run / "curves.png").unlink()
    refused = isonorm_command(*words)
    assert refused.exit_code == 2 and "--replace" in refused.output
    assert files(tmp_path / "records") == earlier

    assert isonorm_command(*words, "--replace").exit_code == 0
    later = files(tmp_path / "records")
    assert len(later) == 3 and json.loads(later[f"{RECIPE}/result.json"])["seeds"] == 77


@pytest.mark.parametrize("step", ["_flush_to_disk", "rename"])
@pytest.mark.parametrize("there", [False, True])
def test_a_full_disk_leaves_the_records_as_they_were(
    full_run, tmp_path, isonorm_command, monkeypatch, step, there
):
    words = ("record", full_run, "--to", tmp_path / "records", "--replace")
    if there:
        isonorm_command(*words)
    earlier = files(tmp_path / "records")
    change(full_run, seeds=77)
    rename = records.os.rename

    def full_disk(path, *target):
        if Path(path).name.endswith(".tmp") or not target:
            raise OSError(28, "No space left on device", str(path))
        rename(path, *target)

    monkeypatch.setattr(records if step == "_flush_to_disk" else records.os, step, full_disk)
    failed = isonorm_command(*words)
    assert failed.exit_code == 1 and "No space left on device" in failed.output
    assert files(tmp_path / "records") == earlier
    assert [path.name for path in (tmp_path / "records").iterdir()] == [RECIPE] * there


def test_a_folder_of_this_machine_elsewhere_in_a_run_stops_it(full_run, tmp_path, isonorm_command):
    change(full_run, only=[f"{Path.home()}/*"])
    refused = isonorm_command("record", full_run, "--to", tmp_path / "records")
    assert refused.exit_code == 2 and "names a folder of this machine" in refused.output
    assert not list((tmp_path / "records").iterdir())


def test_a_figure_too_large_for_the_repository_stays_out(full_run, tmp_path, isonorm_command):
    with (full_run / "curves.png").open("ab") as file:
        file.write(b" " * 600_001)
    isonorm_command("record", full_run, "--to", tmp_path / "records")
    assert sorted(files(tmp_path / "records" / RECIPE)) == [
        "curves.csv.gz", "curves.svg", "result.json"]  # fmt: skip
