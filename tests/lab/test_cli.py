from __future__ import annotations

import csv
import json
import shlex
import subprocess
import sys

import pytest
import torch
from typer.testing import CliRunner, Result

import isonorm
from isonorm.lab import compare as comparing
from isonorm.lab.cli import app
from isonorm.lab.data import SOURCES

TINY = ["--depth", "2", "--width", "8", "--epochs", "2", "--batch-size", "400"]


def isonorm_command(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


@pytest.fixture(scope="module")
def tiny_run(tmp_path_factory):
    out = tmp_path_factory.mktemp("out") / "runs"
    norms = "none,bn,dbn:group_size=4,iternorm"
    result = isonorm_command(
        "compare", *TINY, "--norms", norms, "--seeds", "2", "--out", str(out), "--name", "tiny"
    )
    assert result.exit_code == 0, result.output
    (folder,) = out.iterdir()
    return result, folder


NORMS = ["plain", "batchnorm", "dbn:group_size=4", "iternorm"]


def test_compare_says_what_it_found_in_plain_lines(tiny_run):
    result, folder = tiny_run
    assert "\x1b" not in result.output and result.stderr == ""
    lines = result.output.splitlines()
    assert [line.split(":")[0] for line in lines[:2]] == [
        "[1/8] plain, seed 0",
        "[2/8] batchnorm, seed 0",
    ]
    rows = [line.split("│")[1].strip() for line in lines if line.startswith("│")]
    assert rows == NORMS
    assert lines[-1] == f"Results, curves and figures are in {folder}"


def test_compare_leaves_its_files(tiny_run):
    _, folder = tiny_run
    assert folder.name.endswith("-tiny")
    assert sorted(file.name for file in folder.iterdir()) == [
        "curves.csv",
        "curves.png",
        "curves.svg",
        "result.json",
    ]


def test_result_json_tells_what_was_run_where_and_what_came_out(tiny_run):
    _, folder = tiny_run
    content = json.loads((folder / "result.json").read_text())
    assert content["status"] == "finished"
    assert content["config"]["norms"] == NORMS
    assert content["config"]["width"] == 8 and content["config"]["seeds"] == 2
    assert content["environment"]["packages"]["torch"] == torch.__version__
    assert content["environment"]["processor"] and content["environment"]["cores"] >= 1
    assert [row["norm"] for row in content["summary"]] == NORMS
    assert len(content["runs"]) == 8
    for row in content["summary"]:
        losses = [run["train_loss"] for run in content["runs"] if run["norm"] == row["norm"]]
        assert row["train_loss"]["mean"] == pytest.approx(sum(losses) / 2)
        assert row["train_loss"]["count"] == 2 and losses[0] != losses[1]


def test_curves_csv_holds_every_epoch_and_ends_at_the_results(tiny_run):
    _, folder = tiny_run
    with (folder / "curves.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 4 * 2 * 2
    final = {(row["norm"], int(row["seed"])): row for row in rows if row["epoch"] == "2"}
    for run in json.loads((folder / "result.json").read_text())["runs"]:
        row = final[run["norm"], run["seed"]]
        assert float(row["train_loss"]) == run["train_loss"]
        assert float(row["test_error"]) == run["test_error"]


def test_the_recorded_command_repeats_the_results(tiny_run, tmp_path):
    _, folder = tiny_run
    content = json.loads((folder / "result.json").read_text())
    program, *words = shlex.split(content["command"])
    assert program == "isonorm"
    assert isonorm_command(*words, "--out", str(tmp_path)).exit_code == 0
    again = json.loads(next(tmp_path.glob("*-compare/result.json")).read_text())
    assert again["config"] == content["config"]
    losses, losses_again = ([run["train_loss"] for run in c["runs"]] for c in (content, again))
    assert losses_again == losses


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--norms", "plain,batchnrm"], "called 'batchnrm': choose from plain, iternorm, dbn,"),
        (
            ["--norms", "groupnorm"],
            "groupnorm does not fit this network: num_groups=32 does not divide",
        ),
        (["--data", "nmist"], "choose from digits, mnist, cifar10"),
        (["--device", "abacus"], "device 'abacus' cannot be used here"),
        (["--device", "meta"], "device 'meta' cannot be used here"),
        (["--batch-size", "5000"], "between 1 and the 1347 images"),
        (["--name", "../up"], "name is letters, digits"),
    ],
)
def test_wrong_arguments_are_answered_in_one_sentence(words, sentence, tmp_path):
    result = isonorm_command("compare", *words, "--out", str(tmp_path / "runs"))
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("isonorm: ") and result.stderr.count("\n") == 1
    assert sentence in result.stderr
    assert not (tmp_path / "runs").exists()


