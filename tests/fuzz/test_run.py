"""The runner of ``make fuzz``, on fuzzers with planted bugs."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

RUN = Path(__file__).with_name("run.py")
PLANTED = '''
import os, sys, warnings
import hypothesis.strategies as st
import torch
from hypothesis import given

@given(st.integers(0, 10**6))
def test_bug(number):
    assert number < 1234

@given(st.data())
def test_drawn(data):
    """Finds a warning, drawn within and from torch's own generator."""
    if data.draw(st.booleans()) and torch.rand(()) < 1:
        warnings.warn("a planted warning")

@given(st.lists(st.integers(0, 100)))
def test_abort(numbers):
    if sum(numbers) > 150:
        os.abort()

@given(st.integers(0, 10**6))
def test_hang(number):
    while number > 900_000:
        pass

@given(st.integers(), st.integers())
def test_sound(a, b):
    if not hasattr(sys, "has_begun"):
        sys.has_begun = True
        print("begun", file=sys.stderr, flush=True)
    assert a + b == b + a
'''


@pytest.fixture
def folder(tmp_path):
    """A folder of fuzzers, packed like the project's own."""
    path = tmp_path / "planted" / "fuzz"
    path.mkdir(parents=True)
    (path / "test_planted.py").write_text(PLANTED)
    return path


def start(folder: Path, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(RUN), "--folder", str(folder), *options]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def run(folder: Path, *options: str) -> tuple[int, str, str]:
    with start(folder, *options) as process:
        output, errors = process.communicate(timeout=200)
    return process.returncode, output, errors


def again(output: str, name: str) -> list[str]:
    """Return the options by which the output says that a finding is found again."""
    found = re.search(rf'Again by: make fuzz ARGS="(--only {name} .*)"', output)
    assert found is not None, output
    return shlex.split(found[1])


def spent(output: str, name: str) -> str:
    """Return the number of examples that a finding took."""
    found = re.search(rf"=== {name}: found in round \d+, (\d+) examples", output)
    assert found is not None, output
    return found[1]


def row(output: str, name: str) -> list[int]:
    """Return examples, rounds, findings and seconds of a fuzzer in the final table."""
    found = re.search(rf"^{name}((?: +\d+){{4}})$", output, re.MULTILINE)
    assert found is not None, output
    return [int(number) for number in found[1].split()]


@pytest.mark.slow
def test_a_bug_is_found_shrunk_and_found_again_while_the_others_go_on(folder):
    only = ("--only", "bug", "--only", "drawn", "--only", "sound")
    status, output, errors = run(folder, *only, "--minutes", "0.05", "--jobs", "1")
    assert status == 1, errors
    assert "number=1234,\n" in output
    assert "UserWarning: a planted warning" in output and "Draw 1: True" in output
    assert [row(output, name)[2] for name in ("bug", "drawn", "sound")] == [1, 1, 0]
    assert row(output, "sound")[0] > 100 and row(output, "sound")[1] > 1
    status, repeated, _ = run(folder, *again(output, "bug"))
    assert status == 1 and "number=1234,\n" in repeated
    assert spent(repeated, "bug") == spent(output, "bug")


@pytest.mark.slow
def test_processes_that_die_or_hang_are_findings(folder):
    only = ("--only", "abort", "--only", "hang")
    status, output, errors = run(folder, *only, "--minutes", "0.5", "--patience", "5")
    assert status == 1, errors
    assert "The process ended with SIGABRT in example" in output
    assert "Nothing happened for 5 seconds in example" in output
    assert "abort: the example at which it ended: test_abort(\n    numbers=[" in output
    assert "hang: the example at which it ended: test_hang(\n    number=9" in output
    assert "in test_hang" in errors  # where it hangs
    assert all(row(output, name)[2] >= 1 for name in ("abort", "hang"))
    status, repeated, _ = run(folder, *again(output, "abort"))
    assert status == 1 and "The process ended with SIGABRT" in repeated
    assert spent(repeated, "abort") == spent(output, "abort")


@pytest.mark.slow
def test_an_interrupt_prints_what_was_done(folder):
    with start(folder, "--only", "sound", "--minutes", "10", "--jobs", "1") as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "begun\n"
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        output, errors = process.communicate(timeout=100)
    assert process.returncode == 130 and errors == ""
    assert row(output, "sound")[0] > 0


def test_unknown_names_are_refused(folder):
    status, output, errors = run(folder, "--only", "nothing")
    assert status == 1 and output == ""
    assert errors == "there is no fuzzer 'nothing'; there are: bug, drawn, abort, hang, sound.\n"
