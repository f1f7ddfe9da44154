"""``isonorm run`` and ``check`` of recipes that measure layers."""

from __future__ import annotations

import json
import shlex
import signal
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from isonorm.lab import figures, filing, lock
from isonorm.lab.cli import app
from isonorm.lab.measuring import command, meters, run
from isonorm.lab.recipes import all_recipes

COST, TABLE = "dbn2018-cost", "iternorm2019-supp-table1"


@pytest.fixture(autouse=True)
def _nothing_is_drawn(monkeypatch):
    monkeypatch.setattr(figures, "save", lambda *arguments: [])


def isonorm_command(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


def words(out: Path, *more: str, recipe: str = COST) -> list[str]:
    return ["run", recipe, "--scale", "quick", "--device", "cpu", "--out", str(out), *more]


def content(folder: Path) -> dict:
    return json.loads((folder / "result.json").read_text())


def counted(folder: Path) -> list[tuple]:
    """What does not depend on a clock."""
    return [(run["name"], run["seed"], run["operations"]) for run in content(folder)["runs"]]


def test_what_a_measurement_leaves(tmp_path):
    ran = isonorm_command(*words(tmp_path, "--seeds", "2", "--only", "DBN*"))
    assert ran.exit_code == 0, ran.output
    (folder,) = tmp_path.iterdir()
    found = content(folder)
    assert (found["status"], found["scale"], found["seeds"]) == ("finished", "quick", 2)
    names = ["DBN-G8", "DBN-G16", "DBN-G32", "DBN, full"]
    assert [row["configuration"] for row in found["summary"]] == names
    assert [(row["name"], row["seed"]) for row in found["runs"]] == [
        (name, seed) for seed in (0, 1) for name in names
    ]
    assert all(row["device_milliseconds"] > 0 and row["error"] < 1e-5 for row in found["runs"])
    assert found["summary"][-1]["paper"]["device_milliseconds"] == 71
    assert found["summary"][0]["formula"] == {"text": "hwm·d·K + d·K²", "value": 16_896}
    assert len(found["claims"]) == 5  # those about the convolution are left out
    checked = isonorm_command("check", str(folder))
    assert checked.exit_code == 0
    assert [line.split(":")[0] for line in checked.output.splitlines()[1:]] == [
        claim["answer"] for claim in found["claims"]
    ]
    program, *recorded = shlex.split(found["command"])
    repeated = isonorm_command(*recorded, "--out", str(tmp_path / "again"))
    assert program == "isonorm" and repeated.exit_code == 0
    (again,) = (tmp_path / "again").iterdir()
    assert counted(again) == counted(folder)


def test_graphs_within_graphs_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(command, "resolve_device", lambda name: "cuda")
    refused = isonorm_command(*words(tmp_path, "--compile", "graphs"))
    assert refused.exit_code == 2 and refused.stderr.count("\n") == 1
    assert f"{COST} replays passes as CUDA graphs by itself" in refused.stderr
    assert "--compile yes compiles" in refused.stderr and not list(tmp_path.iterdir())


def test_a_record_has_its_bars_drawn_anew(tmp_path, monkeypatch):
    isonorm_command(*words(tmp_path, "--seeds", "1", "--only", "DBN-G8"))
    (folder,) = tmp_path.iterdir()
    monkeypatch.setattr(filing, "_finished", content)  # at quick scale
    drawn = []
    monkeypatch.setattr(figures, "save", lambda figure, to, name: drawn.append((to.parent, name)))
    filing.file_run(folder, tmp_path / "records")
    assert drawn == [(tmp_path / "records", "bars")]


def test_a_measurement_that_is_being_made_is_not_resumed(tmp_path, monkeypatch):
    isonorm_command(*words(tmp_path, "--seeds", "1", "--only", "DBN-G8"))
    (folder,) = tmp_path.iterdir()
    before = content(folder)
    monkeypatch.setattr(lock, "_lock", lambda file: False)  # another process has it
    refused = isonorm_command("run", "--resume", str(folder))
    assert refused.exit_code == 1 and refused.stderr.count("\n") == 1
    assert "another process works on" in refused.stderr and content(folder) == before


def test_ctrl_c_keeps_what_was_measured_and_resuming_goes_on(tmp_path, monkeypatch):
    measure = run.measure

    def interrupted(layer, *arguments):
        if layer.name == "DBN-G16":
            signal.raise_signal(signal.SIGINT)
        return measure(layer, *arguments)

    monkeypatch.setattr(run, "measure", interrupted)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        stopped = isonorm_command(*words(tmp_path))
    finally:
        signal.signal(signal.SIGINT, before)
    (folder,) = tmp_path.iterdir()
    assert stopped.exit_code == 130
    assert stopped.output.endswith(f"Go on with: isonorm run --resume {folder}\n")
    kept = content(folder)
    assert kept["status"] == "interrupted" and len(kept["runs"]) == 2
    assert kept["claims"][-1]["answer"] == "not measured"

    monkeypatch.setattr(run, "measure", measure)
    refused = isonorm_command("run", "--resume", str(folder), "--seeds", "2")
    assert refused.exit_code == 2 and "as it was begun: leave out --seeds." in refused.stderr
    other = isonorm_command("run", TABLE, "--resume", str(folder))
    assert other.exit_code == 2 and f"is a run of {COST}, not of {TABLE}" in other.stderr
    resumed = isonorm_command("run", "--resume", str(folder))
    assert resumed.exit_code == 0, resumed.output
    assert resumed.output.startswith("[3/5] DBN-G16, seed 0: ")
    assert content(folder)["status"] == "finished"
    assert content(folder)["runs"][:2] == kept["runs"]


def test_a_turn_whose_process_was_killed_before_result_json_had_it_is_taken_again(
    tmp_path, monkeypatch
):
    write_json, struck = run.records.write_json, []

    def killed(path, written):
        if len(written["runs"]) == 1:  # measurements.csv has it already
            struck.append(path)
            raise SystemExit(137)
        write_json(path, written)

    monkeypatch.setattr(run.records, "write_json", killed)
    isonorm_command(*words(tmp_path, "--only", "DBN-G8"))
    monkeypatch.setattr(run.records, "write_json", write_json)
    (folder,) = tmp_path.iterdir()
    assert struck and not content(folder)["runs"]
    assert (folder / "measurements.csv").read_text().count("\n") == 2
    resumed = isonorm_command("run", "--resume", str(folder))
    assert resumed.exit_code == 0, resumed.output
    assert content(folder)["status"] == "finished" and len(content(folder)["runs"]) == 1


def test_a_run_does_not_move_to_another_machine(tmp_path, monkeypatch):
    assert isonorm_command(*words(tmp_path, "--only", "DBN-G8")).exit_code == 0
    (folder,) = tmp_path.iterdir()
    before = (folder / "result.json").read_bytes()
    describe = run.environment.describe
    monkeypatch.setattr(
        run.environment, "describe", lambda device: {**describe(device), "processor": "another"}
    )
    answered = isonorm_command("run", "--resume", str(folder))
    assert answered.exit_code == 2 and "was measured on other hardware" in answered.stderr
    assert (folder / "result.json").read_bytes() == before
    assert isonorm_command("check", str(folder)).exit_code == 0  # judging needs no machine


def test_what_result_json_lacks_is_one_sentence(tmp_path):
    assert isonorm_command(*words(tmp_path, "--only", "DBN-G8")).exit_code == 0
    (folder,) = tmp_path.iterdir()
    whole = content(folder)
    for key in whole:
        (folder / "result.json").write_text(json.dumps({k: whole[k] for k in whole if k != key}))
        answered = isonorm_command("check", str(folder))
        assert isinstance(answered.exception, SystemExit | None), key
        assert (answered.exit_code == 2) == (answered.stderr.count("\n") == 1), key


@pytest.mark.parametrize("damage", [{"only": None}, {"seeds": "3"}, {"environment": 7}], ids=str)
@pytest.mark.parametrize("command", [["check"], ["run", "--resume"]], ids=["check", "resume"])
def test_a_result_of_other_types_is_one_sentence(command, damage, tmp_path):
    assert isonorm_command(*words(tmp_path, "--only", "DBN-G8")).exit_code == 0
    (folder,) = tmp_path.iterdir()
    (folder / "result.json").write_text(json.dumps({**content(folder), **damage}))
    answered = isonorm_command(*command, str(folder))
    assert answered.exit_code == 2 and answered.stderr.count("\n") == 1
    assert "result.json is missing or damaged" in answered.stderr


def test_a_measurement_is_not_resumed_as_a_comparison(tmp_path):
    assert isonorm_command(*words(tmp_path, "--only", "DBN-G8")).exit_code == 0
    (folder,) = tmp_path.iterdir()
    answered = isonorm_command("compare", "--resume", str(folder))
    assert answered.exit_code == 2
    assert f"not a comparison: isonorm run --resume {folder}" in answered.stderr


def test_stopped_before_the_first_turn_no_page_is_promised(tmp_path, monkeypatch):
    def interrupted(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "measure", interrupted)
    stopped = isonorm_command(*words(tmp_path, "--only", "DBN-G*"))
    (folder,) = tmp_path.iterdir()
    assert stopped.exit_code == 130 and not (folder / "report.html").exists()
    assert "report.html" not in stopped.output
    assert f"0 turns taken and 3 to go. Go on with: isonorm run --resume {folder}" in stopped.output


@pytest.mark.parametrize("damage", ["", "configuration,seed\nDBN-G8,0\n", None])
def test_a_damaged_folder_is_one_sentence(damage, tmp_path):
    assert isonorm_command(*words(tmp_path, "--only", "DBN-G8")).exit_code == 0
    (folder,) = tmp_path.iterdir()
    path = folder / "measurements.csv"
    if damage is None:
        path.unlink()
    else:
        path.write_text(damage)
    answered = isonorm_command("check", str(folder))
    assert answered.exit_code == 2 and answered.stderr.count("\n") == 1
    assert "measurements.csv is missing or damaged" in answered.stderr
    assert isonorm_command("run", "--resume", str(folder)).exit_code == 2


def test_nothing_is_reported_of_a_layer_that_is_wrong(tmp_path, monkeypatch):
    monkeypatch.setattr(meters, "TOLERANCE", 1e-12)
    ran = isonorm_command(*words(tmp_path))
    assert ran.exit_code == 2 and ran.stderr.count("\n") == 1
    assert "nothing was measured" in ran.stderr
    (folder,) = tmp_path.iterdir()
    assert content(folder)["runs"] == []


def test_a_full_disk_is_one_sentence(tmp_path, monkeypatch):
    def full(path, *arguments):
        raise OSError(28, "No space left on device")  # as a write says it: of no path

    monkeypatch.setattr(run.records, "write_csv", full)
    ran = isonorm_command(*words(tmp_path))
    assert ran.exit_code == 1 and ran.stderr.count("\n") == 1
    assert f"cannot write to {tmp_path}: No space left on device." in ran.stderr


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (
            ["--devices", "2"],
            f"{COST} measures layers, without data, in float32",
        ),
        (["--data", "data"], "leave out --data."),
        (["--no-verify"], "leave out --no-verify."),
        (["--precision", "bf16"], "leave out --precision."),
        (["--keep-weights"], "leave out --keep-weights."),
        (["--only", "Res"], "no configuration of dbn2018-cost matches 'Res'"),
        (["--device", "abacus"], "device 'abacus' cannot be used here"),
        (["--scale", "half"], "scale must be full or quick; got 'half'"),
        (["--compile", "graphs"], "compile graphs records CUDA graphs, and the device is cpu"),
    ],
)
def test_wrong_words_are_answered_in_one_sentence(wrong, sentence, tmp_path):
    answered = isonorm_command(*words(tmp_path / "runs", *wrong))
    assert answered.exit_code == 2 and answered.stderr.count("\n") == 1
    assert sentence in answered.stderr
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("name", [COST, "iternorm2019-cost", TABLE])
def test_measurements_are_described_with_their_cost(name):
    described = isonorm_command("recipes", name)
    assert described.exit_code == 0, described.output
    for text in ("The paper claims", "Where the paper is silent", "no training;", "on an H200"):
        assert text in described.output
    assert all_recipes()[name].claims[0].text in described.output
