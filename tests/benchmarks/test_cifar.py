"""The benchmark on CIFAR-10: its two words at quick scale, and the statistic that judges curves."""

from __future__ import annotations

import doctest
import json
import time
from multiprocessing import active_children
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import ttest_ind

from benchmarks import cifar, cifar_training, noise
from benchmarks.cifar_epochs import BATCHNORM, ITERNORM_64, NORMS, bars
from benchmarks.cifar_training import Course, Task
from benchmarks.noise import FALSE_ALARMS, compare
from isonorm.lab.machine import Machine
from isonorm.lab.recipes import find_recipe
from tests.benchmarks.endless import SECONDS, Endless
from tests.processes import COPIES


@pytest.fixture(scope="module")
def files(tmp_path_factory, official) -> Path:
    folder = tmp_path_factory.mktemp("data")
    official.cifar(folder, train=60, test=20)
    return folder


def run(word: str, files: Path, out: Path, *more: str) -> int:
    here = ["--device", "cpu", "--precision", "float32", "--compile", "no", "--quick"]
    return cifar.main([word, "--data", str(files), "--out", str(out), *here, *more])


def losses(record: dict, backend: str) -> list[list[float]]:
    return [curve["train_loss"] for curve in record["curves"] if curve["backend"] == backend]


def test_examples_in_docstrings():
    found = doctest.testmod(noise)
    assert found.attempted and not found.failed


def test_epochs_are_timed_without_the_first(files, tmp_path, capsys):
    out = tmp_path / "new" / "epochs.json"
    assert run("epochs", files, out, "--epochs", "3") == 0
    printed = capsys.readouterr().out
    record = json.loads(out.read_text())
    assert record["complete"] and "passed" not in record  # the bars are a GPU's, at full scale
    assert str(files) not in out.read_text()
    assert record["command"] == (
        "python -m benchmarks.cifar epochs --data DIR --epochs 3 --device cpu "
        "--precision float32 --compile no --quick"
    )
    assert record["results"].keys() == NORMS.keys()
    batchnorm = record["results"][BATCHNORM]
    for name, found in record["results"].items():
        assert name in printed and len(found["every_epoch"]) == 3
        assert found["seconds"]["median"] == pytest.approx(np.mean(found["every_epoch"][1:]))
        ratio = found["seconds"]["median"] / batchnorm["seconds"]["median"]
        assert found["ratio"] == pytest.approx(ratio)
    others = record["results"]["BatchNorm, isonorm's"]
    assert others["train_loss"] == pytest.approx(batchnorm["train_loss"], abs=1e-4)
    assert record["results"][ITERNORM_64]["train_loss"] != batchnorm["train_loss"]


def test_bars_are_met_or_missed(capsys):
    def results(seconds: float, ratio: float) -> dict[str, dict]:
        return {
            BATCHNORM: {"seconds": {"median": seconds}, "ratio": 1.0},
            ITERNORM_64: {"seconds": {"median": seconds * ratio}, "ratio": ratio},
        }

    assert bars(results(0.9, 1.2))["passed"]
    assert "MISSED" not in capsys.readouterr().out
    missed = bars(results(0.9, 1.4))
    assert [bar["passed"] for bar in missed["targets"]] == [True, False] and not missed["passed"]
    assert "MISSED  IterNorm" in capsys.readouterr().out


PAIR = ["--epochs", "2", "--seeds", "2", "--backends", "torch", "reference"]


