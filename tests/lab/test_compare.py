from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from rich.console import Console

from isonorm.lab import compare as comparing
from isonorm.lab import records
from isonorm.lab.compare import Config, compare, prepare
from isonorm.lab.progress import progress_on

SMALL = Config(norms=("plain", "iternorm"), depth=2, width=8, epochs=2, batch_size=400, seeds=2)


def run(config: Config, folder) -> comparing.Comparison:
    progress = progress_on(Console(quiet=True), [config.epochs] * len(config.runs))
    return compare(config, prepare(config), folder, "try", progress)


def stop_in_run(number: int, error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0
    train = comparing.train

    def interrupted(*arguments, **options):
        nonlocal calls
        calls += 1
        if calls == number:
            raise error
        return train(*arguments, **options)

    monkeypatch.setattr(comparing, "train", interrupted)


def test_all_norms_come_with_a_seed_before_the_next_seed():
    runs = [(run.norm, run.seed) for run in SMALL.runs]
    assert runs == [("plain", 0), ("iternorm", 0), ("plain", 1), ("iternorm", 1)]


def test_interrupted_comparisons_keep_what_has_finished(tmp_path, monkeypatch):
    stop_in_run(4, KeyboardInterrupt(), monkeypatch)
    comparison = run(SMALL, tmp_path)
    assert comparison.status == "interrupted"
    assert comparison.description.endswith("2 epochs, 1 to 2 seeds")
    content = json.loads((comparison.folder / "result.json").read_text())
    assert content["status"] == "interrupted"
    assert [(run["norm"], run["seed"]) for run in content["runs"]] == [
        ("plain", 0),
        ("iternorm", 0),
        ("plain", 1),
    ]
    assert [row["train_loss"]["total"] for row in content["summary"]] == [2, 1]
    assert (comparison.folder / "curves.png").stat().st_size > 0


def test_interrupted_before_the_first_result_nothing_is_left(tmp_path, monkeypatch):
    stop_in_run(1, KeyboardInterrupt(), monkeypatch)
    assert run(SMALL, tmp_path).status == "interrupted"
    assert list(tmp_path.iterdir()) == []


def test_results_are_on_disk_before_the_next_run_begins(tmp_path, monkeypatch):
    stop_in_run(3, SystemError("killed"), monkeypatch)
    with pytest.raises(SystemError, match="killed"):
        run(SMALL, tmp_path)
    (folder,) = tmp_path.iterdir()
    content = json.loads((folder / "result.json").read_text())
    assert content["status"] == "running" and len(content["runs"]) == 2
    assert len((folder / "curves.csv").read_text().splitlines()) == 1 + 2 * 2


def test_threads_are_given_back(tmp_path, monkeypatch):
    seen = []
    train = comparing.train
    monkeypatch.setattr(
        comparing, "train", lambda *a, **k: seen.append(torch.get_num_threads()) or train(*a, **k)
    )
    before = torch.get_num_threads()
    run(replace(SMALL, norms=("plain",), seeds=1, epochs=1, threads=before + 1), tmp_path)
    assert seen == [before + 1] and torch.get_num_threads() == before


@pytest.mark.parametrize(
    ("norm", "sentence"),
    [
        ("groupnorm:num_groups=3", "groupnorm:num_groups=3 does not fit this network: .*divi"),
        ("instancenorm", "instancenorm does not fit this network: .*more than one value"),
        ("dbn:grup_size=3", "dbn:grup_size=3 does not fit this network: .*grup_size"),
    ],
)
def test_norms_that_do_not_fit_are_found_before_training(norm, sentence):
    with pytest.raises(ValueError, match=sentence):
        prepare(replace(SMALL, norms=("plain", norm)))


def test_a_full_disk_leaves_earlier_results_untouched(tmp_path, monkeypatch):
    flush, writes = records._flush_to_disk, 0

    def disk_that_fills_up(path):
        nonlocal writes
        writes += 1
        if writes > 2:  # result.json and curves.csv of the first run fit
            raise OSError(28, "No space left on device")
        flush(path)

    monkeypatch.setattr(records, "_flush_to_disk", disk_that_fills_up)
    with pytest.raises(OSError, match="No space"):
        run(SMALL, tmp_path)
    (folder,) = tmp_path.iterdir()
    assert sorted(file.name for file in folder.iterdir()) == ["curves.csv", "result.json"]
    assert len(json.loads((folder / "result.json").read_text())["runs"]) == 1
