"""The commands around recipes: resuming, several processes, claims, and what can go wrong."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from typer.testing import CliRunner, Result

from isonorm.lab import experiment as experiments
from isonorm.lab import records, reproduce, run_files
from isonorm.lab.cli import app
from isonorm.lab.recipes import all_recipes, find_recipe
from tests.lab import struck
from tests.lab.run_folders import curves, weights
from tests.processes import call, python

TWO_EPOCHS = "dbn2018-table2"  # four trainings of two epochs at quick scale

pytestmark = pytest.mark.usefixtures("nothing_is_drawn")


@pytest.fixture(scope="module")
def files(tmp_path_factory, official) -> Path:
    folder = tmp_path_factory.mktemp("data")
    official.cifar(folder, train=60, test=20)
    official.mnist(folder, train=60, test=20)
    official.faces(folder, "pie")
    return folder


def words(files: Path, out: Path, *more: str, recipe: str = TWO_EPOCHS) -> list[str]:
    return ["run", recipe, "--data", str(files), "--scale", "quick", "--device", "cpu",
            "--keep-weights", "--out", str(out), *more]  # fmt: skip


def isonorm_command(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


@pytest.fixture(scope="module")
def whole(files, tmp_path_factory) -> Path:
    """A run from beginning to end."""
    out = tmp_path_factory.mktemp("whole")
    ran = isonorm_command(*words(files, out))
    assert ran.exit_code == 0, ran.output
    (folder,) = out.iterdir()
    return folder


def test_weights_say_which_training_made_them(whole):
    recipe = find_recipe(TWO_EPOCHS).shrunk()
    for number, configuration in enumerate(recipe.configurations, 1):
        file = whole / f"{number:02}-seed0.safetensors"
        with safe_open(str(file), framework="pt") as opened:
            notes = opened.metadata()
        assert notes["run"] == TWO_EPOCHS
        assert notes["training of"] == f"{configuration.name}, seed 0"
        assert notes["norm"] == configuration.norm


def test_killed_and_resumed_it_ends_with_the_same_weights_and_curves(whole, files, tmp_path):
    saved = "03-seed0-checkpoint.safetensors"  # the first epoch of the third training
    code, *said = call(struck.run_and_be_killed, saved, words(files, tmp_path))
    assert code == -signal.SIGKILL, said
    (folder,) = tmp_path.iterdir()
    content = json.loads((folder / "result.json").read_text())
    assert content["status"] == "running" and len(content["runs"]) == 2
    (checkpoint,) = folder.glob("*checkpoint*")
    assert checkpoint.name == saved

    resumed = isonorm_command("run", "--resume", str(folder))
    assert resumed.exit_code == 0, resumed.output
    assert resumed.output.startswith("[1/2] ")  # two of four were finished
    assert not list(folder.glob("*checkpoint*"))
    assert json.loads((folder / "result.json").read_text())["status"] == "finished"
    assert curves(folder) == curves(whole)
    torch.testing.assert_close(weights(folder), weights(whole), rtol=0, atol=0)


def test_ctrl_c_stops_cleanly_and_says_how_to_go_on(whole, files, tmp_path, monkeypatch):
    monkeypatch.setattr(experiments, "SECONDS_BETWEEN_CHECKPOINTS", 0.0)
    train = experiments.train

    def interrupted(*arguments, on_epoch, **options):
        def at_the_second(epoch):
            on_epoch(epoch)
            if epoch.number == 1 and len(list(tmp_path.glob("*/0?-seed0.safetensors"))) == 1:
                signal.raise_signal(signal.SIGINT)

        return train(*arguments, on_epoch=at_the_second, **options)

    monkeypatch.setattr(experiments, "train", interrupted)
    # as at a terminal: a worker of pytest-xdist ignores the signal
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        stopped = isonorm_command(*words(files, tmp_path))
    finally:
        signal.signal(signal.SIGINT, before)
    (folder,) = tmp_path.iterdir()
    assert stopped.exit_code == 130
    last = stopped.output.splitlines()[-1]
    assert last == (
        f"Stopped with 1 training finished and 3 to go. Go on with: isonorm run --resume {folder}"
    )
    assert json.loads((folder / "result.json").read_text())["status"] == "interrupted"

    monkeypatch.undo()
    assert isonorm_command("run", "--resume", str(folder)).exit_code == 0
    assert curves(folder) == curves(whole)
    torch.testing.assert_close(weights(folder), weights(whole), rtol=0, atol=0)


def test_two_processes_train_to_the_weights_of_one(files, tmp_path):
    """On the CPU with gloo, in float64, with the statistics of the whole batch."""
    options = ["--precision", "float64", "--sync-statistics"]
    for pattern in ("BN", "G1*"):  # DBN in groups of 1, of 16 and all, at two learning rates
        options += ["--only", pattern]
    recipe = "dbn2018-fig4"
    one = isonorm_command(*words(files, tmp_path / "one", *options, recipe=recipe))
    assert one.exit_code == 0, one.output
    options += ["--devices", "2"]
    command = words(files, tmp_path / "two", *options, recipe=recipe)
    two = python("-m", "isonorm.lab.cli", *command)
    assert two.code == 0, two
    folders = [next((tmp_path / name).iterdir()) for name in ("one", "two")]
    expected, found = map(weights, folders)
    assert len(expected) == 8
    for name in expected:
        for key, value in expected[name].items():
            assert value.dtype == torch.float64 or not value.is_floating_point()
            torch.testing.assert_close(found[name][key], value, rtol=1e-5, atol=1e-9)
    for row, other in zip(*map(curves, folders), strict=True):
        assert float(row["train_loss"]) == pytest.approx(float(other["train_loss"]), rel=1e-5)
        assert row["test_error"] == other["test_error"]


def test_divergence_is_recorded_and_never_chosen(files, tmp_path, monkeypatch):
    recipe = run_files.find_recipe("dbn2018-fig2")
    searches = [
        replace(c, search=replace(c.search, grid={"lr": (1e30, 0.1)}))
        for c in recipe.configurations[:2]
    ]
    quick = replace(recipe.quick, epochs=3)
    wild = replace(recipe, configurations=tuple(searches), claims=(), quick=quick)
    monkeypatch.setattr(reproduce, "find_recipe", lambda name: wild)
    ran = isonorm_command(*words(files, tmp_path, recipe=recipe.name))
    assert ran.exit_code == 0, ran.output
    (folder,) = tmp_path.iterdir()
    content = json.loads((folder / "result.json").read_text())
    assert [run["diverged"] for run in content["runs"]] == [True, False] * 2
    assert content["runs"][0]["train_loss"] is None
    assert {row["setting"] for row in content["summary"]} == {"lr=0.1"}


def test_a_full_disk_leaves_earlier_results_untouched(files, tmp_path, monkeypatch):
    flush, writes = records._flush_to_disk, 0

    def disk_that_fills_up(path):
        nonlocal writes
        writes += 1
        if writes > 6:  # twice: nothing finished; the first training; its weights; the second's
            raise OSError(28, "No space left on device", str(path))
        flush(path)

    monkeypatch.setattr(records, "_flush_to_disk", disk_that_fills_up)
    ran = isonorm_command(*words(files, tmp_path))
    assert ran.exit_code == 1
    assert ran.stderr.startswith("isonorm: cannot write to ") and ran.stderr.count("\n") == 1
    assert "No space left on device" in ran.stderr
    (folder,) = tmp_path.iterdir()
    assert len(json.loads((folder / "result.json").read_text())["runs"]) == 1
    monkeypatch.undo()
    assert isonorm_command("run", "--resume", str(folder)).exit_code == 0


def test_check_judges_a_finished_run(whole):
    checked = isonorm_command("check", str(whole))
    assert checked.exit_code == 0
    lines = checked.output.splitlines()
    assert len(lines) == 1 + len(run_files.find_recipe(TWO_EPOCHS).claims)
    assert all(line.split(":")[0] in {"holds", "fails", "undecided"} for line in lines[1:])


def test_check_says_how_much_of_an_unfinished_run_there_is(files, tmp_path):
    ran = isonorm_command(*words(files, tmp_path, recipe="dbn2018-fig2"))
    assert ran.exit_code == 0 and "Not finished" not in ran.output
    (folder,) = tmp_path.iterdir()
    content = json.loads((folder / "result.json").read_text())
    runs = content["runs"]
    assert len(runs) == 12  # of six configurations, the ends of a grid
    # as it would have been, stopped after a point of the second configuration
    left = json.dumps({**content, "runs": runs[:3], "status": "interrupted"})
    (folder / "result.json").write_text(left)
    checked = isonorm_command("check", str(folder))
    assert checked.exit_code == 0, checked.output
    lines = checked.output.splitlines()
    assert lines[0] == "Not finished (3 of 12 trainings): the verdicts are on what there is."
    assert len(lines) == 2 + len(run_files.find_recipe("dbn2018-fig2").claims)
    assert all(line.startswith("not measured: ") for line in lines[2:])


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (
            ["run", "dbn2018-tabel1"],
            "no recipe called 'dbn2018-tabel1': did you mean dbn2018-table1?",
        ),
        (["run"], "isonorm: name a recipe: there are dbn2018-cost,"),
        (["run", "dbn2018-table1", "--data", "nowhere"], "cifar10 was not found in"),
        (["run", "dbn2018-table3", "--data", "nowhere"], "imagenet was not found"),
        (["run", "dbn2018-table1", "--scale", "half"], "scale must be full or quick; got 'half'"),
        (["run", "dbn2018-table1", "--precision", "int8"], "precision must be one of float32"),
        (["run", "dbn2018-table1", "--compile", "maybe"], "compile must be one of no, yes, graphs"),
        (["run", "dbn2018-table1", "--device", "abacus"], "device 'abacus' cannot be used here"),
        (["run", "dbn2018-table1", "--device", "cpu:3"], "(a CPU has no number): choose cpu"),
        (["run", "dbn2018-table1", "--strategy", "fsdp"], "on a CPU choose ddp"),
        (["run", "dbn2018-table1", "--only", "Res"], "matches 'Res': there are Baseline, Res-20;"),
        (["run", "dbn2018-table1", "--devices", "3"], "3 processes cannot share equally"),
        (["run", "--resume", "nowhere"], "nowhere is not the folder of a run"),
        (["check", "nowhere"], "nowhere is not the folder of a run"),
        (["recipes", "fig"], "there is no recipe called 'fig'"),
    ],
)
def test_wrong_words_are_answered_in_one_sentence(wrong, sentence, files, tmp_path):
    if wrong[0] == "run" and "--resume" not in wrong:
        wrong = [*wrong, "--out", str(tmp_path / "runs")]
        if "--data" not in wrong:
            wrong += ["--data", str(files)]
    answered = isonorm_command(*wrong)
    assert answered.exit_code == 2
    assert answered.stderr.startswith("isonorm: ") and answered.stderr.count("\n") == 1
    assert sentence in answered.stderr
    assert not (tmp_path / "runs").exists()


def test_some_configurations_of_a_recipe(files, tmp_path):
    some = ["--only", "*, WRN-28-10", "--only", "Baseline, *"]
    ran = isonorm_command(*words(files, tmp_path, *some))
    assert ran.exit_code == 0, ran.output
    (folder,) = tmp_path.iterdir()
    content = json.loads((folder / "result.json").read_text())
    assert [row["configuration"] for row in content["summary"]] == [
        "Baseline, WRN-28-10",
        "DBN-scale-L1, WRN-28-10",
        "Baseline, WRN-40-10",
    ]
    assert [claim["claim"] for claim in content["claims"]] == [
        "DBN improves the original WRN-28-10."
    ]
    recorded = shlex.split(content["command"])
    assert [recorded[i + 1] for i, word in enumerate(recorded) if word == "--only"] == some[1::2]
    assert isonorm_command("check", str(folder)).exit_code == 0


def test_resuming_ignores_nothing(whole):
    answered = isonorm_command("run", "--resume", str(whole), "--seeds", "3")
    assert answered.exit_code == 2 and "as it was begun: leave out --seeds." in answered.stderr
    other = isonorm_command("run", "dbn2018-fig2", "--resume", str(whole))
    assert other.exit_code == 2 and f"is a run of {TWO_EPOCHS}, not of dbn2018-fig2" in other.stderr


def test_the_recorded_command_repeats_the_run(whole, tmp_path):
    content = json.loads((whole / "result.json").read_text())
    program, *recorded = shlex.split(content["command"])
    assert program == "isonorm" and "--keep-weights" in recorded
    assert isonorm_command(*recorded, "--out", str(tmp_path)).exit_code == 0
    (folder,) = tmp_path.iterdir()
    assert curves(folder) == curves(whole)


def test_a_changed_recipe_is_not_resumed(whole, tmp_path, monkeypatch):
    recipe = run_files.find_recipe(TWO_EPOCHS)
    other = replace(recipe, configurations=recipe.configurations[:1], claims=())
    monkeypatch.setattr(run_files, "find_recipe", lambda name: other)
    answered = isonorm_command("run", "--resume", str(whole))
    assert answered.exit_code == 2 and "is defined otherwise now" in answered.stderr
    checked = isonorm_command("check", str(whole))
    first, *verdicts = checked.output.splitlines()
    assert checked.exit_code == 0 and first.endswith("and the verdicts are those of then:")
    assert len(verdicts) == len(recipe.claims) and all("against" in line for line in verdicts)


def test_a_damaged_run_is_one_sentence(whole, tmp_path):
    content = json.loads((whole / "result.json").read_text())
    shutil.copytree(whole, tmp_path / "run")
    damaged = {key: json.dumps({k: content[k] for k in content if k != key}) for key in content}
    damaged |= {"foreign": "[1]", "half": json.dumps(content)[:99]}
    for what, text in damaged.items():
        (tmp_path / "run" / "result.json").write_text(text)
        answered = isonorm_command("check", str(tmp_path / "run"))
        assert isinstance(answered.exception, SystemExit | None), what
        assert (answered.exit_code == 2) == (answered.stderr.count("\n") == 1), what
        assert ("there is no whole result.json" in answered.stderr) >= (what == "half")
    shutil.copy(whole / "result.json", tmp_path / "run")
    curves = (whole / "curves.csv").read_text()
    for text in (curves[: len(curves) // 2], "", None):
        if text is None:
            (tmp_path / "run" / "curves.csv").unlink()
        else:
            (tmp_path / "run" / "curves.csv").write_text(text)
        for command in (["check"], ["run", "--resume"]):
            answered = isonorm_command(*command, str(tmp_path / "run"))
            assert answered.exit_code == 2 and answered.stderr.count("\n") == 1
            assert "curves.csv is missing or damaged" in answered.stderr


@pytest.mark.parametrize(
    "damage",
    [
        {"only": None},
        {"only": 7},
        {"only": [7]},
        {"seeds": "3"},
        {"seeds": None},
        {"seeds": -1},
        {"seeds": True},
        {"seeds": 10**18},
        {"data": 7},
        {"scale": "half"},
        {"machine": {"devices": "2"}},
        {"machine": {"threads": 0}},
        {"machine": {"threads": 10**9}},
        {"machine": {"device": "x"}},
        {"machine": {"abacus": 1}},
        {"machine": None},
        {"started": 7},
        {"keep_weights": "no"},
        {"environment": None},
        {"resumed_in": [7]},
        {"environment": {"packages": None}},
        {"resumed_in": [{"packages": 7}]},
        {"runs": None},
        {"runs": [{"steps_per_epoch": 0}]},
        {"runs": [{"steps_per_epoch": 10**400}]},
        {"comparison": {"width": []}},
        {"comparison": 7},
    ],
    ids=str,
)
@pytest.mark.parametrize("command", [["check"], ["run", "--resume"]], ids=["check", "resume"])
def test_a_result_of_other_types_is_one_sentence(command, damage, whole, tmp_path):
    content = json.loads((whole / "result.json").read_text())
    for key, value in damage.items():
        if key == "runs" and value:
            value = [{**content["runs"][0], **value[0]}]
        if isinstance(value, dict) and key == "machine":
            value = {**content[key], **value}
        content[key] = value
    text = json.dumps(content)
    (tmp_path / "result.json").write_text(text)
    shutil.copy(whole / "curves.csv", tmp_path)
    answered = isonorm_command(*command, str(tmp_path))
    assert answered.exit_code == 2 and answered.stderr.count("\n") == 1, answered.output
    assert "result.json is missing or damaged" in answered.stderr
    assert (tmp_path / "result.json").read_text() == text


def test_data_that_has_moved_is_found_again(files, tmp_path, monkeypatch):
    """And a folder that was named from elsewhere."""
    monkeypatch.chdir(files.parent)
    started = words(Path(files.name), tmp_path, "--only", "Baseline, WRN-28-10")
    assert isonorm_command(*started).exit_code == 0
    (folder,) = tmp_path.iterdir()
    content = json.loads((folder / "result.json").read_text())
    assert content["data"] == str(files)
    unfinished = json.dumps({**content, "runs": [], "data": str(tmp_path / "gone")})
    (folder / "result.json").write_text(unfinished)
    monkeypatch.chdir(tmp_path)
    lost = isonorm_command("run", "--resume", str(folder))
    assert lost.exit_code == 2 and "cifar10 was not found" in lost.stderr
    assert (folder / "result.json").read_text() == unfinished
    found = isonorm_command("run", "--resume", str(folder), "--data", os.path.relpath(files))
    assert found.exit_code == 0, found.output
    content = json.loads((folder / "result.json").read_text())
    assert content["data"] == str(files) and len(content["runs"]) == 1
    assert str(files) in shlex.split(content["command"])


def test_recipes_are_listed_and_described():
    listed = isonorm_command("recipes")
    assert listed.exit_code == 0
    for name in all_recipes():
        assert f"│ {name} " in listed.output
    described = isonorm_command("recipes", TWO_EPOCHS)
    assert described.exit_code == 0
    for text in ("WRN-28-10", "3.79", "Where the paper is silent", "20 trainings", "on an H200"):
        assert text in described.output