@pytest.fixture(scope="module")
def one_by_one(files, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("one") / "curves.json"
    assert run("curves", files, out, *PAIR) == 0
    return out


def test_curves_of_two_implementations(one_by_one):
    assert one_by_one.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    record = json.loads(one_by_one.read_text())
    assert record["complete"] and record["passed"] and "--jobs 1" in record["command"]
    one, other = losses(record, "torch"), losses(record, "reference")
    assert record["t"] == compare(one, other).t
    # Two implementations: the same steps, but not the same digits.
    assert one != other and np.allclose(np.array(one)[:, 0], np.array(other)[:, 0], atol=1e-3)


@pytest.fixture
def _copied(monkeypatch):
    """Processes that are spawned would import for seconds what they need; lab.jobs' tests do."""
    monkeypatch.setattr(cifar_training, "get_context", lambda method: COPIES)


@pytest.mark.usefixtures("_copied")
def test_trainings_at_once_are_those_of_one_by_one(files, tmp_path, one_by_one, capsys):
    out = tmp_path / "curves.json"
    assert run("curves", files, out, *PAIR, "--jobs", "2") == 0
    printed = capsys.readouterr().out
    assert "[4/4]" in printed and "torch and reference: within noise" in printed
    expected, found = (json.loads(path.read_text()) for path in (one_by_one, out))
    assert found["curves"] == expected["curves"] and "--jobs 2" in found["command"]


@pytest.mark.usefixtures("_copied")
def test_what_still_trains_is_ended_with_the_benchmark():
    before = set(active_children())
    tasks = [Task("", seed) for seed in (0, 1, 1, 1)]
    trainings = Endless("", Machine(jobs=2), epochs=1).trainings(tasks)
    assert next(trainings)[0].seed == 0
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        trainings.throw(KeyboardInterrupt)
    assert time.monotonic() - began < SECONDS and set(active_children()) == before


def test_ctrl_c_is_one_sentence(files, tmp_path, monkeypatch, capsys):
    def pressed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(cifar, "epochs", pressed)
    assert run("epochs", files, tmp_path / "epochs.json") == 130
    assert capsys.readouterr().err.startswith("interrupted: ")


def test_without_a_gpu_there_are_no_kernels_to_compare(files, tmp_path, capsys):
    assert run("curves", files, tmp_path / "curves.json") == 1
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1 and "--backends torch reference" in captured.err
    assert "the kernels need a CUDA or ROCm GPU" in captured.err
    assert captured.out == "" and not list(tmp_path.iterdir())


def test_what_is_trained_is_the_beginning_of_figure_6():
    figure = find_recipe("iternorm2019-fig6")["IterNorm, base"]
    ours = Course("", Machine(), epochs=3).configuration(figure.norm)
    assert ours.build((3, 32, 32), 10).__repr__() == figure.build((3, 32, 32), 10).__repr__()
    assert ours.plan.epochs == 3 and ours.plan.schedule == figure.plan.schedule
    assert (ours.plan.batch_size, ours.plan.lr) == (256, 0.1)
    quick = Course("", Machine(), epochs=3, quick=True).configuration(figure.norm).plan
    assert quick.batch_size == 16 and quick.schedule == figure.plan.schedule


def test_t_is_students():
    chance = np.random.default_rng(0)
    one, other = chance.normal(2, 0.1, (2, 5, 7))
    assert compare(one, other).t == pytest.approx(ttest_ind(one, other).statistic)


def test_equal_kinds_are_rarely_called_different_and_others_always():
    chance = np.random.default_rng(0)
    draws = chance.normal(2, 0.1, (2000, 2, 4, 6))
    false = np.mean([not compare(one, other).passed for one, other in draws])
    assert FALSE_ALARMS / 4 < false < 2 * FALSE_ALARMS
    one, other = draws[0]
    found = compare(one, other)
    shift = np.zeros(6)
    shift[3] = found.noticed_by_epoch[3] / 100 * 2  # of a loss of 2, from any difference there was
    moved = one - one.mean(axis=0) + other.mean(axis=0)
    assert compare(moved + 0.9 * shift, other).passed
    assert not compare(moved + 1.1 * shift, other).passed


def test_differences_of_kinds_and_seeds():
    found = compare([[2.0], [2.4]], [[2.1], [2.3]])
    assert found.between_kinds == pytest.approx(0.1)
    assert found.between_seeds == pytest.approx((0.4 + 0.2) / 2)


@pytest.mark.parametrize(
    "curves", [[[2.0]], [[2.0], [float("nan")]], [2.0, 2.1], [[2.0, 1.0], [2.1, 1.1]]]
)
def test_curves_that_cannot_be_compared(curves):
    with pytest.raises(ValueError, match="curves can be compared where"):
        compare(curves, [[2.0], [2.1]])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["epochs", "--epochs", "1"], "--epochs must be at least 2"),
        (["curves", "--seeds", "1"], "--seeds must be at least 2"),
        (["curves", "--backends", "torch", "torch"], "got torch twice"),
        (["curves", "--backends", "torch", "auto"], "invalid choice: 'auto'"),
    ],
)
def test_wrong_words_are_explained(words, message, capsys):
    with pytest.raises(SystemExit):
        cifar.main([*words, "--data", "DIR"])
    assert message in capsys.readouterr().err


def test_files_that_are_missing_are_named(tmp_path, capsys):
    assert run("epochs", tmp_path / "data", tmp_path / "out.json") == 1
    error = capsys.readouterr().err
    assert "cifar-10" in error and error.count("\n") == 1 and not list(tmp_path.iterdir())


def test_graphs_need_a_gpu(files, capsys):
    words = ["curves", "--data", str(files), "--device", "cpu", "--backends", "torch", "reference"]
    assert cifar.main(words) == 1
    assert "compile graphs records CUDA graphs" in capsys.readouterr().err
