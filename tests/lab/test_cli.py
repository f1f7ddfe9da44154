from __future__ import annotations

import pytest
import typer
from typer.testing import CliRunner, Result

import isonorm
from isonorm.lab.cli import app
from isonorm.lab.data import SOURCES
from tests.processes import python


def isonorm_command(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


def test_norms_are_listed_with_their_papers():
    result = isonorm_command("norms")
    assert result.exit_code == 0
    for name in isonorm.list_norms():
        assert f"│ {name} " in result.stdout
    assert "Decorrelated Batch Normalization, CVPR 2018" in result.stdout


def test_norms_can_be_narrowed_by_a_pattern():
    result = isonorm_command("norms", "*whiten*")
    names = [
        line.split("│")[1].strip() for line in result.stdout.splitlines() if line.startswith("│")
    ]
    assert [name for name in names if name] == isonorm.list_norms("*whiten*")
    nothing = isonorm_command("norms", "zzz")
    assert nothing.exit_code == 2 and "no name matches 'zzz'" in nothing.stderr


def test_help_shows_every_word_that_is_written_for_it():
    """Markup would take stars and comments for its own."""
    for name, command in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]
        result = CliRunner().invoke(app, [name, "--help"], env={"COLUMNS": "1000"})
        shown = " ".join(result.stdout.replace("│", " ").split())
        helps = [option.help for option in command.params if getattr(option, "help", None)]
        for text in (command.help.split("\n\n")[0], *helps):
            assert " ".join(text.split()) in shown


WITHOUT_LAB = """
import sys
import isonorm
heavy = {"typer", "rich", "matplotlib", "sklearn", "isonorm.lab"} & set(sys.modules)
assert not heavy, heavy
sys.modules["typer"] = None  # as if it were not installed
import isonorm.lab.cli
"""


def test_the_library_does_without_the_lab_and_the_command_says_what_it_needs():
    ended = python("-c", WITHOUT_LAB)
    assert ended.code == 1
    assert ended.errors == (
        "The isonorm command needs typer: pip install 'isonorm[lab]' brings it.\n"
    )


INTERRUPTED = """
import os, signal, sys
import isonorm

class CtrlC:
    def find_spec(self, name, *more):
        if name == "isonorm.lab.analyze":
            os.kill(os.getpid(), signal.SIGINT)
            signal.pause()

signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, CtrlC())
from isonorm.lab.cli import app
app()
"""


def test_ctrl_c_while_it_starts_is_one_sentence():
    ended = python("-c", INTERRUPTED)
    assert ended == (130, "", "isonorm: stopped before anything was begun.\n")


def test_data_sets_are_listed_with_their_files(official, tmp_path):
    official.cifar(tmp_path)
    result = isonorm_command("data", "--folder", str(tmp_path))
    assert result.exit_code == 0
    here = {
        cells[1].strip(): cells[4].strip()
        for line in result.stdout.splitlines()
        if line.startswith("│") and (cells := line.split("│"))[1].strip()
    }
    assert here == {name: "yes" if name in ("digits", "cifar10") else "no" for name in SOURCES}
    assert "cifar-10-binary.tar.gz" in result.stdout


def test_a_data_set_is_read_and_described(official, tmp_path):
    official.faces(tmp_path, "yaleb")
    result = isonorm_command("data", "yaleb", "--folder", str(tmp_path))
    rows = [
        [cell.strip() for cell in line.split("│")[1:-1]]
        for line in result.stdout.splitlines()
        if line.startswith("│")
    ]
    assert rows == [
        ["train", "114", "1 × 32 × 32", "0 to 255", "38", "3 to 3"],
        ["test", "38", "1 × 32 × 32", "0 to 255", "38", "1 to 1"],
    ]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["nmist"], "there is no data set called 'nmist'"),
        (["pie"], "pie was not found in"),
        (["--download"], "--download fetches one data set: name it."),
        (["--no-verify"], "--no-verify reads one data set: name it."),
    ],
)
def test_data_that_is_not_there_is_answered_in_one_sentence(words, sentence, tmp_path):
    result = isonorm_command("data", *words, "--folder", str(tmp_path))
    assert result.exit_code == 2 and result.stdout == ""
    assert sentence in result.stderr and result.stderr.count("\n") == 1


def test_files_of_another_checksum_are_read_when_asked_to(tmp_path, official):
    official.mnist(tmp_path, packed=True)
    words = ("data", "mnist", "--folder", str(tmp_path))
    refused = isonorm_command(*words)
    assert refused.exit_code == 2 and "pass verify=False (--no-verify)" in refused.stderr
    assert isonorm_command(*words, "--no-verify").exit_code == 0
