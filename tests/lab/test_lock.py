"""Two commands on one run: the first works on, the second is told so."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from isonorm.lab import lock
from isonorm.lab.cli import app
from isonorm.lab.lock import LOCK, InUse, sole_use
from tests.lab import struck
from tests.processes import Copy, call

pytestmark = pytest.mark.usefixtures("nothing_is_drawn")

SAVED = "01-seed0-checkpoint.safetensors"  # the first epoch


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def enter(folder: Path) -> None:
    with sole_use(folder, known=0):
        print("entered")


def test_a_run_that_is_running_is_not_resumed_until_its_process_has_ended(tmp_path):
    words = ["compare", "--norms", "bn", "--width", "8", "--epochs", "2", "--seeds", "1",
             "--device", "cpu", "--out", str(tmp_path)]  # fmt: skip
    with Copy(struck.run_and_stop_there, SAVED, words) as running:
        running.until(lambda: list(tmp_path.glob(f"*/{SAVED}")))
        (folder,) = tmp_path.iterdir()
        before = files(folder)
        refused = CliRunner().invoke(app, ["compare", "--resume", str(folder)])
        assert refused.exit_code == 1
        assert refused.stderr == (
            f"isonorm: another process works on {folder}: let it finish, or stop it before "
            "resuming.\n"
        )
        assert files(folder) == before and LOCK in before
    resumed = CliRunner().invoke(app, ["compare", "--resume", str(folder)])
    assert resumed.exit_code == 0, resumed.output
    assert json.loads((folder / "result.json").read_text())["status"] == "finished"
    assert LOCK not in files(folder)


def test_the_lock_ends_with_its_block(tmp_path):
    with pytest.raises(RuntimeError, match="full disk"), sole_use(tmp_path, known=0):
        _, output, errors = call(enter, tmp_path)
        assert output == "" and "InUse: another process works on" in errors
        raise RuntimeError("full disk")
    assert call(enter, tmp_path)[1] == "entered\n" and not files(tmp_path)


def test_a_lock_on_a_file_that_was_just_removed_is_none(tmp_path, monkeypatch):
    """The other process ended between our opening of its file and our lock on it."""

    def removed_first(file):
        (tmp_path / LOCK).unlink()
        return take(file)

    take = lock._lock
    monkeypatch.setattr(lock, "_lock", removed_first)
    with pytest.raises(InUse), sole_use(tmp_path, known=0):
        raise AssertionError("two would be here")


def test_on_a_file_system_without_locks_runs_are_not_guarded(tmp_path, monkeypatch):
    def no_locks(*arguments):
        raise OSError(errno.ENOLCK, "No locks available")

    fcntl = pytest.importorskip("fcntl")
    monkeypatch.setattr(fcntl, "lockf", no_locks)
    with sole_use(tmp_path, known=0):
        assert list(files(tmp_path)) == [LOCK]
    assert not files(tmp_path)


def test_what_was_found_since_the_run_was_read_is_not_lost(tmp_path):
    result = {"recipe": "some", "scale": "quick", "runs": [{}, {}]}
    (tmp_path / "result.json").write_text(json.dumps(result))
    with pytest.raises(InUse, match="gone on in another process"), sole_use(tmp_path, known=1):
        raise AssertionError("the second result would be written over")
    with sole_use(tmp_path, known=2):
        pass
    assert list(files(tmp_path)) == ["result.json"]