def test_a_place_that_cannot_be_written_is_answered_in_one_sentence(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    result = isonorm_command("compare", *TINY, "--norms", "plain", "--out", str(tmp_path / "file"))
    assert result.exit_code == 1
    assert result.stderr.startswith(f"isonorm: cannot write to {tmp_path / 'file'}")
    assert result.stderr.count("\n") == 1


def test_ctrl_c_keeps_and_shows_finished_runs(tmp_path, monkeypatch):
    train, calls = comparing.train, []

    def stopped_at_the_second(*arguments, **options):
        calls.append(arguments)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return train(*arguments, **options)

    monkeypatch.setattr(comparing, "train", stopped_at_the_second)
    result = isonorm_command("compare", *TINY, "--norms", "plain,bn", "--out", str(tmp_path))
    assert result.exit_code == 130
    assert "│ plain" in result.stdout and "│ batchnorm" not in result.stdout
    assert "Stopped with 1 of 6 runs finished: the table and the files hold these." in result.stdout
    assert len(list(tmp_path.glob("*/result.json"))) == 1


def test_norms_are_listed_with_their_papers():
    result = isonorm_command("norms")
    assert result.exit_code == 0
    for name in isonorm.list_norms():
        assert f"│ {name} " in result.stdout
    assert "Decorrelated Batch Normalization, CVPR 2018" in result.stdout


def test_norms_can_be_narrowed_by_a_pattern():
    result = isonorm_command("norms", "*whiten*")
    names = [
        line.split("│")[1].strip() for line in result.stdout.splitlines() if line.startswith("│")
    ]
    assert [name for name in names if name] == isonorm.list_norms("*whiten*")
    nothing = isonorm_command("norms", "zzz")
    assert nothing.exit_code == 2 and "no name matches 'zzz'" in nothing.stderr


WITHOUT_LAB = """
import sys
import isonorm
heavy = {"typer", "rich", "matplotlib", "sklearn", "isonorm.lab"} & set(sys.modules)
assert not heavy, heavy
sys.modules["typer"] = None  # as if it were not installed
import isonorm.lab.cli
"""


def test_the_library_does_without_the_lab_and_the_command_says_what_it_needs():
    result = subprocess.run([sys.executable, "-c", WITHOUT_LAB], capture_output=True, text=True)
    assert result.returncode == 1
    assert result.stderr == (
        "The isonorm command needs typer: pip install 'isonorm[lab]' brings it.\n"
    )


def test_data_sets_are_listed_with_their_files(official, tmp_path):
    official.cifar(tmp_path)
    result = isonorm_command("data", "--folder", str(tmp_path))
    assert result.exit_code == 0
    here = {
        cells[1].strip(): cells[4].strip()
        for line in result.stdout.splitlines()
        if line.startswith("│") and (cells := line.split("│"))[1].strip()
    }
    assert here == {name: "yes" if name in ("digits", "cifar10") else "no" for name in SOURCES}
    assert "cifar-10-binary.tar.gz" in result.stdout


def test_a_data_set_is_read_and_described(official, tmp_path):
    official.faces(tmp_path, "yaleb")
    result = isonorm_command("data", "yaleb", "--folder", str(tmp_path))
    rows = [
        [cell.strip() for cell in line.split("│")[1:-1]]
        for line in result.stdout.splitlines()
        if line.startswith("│")
    ]
    assert rows == [
        ["train", "114", "1 × 32 × 32", "0 to 255", "38", "3 to 3"],
        ["test", "38", "1 × 32 × 32", "0 to 255", "38", "1 to 1"],
    ]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["nmist"], "there is no data set called 'nmist'"),
        (["pie"], "pie was not found in"),
        (["--download"], "--download fetches one data set: name it."),
    ],
)
def test_data_that_is_not_there_is_answered_in_one_sentence(words, sentence, tmp_path):
    result = isonorm_command("data", *words, "--folder", str(tmp_path))
    assert result.exit_code == 2 and result.stdout == ""
    assert sentence in result.stderr and result.stderr.count("\n") == 1


def test_compare_reads_data_from_files(official, tmp_path, monkeypatch):
    official.mnist(tmp_path, train=40)
    monkeypatch.setenv("ISONORM_DATA", str(tmp_path))
    words = ["--depth", "2", "--width", "4", "--epochs", "1", "--batch-size", "20"]
    words += ["--norms", "bn", "--seeds", "1", "--data", "mnist", "--out", str(tmp_path / "runs")]
    result = isonorm_command("compare", *words)
    assert result.exit_code == 0, result.output
    content = json.loads(next(tmp_path.glob("runs/*/result.json")).read_text())
    assert content["config"]["data"] == "mnist" and not content["runs"][0]["diverged"]
