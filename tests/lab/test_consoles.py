"""Every command before every kind of console: plain output or one sentence, and runs that go on."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from isonorm.lab.cli import app
from isonorm.lab.recipes import all_recipes
from tests.lab.consoles import isonorm

COMMANDS = list(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
ESCAPE = "\x1b]0;title\x07[red]\u202e"
TINY = [
    *("compare", "--norms", "plain", "--depth", "2", "--width", "8", "--epochs", "1"),
    *("--batch-size", "400", "--device", "cpu", "--seeds", "2"),
]
OUTPUTS = [["--help"], *([name, "--help"] for name in COMMANDS), ["--version"], ["norms"],
           ["recipes"], ["recipes", "dbn2018-fig3"], ["recipes", "iternorm2019-supp-time"],
           ["data"], ["analyze"]]  # fmt: skip
HUGE = str(10**18)
REFUSALS = [
    [ESCAPE],
    *([name, f"--{ESCAPE}"] for name in COMMANDS),
    ["norms", ESCAPE],
    ["data", ESCAPE],
    ["recipes", ESCAPE],
    ["analyze", ESCAPE],
    *([name, f"nowhere/{ESCAPE}"] for name in ("check", "record")),
    *([name, "x" * 5000] for name in ("check", "record")),
    ["report", "--records", f"nowhere/{ESCAPE}"],
    ["run", ESCAPE],
    ["run", "dbn2018-fig3", "--only", ESCAPE],
    ["run", "dbn2018-fig3", "--seeds", HUGE],
    ["run", "iternorm2019-supp-time", "--seeds", HUGE],
    *(
        ["run", "dbn2018-fig3", f"--{name}", HUGE]
        for name in ("devices", "nodes", "jobs", "threads")
    ),
    *([*TINY, f"--{name}", ESCAPE] for name in ("norms", "data", "model", "device", "name")),
    *([*TINY, f"--{name}", HUGE] for name in ("seeds", "epochs", "width", "depth", "threads")),
    *(
        [*TINY, f"--{name}", value]
        for value in ("1e308", "inf", "nan", "-1", "", "1_0e", "９x")
        for name in ("seeds", "epochs", "lr", "weight-decay", "momentum", "width", "depth")
    ),
    [*TINY, "--norms", f"dbn:method={ESCAPE}"],
    [*TINY, "--norms", "dbn:group_size=" + "(" * 10_000],
    [*TINY, "--norms", "dbn:group_size=" + "-" * 100_000 + "1"],
    ["compare", "--resume", f"nowhere/{ESCAPE}"],
]
ENVIRONMENTS = {
    "ASCII": {"encoding": "ascii"},
    "latin-1": {"encoding": "latin-1"},
    "UTF-8 terminal": {"end": "terminal"},
    "closed pipe": {"end": "closed pipe"},
    "full disk": {"end": "full disk", "encoding": "ascii"},
}


def shortly(words: list[str]) -> str:
    return " ".join(words[-3:])[:40].encode("ascii", "replace").decode()


@pytest.fixture(params=["wide", "40 columns", "dumb"])
def _terminal(request, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "40" if request.param == "40 columns" else "120")
    monkeypatch.setenv("TERM", "dumb" if request.param == "dumb" else "xterm")


@pytest.mark.usefixtures("_terminal")
@pytest.mark.parametrize("kind", ENVIRONMENTS)
def test_output_is_plain_wherever_it_goes(kind):
    for words in OUTPUTS:
        said = isonorm(words, **ENVIRONMENTS[kind])
        if kind == "full disk":
            reason = "cannot write to standard output (No space left on device)"
            assert said.status == 1, words
            assert said.errors == f"isonorm: {reason}: what follows is not shown.\n"
        elif kind == "closed pipe":
            assert (said.status, said.errors) == (141, ""), words
        else:
            plain = re.sub(r"\x1b\[[0-9;]*m|\r", "", said.output)
            assert (said.status, said.errors) == (0, ""), words
            assert plain.endswith("\n") and plain.replace("\n", "").isprintable(), words


@pytest.mark.parametrize("kind", ENVIRONMENTS)
@pytest.mark.parametrize("words", REFUSALS, ids=shortly)
def test_refusals_are_one_sentence_wherever_they_go(words, kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = isonorm(words, **ENVIRONMENTS[kind])
    assert said.status == 2 and said.output == "" and not any(tmp_path.iterdir())
    assert said.errors.startswith("isonorm: ") and said.errors.endswith(".\n")
    assert said.errors[:-1].isprintable()
    if any(ESCAPE in word for word in words):
        assert "\\x1b]0;title\\x07[red]\\u202e" in said.errors


@pytest.mark.usefixtures("nothing_is_drawn")
@pytest.mark.parametrize(("end", "status"), [("closed pipe", 141), ("full disk", 1)])
def test_a_run_without_readers_goes_on_to_its_end(end, status, tmp_path):
    said = isonorm([*TINY, "--out", str(tmp_path)], end=end)
    (folder,) = tmp_path.iterdir()
    content = json.loads((folder / "result.json").read_text())
    assert said.status == status and str(folder) not in said.errors
    assert content["status"] == "finished" and len(content["runs"]) == 2
    assert (folder / "report.html").exists()


@pytest.mark.usefixtures("nothing_is_drawn")
@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_comparison_ends_with_its_table_in_every_encoding(encoding, tmp_path):
    said = isonorm([*TINY, "--out", str(tmp_path)], encoding=encoding)
    assert said.status == 0 and said.errors == ""
    assert ("+-" if encoding == "ascii" else "±") in said.output
    (row,) = (line for line in said.output.splitlines() if line.startswith("| plain"))
    borders = [line for line in said.output.splitlines() if line.startswith("+-")]
    assert {len(line) for line in [row, *borders]} == {len(row)}, "columns are in line"


def test_what_others_wrote_into_a_run_is_shown_as_text(tmp_path):
    content = {
        "recipe": "dbn2018-table2", "scale": "full", "started": "2020-01-01T00:00:00+00:00",
        "seeds": 1, "machine": {}, "status": "finished", "data": "", "keep_weights": False,
        "verify": True, "environment": {}, "configurations": {}, "runs": [],
        "claims": [{"answer": "holds", "claim": ESCAPE, "evidence": "[bold]"}],
    }  # fmt: skip
    (tmp_path / "result.json").write_text(json.dumps(content))
    said = isonorm(["check", str(tmp_path)], end="terminal")
    assert said.status == 0
    assert "holds: \\x1b]0;title\\x07[red]\\u202e ([bold])" in said.output


@pytest.mark.parametrize("columns", [40, 80, 120])
def test_tables_keep_every_name_whole(columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    said = isonorm(["recipes"], end="terminal")
    lines = re.sub(r"\x1b\[[0-9;]*m|\r", "", said.output).splitlines()
    assert max(map(len, lines)) <= columns and "…" not in said.output
    cells = [line.split("│")[1].strip() for line in lines if line.startswith("│")]
    if columns >= 80:
        assert [cell for cell in cells if cell] == list(all_recipes())
    else:  # over several lines
        assert "".join(cells) == "".join(all_recipes())


PLAIN_C = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


def process(*words: str, **options) -> subprocess.Popen[bytes]:
    """The command in a process of its own, as from a shell in the plain C locale."""
    return subprocess.Popen(
        [sys.executable, "-m", "isonorm", *words], env=os.environ | PLAIN_C,
        stderr=subprocess.PIPE, **options,
    )  # fmt: skip


def test_python_itself_has_nothing_to_add_at_its_end():
    """Streams are set up before the first line of ours, and flushed after the last one."""
    pipe, writer = os.pipe()
    os.close(pipe)
    with open("/dev/full", "wb") as full:
        unread = process("recipes", "dbn2018-fig3", stdout=writer)
        lost = process("recipes", "dbn2018-fig3", stdout=full)
        plain = process("recipes", "dbn2018-fig3", stdout=subprocess.PIPE)
    os.close(writer)
    assert unread.communicate() == (None, b"") and unread.returncode == 141
    _, errors = lost.communicate()
    assert lost.returncode == 1 and errors.count(b"\n") == 1 and b"No space left" in errors
    output, errors = plain.communicate()
    assert plain.returncode == 0 and errors == b"" and output.isascii() and b"+--" in output


def test_a_folder_in_another_encoding_is_kept_to_the_byte(tmp_path):
    folder = os.fsencode(tmp_path) + "/données".encode()
    os.mkdir(folder)
    ran = process(*TINY, "--folder", "données", "--out", "données", cwd=tmp_path,
                  stdout=subprocess.PIPE)  # fmt: skip
    output, errors = ran.communicate()
    assert ran.returncode == 0, errors
    assert b"donn\\xc3\\xa9es" in output
    (run,) = Path(os.fsdecode(folder)).iterdir()
    assert os.fsencode(json.loads((run / "result.json").read_text())["data"]) == folder
