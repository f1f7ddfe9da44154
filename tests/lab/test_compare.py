"""``isonorm compare`` from the command line: its table and files, stopping and going on."""

from __future__ import annotations

import gc
import json
import shlex
import signal
import weakref
from pathlib import Path
from shutil import copytree

import pytest
import torch
from typer.testing import CliRunner, Result

from isonorm.lab import conduct, environment, figures, records
from isonorm.lab import experiment as experiments
from isonorm.lab.cli import app
from isonorm.lab.tables import tabulate
from tests.lab import struck
from tests.lab.run_folders import curves, result_of, weights
from tests.processes import call

TINY = ["--depth", "2", "--width", "8", "--epochs", "2", "--batch-size", "400", "--device", "cpu"]
NORMS = ["plain", "equinorm", "dbn:group_size=4", "batchnorm"]


def compare(*words: str) -> Result:
    return CliRunner().invoke(app, ["compare", *words])


def tiny_words(out: Path) -> list[str]:
    """Eight trainings of two epochs."""
    norms = "none,equinorm,dbn:group_size=4,bn"
    return [*TINY, "--norms", norms, "--seeds", "2", "--keep-weights", "--out", str(out)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> tuple[Result, Path]:
    """A comparison from beginning to end, with its figure."""
    out = tmp_path_factory.mktemp("out") / "runs"
    result = compare(*tiny_words(out), "--name", "tiny")
    assert result.exit_code == 0, result.output
    (folder,) = out.iterdir()
    return result, folder


@pytest.fixture
def _nothing_is_drawn(monkeypatch):
    """It would take longer than everything else."""
    monkeypatch.setattr(figures, "curves", lambda *arguments, **options: None)
    monkeypatch.setattr(figures, "save", lambda *arguments: [])


def test_it_says_what_it_found_in_plain_lines(whole):
    result, folder = whole
    assert "\x1b" not in result.output and result.stderr == ""
    lines = result.output.splitlines()
    assert [line.split(":")[0] for line in lines[:5]] == [
        "[1/8] plain, seed 0",
        "[2/8] equinorm, seed 0",
        "[3/8] dbn",
        "[4/8] batchnorm, seed 0",
        "[5/8] plain, seed 1",
    ]
    rows = [line.split("│")[1:-1] for line in lines if line.startswith("│")]
    assert [row[0].strip() for row in rows] == NORMS
    assert all(float(row[-1].split("±")[0]) > 0 for row in rows), "peak memory is measured"
    assert lines[-1] == f"Results, curves and figures are in {folder}, and report.html shows them"


def test_it_leaves_its_files(whole):
    _, folder = whole
    assert folder.name.endswith("-tiny")
    left = {file.name for file in folder.iterdir() if file.suffix != ".safetensors"}
    assert {"curves.csv", "curves.png", "curves.svg", "report.html", "result.json"} <= left
    assert len(weights(folder)) == 8 and not list(folder.glob("*checkpoint*"))


def test_result_json_tells_what_was_run_where_and_what_came_out(whole):
    _, folder = whole
    content = result_of(folder)
    assert content["status"] == "finished" and content["seeds"] == 2
    assert content["comparison"]["norms"] == NORMS and content["comparison"]["width"] == 8
    assert torch.__version__.startswith(content["environment"]["packages"]["torch"])
    assert content["environment"]["processor"] and content["environment"]["cores"] >= 1
    assert [row["configuration"] for row in content["summary"]] == NORMS
    assert len(content["runs"]) == 8
    for row in content["summary"]:
        name = row["configuration"]
        losses = [run["train_loss"] for run in content["runs"] if run["name"] == name]
        assert row["train_loss"]["mean"] == pytest.approx(sum(losses) / 2)
        assert row["train_loss"]["count"] == 2 and losses[0] != losses[1]
        assert row["peak_bytes"]["mean"] > 0 and row["threshold"] == 0.95
        assert row["epochs_to_threshold"]["total"] == 2


def test_curves_csv_holds_every_epoch_and_ends_at_the_results(whole):
    _, folder = whole
    rows = curves(folder)
    assert len(rows) == 4 * 2 * 2
    final = {(row["configuration"], int(row["seed"])): row for row in rows if row["number"] == "2"}
    for run in result_of(folder)["runs"]:
        row = final[run["name"], run["seed"]]
        assert float(row["train_loss"]) == run["train_loss"]
        assert float(row["test_error"]) == run["test_error"]


@pytest.mark.usefixtures("_nothing_is_drawn")
def test_the_recorded_command_repeats_the_results(whole, tmp_path):
    _, folder = whole
    program, *words = shlex.split(result_of(folder)["command"])
    assert program == "isonorm" and words[0] == "compare"
    assert compare(*words[1:], "--out", str(tmp_path)).exit_code == 0
    (again,) = tmp_path.iterdir()
    assert again.name.endswith("-compare")
    assert curves(again) == curves(folder)
    torch.testing.assert_close(weights(again), weights(folder), rtol=0, atol=0)


@pytest.mark.usefixtures("_nothing_is_drawn")
def test_killed_and_resumed_it_ends_with_the_same_weights_and_curves(whole, tmp_path):
    saved = "02-seed1-checkpoint.safetensors"  # the first epoch of the sixth training
    code, *said = call(struck.run_and_be_killed, saved, ["compare", *tiny_words(tmp_path)])
    assert code == -signal.SIGKILL, said
    (folder,) = tmp_path.iterdir()
    content = result_of(folder)
    assert content["status"] == "running" and len(content["runs"]) == 5
    assert [path.name for path in folder.glob("*checkpoint*")] == [saved]
    resumed = compare("--resume", str(folder))
    assert resumed.exit_code == 0, resumed.output
    assert resumed.output.startswith("[1/3] equinorm, seed 1: ")
    assert result_of(folder)["status"] == "finished" and not list(folder.glob("*checkpoint*"))
    assert curves(folder) == curves(whole[1])
    torch.testing.assert_close(weights(folder), weights(whole[1]), rtol=0, atol=0)


def test_ctrl_c_keeps_and_shows_finished_runs_and_says_how_to_go_on(whole, tmp_path, monkeypatch):
    train, calls = experiments.train, []

    def stopped_at_the_sixth(*arguments, **options):
        calls.append(arguments)
        if len(calls) == 6:
            raise KeyboardInterrupt
        return train(*arguments, **options)

    monkeypatch.setattr(experiments, "train", stopped_at_the_sixth)
    stopped = compare(*tiny_words(tmp_path))
    (folder,) = tmp_path.iterdir()
    assert stopped.exit_code == 130
    assert "│ plain" in stopped.stdout and ", 1 to 2 seeds; mean" in stopped.stdout
    assert stopped.stdout.splitlines()[-1] == (
        "Stopped with 5 trainings finished and 3 to go. Go on with: "
        f"isonorm compare --resume {folder}"
    )
    content = result_of(folder)
    assert content["status"] == "interrupted"
    assert [(run["name"], run["seed"]) for run in content["runs"]] == [
        *((norm, 0) for norm in NORMS),
        ("plain", 1),
    ]
    assert (folder / "curves.png").stat().st_size > 0

    monkeypatch.undo()
    monkeypatch.setattr(figures, "save", lambda *arguments: [])
    assert compare("--resume", str(folder)).exit_code == 0
    assert curves(folder) == curves(whole[1])


@pytest.mark.usefixtures("_nothing_is_drawn")
def test_stopped_before_the_first_result_it_can_go_on(tmp_path, monkeypatch):
    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    words = [*TINY, "--norms", "plain", "--seeds", "1", "--out", str(tmp_path)]
    with monkeypatch.context() as patch:
        patch.setattr(experiments, "train", interrupted)
        stopped = compare(*words)
    (folder,) = tmp_path.iterdir()
    assert stopped.exit_code == 130
    assert stopped.stdout.splitlines()[-1].startswith("Stopped with 0 trainings finished and 1 to")
    assert "Results" not in stopped.stdout, "there are none"
    assert [file.name for file in sorted(folder.iterdir())] == ["curves.csv", "result.json"]
    assert compare("--resume", str(folder)).exit_code == 0
    assert len(result_of(folder)["runs"]) == 1


@pytest.mark.usefixtures("_nothing_is_drawn")
def test_a_full_disk_leaves_earlier_results_untouched(tmp_path, monkeypatch):
    flush, writes = records._flush_to_disk, 0

    def disk_that_fills_up(path):
        nonlocal writes
        writes += 1
        if writes > 4:  # twice: with nothing finished, and with the first training
            raise OSError(28, "No space left on device", str(path))
        flush(path)

    monkeypatch.setattr(records, "_flush_to_disk", disk_that_fills_up)
    monkeypatch.setattr(experiments, "SECONDS_BETWEEN_CHECKPOINTS", 1e9)
    ran = compare(*TINY, "--norms", "plain", "--seeds", "2", "--out", str(tmp_path))
    assert ran.exit_code == 1 and ran.stderr.count("\n") == 1
    assert "No space left on device" in ran.stderr
    (folder,) = tmp_path.iterdir()
    assert sorted(file.name for file in folder.iterdir()) == ["curves.csv", "result.json"]
    assert len(result_of(folder)["runs"]) == 1


@pytest.mark.usefixtures("_nothing_is_drawn")
def test_where_everything_diverges_time_and_memory_are_told(tmp_path):
    words = [*TINY, "--norms", "plain", "--seeds", "2", "--lr", "1e30", "--epochs", "3"]
    result = compare(*words, "--out", str(tmp_path))
    assert result.exit_code == 0, result.output
    (folder,) = tmp_path.iterdir()
    content = result_of(folder)
    assert all(run["diverged"] and run["peak_bytes"] > 0 for run in content["runs"])
    headings, (row,), _ = tabulate(content)
    assert headings == ["norm", "epochs to 95%", "ms per step", "peak MB"]
    assert row[1] == "diverged" and all(float(cell.split("±")[0]) > 0 for cell in row[2:])


@pytest.mark.usefixtures("_nothing_is_drawn")
def test_threads_are_given_back(tmp_path, monkeypatch):
    seen, train = [], experiments.train
    monkeypatch.setattr(
        experiments, "train", lambda *a, **k: seen.append(torch.get_num_threads()) or train(*a, **k)
    )
    before = torch.get_num_threads()
    words = ["--norms", "plain", "--seeds", "1", "--threads", str(before + 1)]
    assert compare(*TINY, *words, "--out", str(tmp_path)).exit_code == 0
    assert seen == [before + 1] and torch.get_num_threads() == before


@pytest.mark.usefixtures("_nothing_is_drawn")
def test_convolutions_other_plans_and_precisions(tmp_path):
    words = "--model small_cnn --width 0.1 --norms bn,gn:num_groups=1,equinorm-quarter --epochs 2 "
    words += "--batch-size 400 --optimizer lars --momentum 0.9 --weight-decay 1e-4 --seeds 1 "
    words += "--schedule steps --precision float64 --threshold 0.2 --spread median --device cpu"
    result = compare(*words.split(), "--keep-weights", "--out", str(tmp_path))
    assert result.exit_code == 0, result.output
    (folder,) = tmp_path.iterdir()
    assert "epochs to 20%" in result.stdout
    assert "LARS, lr 0.5, momentum 0.9, weight decay 0.0001, steps, batch" in result.stdout
    kinds = {t.dtype for state in weights(folder).values() for t in state.values()}
    assert kinds == {torch.float64, torch.int64}
    assert not any(run["diverged"] for run in result_of(folder)["runs"])


@pytest.mark.usefixtures("_nothing_is_drawn")
def test_data_comes_from_files(official, tmp_path):
    official.mnist(tmp_path, train=40)
    words = ["--depth", "2", "--width", "4", "--epochs", "1", "--batch-size", "20", "--norms", "bn"]
    words += ["--seeds", "1", "--data", "mnist", "--out", str(tmp_path / "runs"), "--device", "cpu"]
    for where in (["--folder", str(tmp_path)], None):
        environment = {"ISONORM_DATA": str(tmp_path)} if where is None else {}
        result = CliRunner(env=environment).invoke(app, ["compare", *words, *(where or [])])
        assert result.exit_code == 0, result.output
    for folder in (tmp_path / "runs").iterdir():
        content = result_of(folder)
        assert content["comparison"]["data"] == "mnist" and content["data"] == str(tmp_path)


@pytest.mark.usefixtures("_nothing_is_drawn")
def test_data_is_read_once(official, tmp_path, monkeypatch):
    """And not kept where other processes read their own."""
    official.mnist(tmp_path, train=40)
    read, seen = experiments.read_data, []

    def counted(*arguments, **options):
        data = read(*arguments, **options)
        seen.append(weakref.ref(data))
        return data

    monkeypatch.setattr(experiments, "read_data", counted)
    words = ["--depth", "2", "--width", "4", "--epochs", "1", "--batch-size", "20", "--norms", "bn"]
    words += ["--seeds", "1", "--data", "mnist", "--folder", str(tmp_path), "--device", "cpu"]
    assert compare(*words, "--out", str(tmp_path / "runs")).exit_code == 0
    assert len(seen) == 1

    def processes(experiment, progress):
        gc.collect()
        assert len(seen) == 2 and seen[1]() is None
        yield from ()

    monkeypatch.setattr(conduct, "side_by_side", processes)
    ran = compare(*words, "--jobs", "2", "--out", str(tmp_path / "runs"))
    assert ran.exit_code == 0, ran.output


@pytest.mark.usefixtures("_nothing_is_drawn")
def test_what_is_resumed_elsewhere_keeps_its_first_environment(whole, tmp_path, monkeypatch):
    folder = copytree(whole[1], tmp_path / "run")
    first = result_of(folder)
    assert first["resumed_in"] == []
    elsewhere = {**first["environment"], "python": "3.99.0"}
    monkeypatch.setattr(environment, "describe", lambda device: elsewhere)
    assert compare("--resume", str(folder)).exit_code == 0
    assert result_of(folder)["resumed_in"] == [], "nothing was left to do"
    for left in (3, 7):  # twice in the other environment, which is told once
        content = {**result_of(folder), "runs": first["runs"][:left]}
        (folder / "result.json").write_text(json.dumps(content))
        assert compare("--resume", str(folder)).exit_code == 0
        now = result_of(folder)
        assert len(now["runs"]) == 8 and now["environment"] == first["environment"]
        assert now["resumed_in"] == [elsewhere]
    page = (folder / "report.html").read_text()
    assert "3.99.0" in page and first["environment"]["python"] in page


@pytest.mark.usefixtures("_nothing_is_drawn")
def test_data_that_has_moved_is_found_again(official, tmp_path, monkeypatch):
    official.mnist(tmp_path / "before", train=40)
    monkeypatch.chdir(tmp_path)
    words = ["--depth", "2", "--width", "4", "--epochs", "1", "--batch-size", "20", "--norms", "bn"]
    words += ["--seeds", "1", "--data", "mnist", "--folder", "before", "--device", "cpu"]
    assert compare(*words, "--out", str(tmp_path / "runs")).exit_code == 0
    (folder,) = (tmp_path / "runs").iterdir()
    content = result_of(folder)
    assert content["data"] == str(tmp_path / "before")
    (folder / "result.json").write_text(json.dumps({**content, "runs": []}))
    (tmp_path / "before").rename(tmp_path / "after")
    assert compare("--resume", str(folder)).exit_code == 2
    assert compare("--resume", str(folder), "--folder", "after").exit_code == 0
    assert result_of(folder)["data"] == str(tmp_path / "after")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--norms", "plain,batchnrm"], "called 'batchnrm': did you mean 'batchnorm'?"),
        (["--norms", "bn,equinrom"], "called 'equinrom': did you mean 'equinorm'?"),
        (
            ["--norms", "groupnorm"],
            "groupnorm cannot be used here: num_groups=32 does not divide",
        ),
        (["--data", "nmist"], "choose from digits, mnist, cifar10"),
        (["--data", "mnist", "--folder", "nowhere"], "mnist was not found in"),
        (["--model", "vgg_a", "--width", "0.1"], "vgg_a does not fit the 1 × 8 × 8 images"),
        (["--model", "cifar_resnet20", "--depth", "8"], "has depth=20 by its name; leave depth"),
        (["--width", "0"], "a hidden layer must be an integer of at least 1; got 0"),
        (["--width", "inf"], "width must be between 0 and 100,000; got inf."),
        (["--lr", "inf"], "lr must be between 0 and 1e+30; got inf."),
        (["--momentum", "inf"], "momentum must be between 0 and 1e+30; got inf."),
        (["--weight-decay", "inf"], "weight decay must be between 0 and 1e+30; got inf."),
        (["--device", "abacus"], "device 'abacus' cannot be used here"),
        (["--device", "meta"], "device 'meta' cannot be used here"),
        (["--precision", "int8"], "precision must be one of float32"),
        (["--compile", "maybe"], "compile must be one of no, yes, graphs"),
        (["--batch-size", "5000"], "between 1 and the 1347 images"),
        (["--name", "../up"], "name is letters, digits"),
        (["--resume", "nowhere"], "--resume goes on with a run as it was begun: leave out --out."),
    ],
)
def test_wrong_words_are_answered_in_one_sentence(words, sentence, tmp_path):
    result = compare(*words, "--out", str(tmp_path / "runs"))
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("isonorm: ") and result.stderr.count("\n") == 1
    assert sentence in result.stderr
    assert not (tmp_path / "runs").exists()


def test_a_place_that_cannot_be_written_is_answered_in_one_sentence(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    result = compare(*TINY, "--norms", "plain", "--out", str(tmp_path / "file"))
    assert result.exit_code == 1
    assert result.stderr.startswith(f"isonorm: cannot write to {tmp_path / 'file'}")
    assert result.stderr.count("\n") == 1


def test_what_is_no_run_is_not_resumed_and_a_comparison_is_not_judged(whole, tmp_path):
    answered = compare("--resume", str(tmp_path))
    assert answered.exit_code == 2 and "is not the folder of a run" in answered.stderr
    other = CliRunner().invoke(app, ["run", "--resume", str(whole[1])])
    assert other.exit_code == 2 and f"compare --resume {whole[1]} goes on" in other.stderr
    checked = CliRunner().invoke(app, ["check", str(whole[1])])
    assert checked.exit_code == 0 and "there are no claims to judge" in checked.stdout
