"""The runner of ``make fuzz``, on fuzzers with planted bugs."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest

from tests.processes import Command, Ended

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

tried = 0

@given(st.integers(), st.integers())
def test_sound(a, b):
    global tried
    tried += 1
    if tried in (1, 200):
        print(f"tried {tried}", file=sys.stderr, flush=True)
    assert a + b == b + a
'''


@pytest.fixture
def folder(tmp_path):
    """A folder of fuzzers, packed like the project's own."""
    path = tmp_path / "planted" / "fuzz"
    path.mkdir(parents=True)
    (path / "test_planted.py").write_text(PLANTED)
    return path


def start(folder: Path, *options: str) -> Command:
    return Command([sys.executable, str(RUN), "--folder", str(folder), *options])


def run(folder: Path, *options: str) -> Ended:
    with start(folder, *options) as process:
        return process.end()


def run_until(folder: Path, words: list[str], *options: str) -> Ended:
    """Interrupt a long run when it has said all of these."""
    with start(folder, *options, "--minutes", "1000", "--jobs", "1") as process:
        process.until(lambda: all(word in process.account() for word in words))
        process.interrupt()
        return process.end()


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
    said = ['Again by: make fuzz ARGS="--only bug', "--only drawn", "tried 200"]
    status, output, errors = run_until(folder, said, *only)
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
    only = ("--only", "abort", "--only", "hang", "--jobs", "2")
    status, output, errors = run(folder, *only, "--minutes", "1000", "--patience", "5")
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
    status, output, errors = run_until(folder, ["tried 1\n"], "--only", "sound")
    assert status == 130 and errors == "tried 1\n"
    assert row(output, "sound")[0] > 0


def test_unknown_names_are_refused(folder):
    status, output, errors = run(folder, "--only", "nothing")
    assert status == 1 and output == ""
    assert errors == "there is no fuzzer 'nothing'; there are: bug, drawn, abort, hang, sound.\n"
