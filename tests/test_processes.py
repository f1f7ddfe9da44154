"""Processes of tests are read, bounded and ended: a hang shows its cause."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import processes
from tests.processes import Copy, call, python, together

MUCH = 2**20  # more than a pipe holds


def speak(words: str, code: int) -> None:
    for stream in (sys.stdout, sys.stderr):
        stream.write(words * MUCH)
    sys.exit(code)


def wait_in_vain() -> None:
    print("who comes?", flush=True)
    signal.pause()


def leave_one_behind() -> None:
    """Start a process in a session of its own, as torchrun does, and wait."""
    command = [sys.executable, "-c", "import signal; signal.pause()"]
    print(subprocess.Popen(command, start_new_session=True).pid, flush=True)
    signal.pause()


def runs(pid: int) -> bool:
    """Return whether a process is there and not yet to be buried."""
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


def test_what_fills_a_pipe_is_read_while_its_process_runs():
    assert call(speak, "a", 3) == (3, "a" * MUCH, "a" * MUCH)
    words = "import sys; sys.stderr.write('b' * 2**20); sys.stdout.write('c' * 2**20)"
    assert python("-c", words) == (0, "c" * MUCH, "b" * MUCH)


def test_who_waits_for_one_that_failed_is_ended_and_both_are_heard(monkeypatch):
    """The two-node test waited for the end of its limit, and showed neither's words."""
    monkeypatch.setattr(processes, "SECONDS_AFTER_A_FAILURE", 0.0)
    with Copy(wait_in_vain) as waiting:
        waiting.until(lambda: "who comes?" in waiting.account())
        with Copy(speak, "a", 3) as failing, pytest.raises(pytest.fail.Exception) as failed:
            together(waiting, failing)
    told = str(failed.value)
    assert "exit status 3" in told and "who comes?" in told
    assert "in wait_in_vain" in told  # faulthandler's words


def test_a_limit_ends_a_process_that_does_not(monkeypatch):
    monkeypatch.setattr(processes, "LIMIT", 0.0)
    with Copy(wait_in_vain) as waiting, pytest.raises(pytest.fail.Exception, match="did not end"):
        waiting.end()
    assert waiting.returncode == -signal.SIGABRT


def test_a_process_ends_with_those_of_other_sessions_that_it_started():
    with Copy(leave_one_behind) as copy:
        copy.until(lambda: copy.account().strip().splitlines()[-1].isdigit())
        left = int(copy.account().strip().splitlines()[-1])
        assert runs(left)
    assert not runs(left)
