"""Several trainings at once: the results of one by one, however the run is ended and resumed."""

from __future__ import annotations

import pickle
import signal
import sys
import time
from contextlib import suppress
from datetime import datetime
from functools import partial
from multiprocessing import active_children, get_context
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner, Result

from isonorm.lab import jobs
from isonorm.lab.cli import app
from isonorm.lab.experiment import Experiment, Trial
from isonorm.lab.machine import Machine
from isonorm.lab.recipes import all_recipes
from tests.lab import struck
from tests.lab.run_folders import curves, result_of, weights
from tests.processes import COPIES, LIMIT, call

SEARCH = "dbn2018-fig5"  # chooses by a validation set; four points at quick scale
TRAININGS = 6  # of one configuration with two seeds

pytestmark = pytest.mark.usefixtures("nothing_is_drawn")


@pytest.fixture(scope="module")
def files(tmp_path_factory, official) -> Path:
    folder = tmp_path_factory.mktemp("data")
    official.cifar(folder, train=60, test=20)
    return folder


def words(files: Path, out: Path, jobs: int) -> list[str]:
    name = all_recipes()[SEARCH].configurations[-1].name
    return ["run", SEARCH, "--data", str(files), "--scale", "quick", "--device", "cpu",
            "--only", name, "--seeds", "2", "--keep-weights", "--out", str(out),
            "--jobs", str(jobs)]  # fmt: skip


