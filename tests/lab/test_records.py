from __future__ import annotations

import json
from datetime import datetime

import pytest

from isonorm.lab import records


@pytest.mark.parametrize("before", [None, "earlier"])
def test_a_failure_in_the_middle_of_writing_leaves_what_was_there(tmp_path, before):
    path = tmp_path / "result.json"
    if before is not None:
        path.write_text(before)
    with pytest.raises(RuntimeError, match="disk"), records.whole_file(path) as temporary:
        temporary.write_text("half of")
        assert (path.read_text() if path.exists() else None) == before
        raise RuntimeError("disk")
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == (
        {} if before is None else {"result.json": before}
    )


@pytest.mark.parametrize("step", ["isonorm.lab.records._flush_to_disk", "os.replace"])
def test_a_failure_before_the_last_step_leaves_no_file(tmp_path, monkeypatch, step):
    def full_disk(path, *target):
        assert path.stat().st_size > 0
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(step, full_disk)
    with pytest.raises(OSError, match="No space"):
        records.write_json(tmp_path / "result.json", {"a": 1})
    with pytest.raises(OSError, match="No space"):
        records.write_csv(tmp_path / "curves.csv", ["a"], [[1]])
    assert list(tmp_path.iterdir()) == []


def test_json_is_read_back_and_infinities_are_null(tmp_path):
    path = tmp_path / "result.json"
    records.write_json(path, {"a": [1, float("nan"), {"μ": (float("inf"), 0.5)}], "b": None})

    def refuse(constant: str):
        raise AssertionError(f"{constant} is not JSON")

    content = json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse)
    assert content == {"a": [1, None, {"μ": [None, 0.5]}], "b": None}
    assert [file.name for file in tmp_path.iterdir()] == ["result.json"]


def test_csv_quotes_what_needs_quoting(tmp_path):
    records.write_csv(tmp_path / "curves.csv", ["norm", "loss"], [("a,b", 0.5), ("c", 1)])
    assert (tmp_path / "curves.csv").read_bytes() == b'norm,loss\n"a,b",0.5\nc,1\n'


def test_runs_of_one_second_get_folders_of_their_own(tmp_path):
    started = datetime(2026, 1, 2, 3, 4, 5)
    folders = [records.create_run_folder(tmp_path / "runs", "try", started) for _ in range(3)]
    assert [folder.name for folder in folders] == [
        "20260102-030405-try",
        "20260102-030405-try-2",
        "20260102-030405-try-3",
    ]
    assert all(folder.is_dir() for folder in folders)


@pytest.mark.parametrize("name", ["", "a/b", "..", "-x", "a b"])
def test_names_that_would_leave_the_folder_are_refused(tmp_path, name):
    with pytest.raises(ValueError, match="name is letters, digits"):
        records.create_run_folder(tmp_path, name, datetime(2026, 1, 2))
    assert list(tmp_path.iterdir()) == []