def isonorm_command(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


@pytest.fixture(scope="module")
def one_by_one(files, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("one")
    ran = isonorm_command(*words(files, out, jobs=1))
    assert ran.exit_code == 0, ran.output
    (folder,) = out.iterdir()
    return folder


def check_equal(folder: Path, expected: Path) -> None:
    assert result_of(folder)["status"] == "finished" and not list(folder.glob("*checkpoint*"))
    assert curves(folder) == curves(expected)
    assert len(weights(expected)) == TRAININGS
    torch.testing.assert_close(weights(folder), weights(expected), rtol=0, atol=0)
    settings = [[row["setting"] for row in result_of(f)["summary"]] for f in (folder, expected)]
    assert settings[0] == settings[1] and settings[0][0]


def test_two_at_once_find_what_one_by_one_finds(one_by_one, files, tmp_path):
    ran = isonorm_command(*words(files, tmp_path, jobs=2))
    assert ran.exit_code == 0, ran.output
    (folder,) = tmp_path.iterdir()
    check_equal(folder, one_by_one)
    assert result_of(folder)["machine"]["jobs"] == 2 and "--jobs 2" in result_of(folder)["command"]
    lines = [line for line in ran.output.splitlines() if line.startswith("[")]
    assert sorted(line[:5] for line in lines) == [f"[{n}/6]" for n in range(1, 7)]


@pytest.mark.slow
def test_however_it_ends_it_goes_on_to_the_same_results(one_by_one, files, tmp_path, monkeypatch):
    """Struck three times, each time a training later, and resumed as often."""
    out = tmp_path / "runs"

    def folder() -> Path:
        (only,) = out.iterdir()
        return only

    def finished(training: str, *output: str) -> int:
        """How many trainings a command leaves finished that ended when this one struck."""
        assert list(folder().glob(f"*{training}*checkpoint*")), output
        return len(result_of(folder())["runs"])

    # the third one: the first or the second has ended
    others = set(active_children())
    with monkeypatch.context() as patch:
        patch.setattr(jobs, "get_context", lambda method: COPIES)  # the others below are spawned
        patch.setattr(jobs, "_work", partial(struck.work, "-point2-", "itself", "-point3-"))
        failed = isonorm_command(*words(files, out, jobs=2))
    first = finished("-point2-", failed.output)
    assert 1 <= first < TRAININGS
    assert failed.exit_code == 1 and failed.stderr.count("\n") == 1, failed.stderr
    assert ", seed 0, validating was ended by signal 9, as where memory" in failed.stderr
    assert f"isonorm run --resume {folder()} --jobs 1 goes on" in failed.stderr
    assert result_of(folder())["status"] == "interrupted" and set(active_children()) == others

    again = ["run", "--resume", str(folder()), "--jobs", "2"]
    code, *said = call(struck.run_side_by_side, "-point3-", "the command", again)
    second = finished("-point3-", *said)
    assert first < second < TRAININGS
    assert code == -signal.SIGKILL and result_of(folder())["status"] == "running"
    assert "Traceback" not in said[1]  # of those who wait for work that nobody gives any more

    # by now the search has chosen, and what it chose is trained with all data
    code, output, errors = call(struck.run_side_by_side, "-seed1", "Ctrl-C", again)
    third = finished("-seed1", output, errors)
    assert second < third < TRAININGS
    assert code == 130 and errors == ""
    assert output.splitlines()[-1].endswith(f"isonorm run --resume {folder()}")
    assert result_of(folder())["status"] == "interrupted"

    resumed = isonorm_command("run", "--resume", str(folder()), "--jobs", "1")
    assert resumed.exit_code == 0, resumed.output
    assert resumed.output.startswith(f"[1/{TRAININGS - third}] ")
    check_equal(folder(), one_by_one)


def test_what_a_search_chooses_waits_for_all_of_its_points(make_result, tmp_path):
    name = all_recipes()[SEARCH].configurations[0].name
    recipe = all_recipes()[SEARCH].only([name]).shrunk()
    experiment = Experiment(
        recipe, "quick", 2, "data", Machine(jobs=4), tmp_path, datetime.now().astimezone()
    )
    points = [Trial(name, 0, point, True) for point in range(4)]
    errors = {3: 0.5, 1: 0.2, 0: 0.4, 2: 0.2}  # as they come in; the best is there twice
    for point, error in errors.items():
        assert list(experiment.trials()) == points
        experiment.add(points[point], make_result([1.0], [error]))
    assert list(experiment.results) == points
    assert list(experiment.trials()) == [*points, Trial(name, 0, 1), Trial(name, 1, 1)]


@pytest.mark.parametrize("options", [["--devices", "2"], ["--nodes", "2"]])
def test_several_devices_are_refused_in_one_sentence(options, files, tmp_path):
    ran = isonorm_command(*words(files, tmp_path / "runs", jobs=2), *options)
    assert ran.exit_code == 2 and ran.stderr.count("\n") == 1
    assert "jobs 2 shares one device" in ran.stderr and not (tmp_path / "runs").exists()


def test_what_ends_a_process_comes_back_from_it(tmp_path):
    recipe = all_recipes()[SEARCH].shrunk()
    experiment = Experiment(
        recipe, "quick", 2, "data", Machine(jobs=4), tmp_path, datetime.now().astimezone()
    )
    here, there = get_context("spawn").Pipe()
    process = get_context("spawn").Process()  # never started: its messages are sent from here
    worker = jobs._Worker(process, here, next(experiment.trials()))
    there.send(MemoryError("CUDA out of memory"))
    with pytest.raises(jobs.WorkerLost, match=r"ran out of memory \(CUDA out.*--jobs 2 goes on"):
        jobs._receive(experiment, worker)
    error = ValueError("a sentence")
    error.add_note("where it was raised")
    there.send(error)
    with pytest.raises(ValueError, match="a sentence") as caught:
        jobs._receive(experiment, worker)
    assert caught.value.__notes__ == ["where it was raised"]


def test_an_error_that_cannot_travel_sends_its_words():
    error = ValueError("a sentence")
    error.add_note("where it was raised")
    assert jobs._portable(error) is error
    error.frame = sys._getframe()  # as torch's compiler has it
    found = jobs._portable(error)
    assert str(pickle.loads(pickle.dumps(found))) == "ValueError: a sentence"
    assert found.__notes__ == ["where it was raised"]


def test_a_second_ctrl_c_leaves_no_process_behind(monkeypatch):
    workers = []
    for _ in range(2):
        here, there = get_context("spawn").Pipe()
        process = get_context("spawn").Process(target=time.sleep, args=(LIMIT,))
        process.start()
        there.close()
        workers.append(jobs._Worker(process, here, Trial("trained", 0)))
    terminate = workers[0].process.terminate

    def terminate_while_ctrl_c_is_pressed():
        signal.raise_signal(signal.SIGINT)
        terminate()

    monkeypatch.setattr(workers[0].process, "terminate", terminate_while_ctrl_c_is_pressed)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with suppress(KeyboardInterrupt):
            jobs._stop(workers)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        assert [worker.process.exitcode for worker in workers] == [-signal.SIGTERM] * 2
    finally:
        signal.signal(signal.SIGINT, before)
        for worker in workers:
            worker.process.kill()
            worker.pipe.close()
