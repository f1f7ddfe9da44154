"""Command lines that nobody would type, runs that nobody would write, and consoles that give up."""

from __future__ import annotations

import atexit
import errno
import io
import json
import os
import re
import shutil
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from isonorm.lab import figures
from isonorm.lab.cli import app

COMMANDS: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
RECORD = "dbn2018-tableB1"  # a small one
#: Starting processes, or fetching from elsewhere, is for other tests.
LEFT_ALONE = {"download", "help", "jobs", "devices", "nodes", "out", "resume", "compile", "device"}
NUMBERS = {"seeds", "epochs", "lr", "momentum", "weight_decay", "width", "depth", "batch_size",
           "threshold", "threads"}  # fmt: skip
TINY = [
    *("--norms", "plain", "--depth", "2", "--width", "4", "--epochs", "1", "--seeds", "1"),
    *("--batch-size", "600", "--device", "cpu"),
]

hostile = st.one_of(
    st.text(st.characters(exclude_characters="\0"), max_size=20),
    st.sampled_from(["\x1b]0;title\x07", "[red]", "[/]", ":x:", "\udcff", "\n", "é±Σ", "x" * 5000]),
    st.sampled_from(["..", "/", "/dev/null", "-", "--", "*", "$HOME", "a\nb", "<b>|", "%s{0}"]),
)
numbers = st.one_of(
    st.sampled_from(["0", "1", "-1", "1e308", "inf", "nan", "-0.0", "9" * 30, "9" * 5000, "1_0"]),
    st.floats(allow_subnormal=True).map(str),
    st.integers(min_value=10**7).map(str),
)
norms = st.lists(
    st.one_of(
        hostile,
        st.sampled_from(["plain", "bn", "dbn", "equinorm"]),
        st.builds(
            "{}:{}={}".format,
            st.sampled_from(["bn", "dbn", "iternorm", "groupnorm"]),
            st.sampled_from(["eps", "group_size", "num_iters", "momentum", "affine", "x"]),
            hostile | numbers,
        ),
    ),
    max_size=3,
).map(",".join)
values = st.one_of(
    st.sampled_from([None, True, [], {}, "", "x", "\x1b]0;t\x07[red]\n<b>|", 0, 1, -1, 1e308]),
    st.sampled_from([float("nan"), float("inf"), 10**18, 10**400, [1], {"a": 1}]),
    st.text(max_size=5),
)


class Ending(io.RawIOBase):
    """A file that takes so many bytes, then fails."""

    def __init__(self, room: int | None, failure: int) -> None:
        self.taken, self.room, self.failure = b"", room, failure
        self.refused = False

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        if self.room is not None and len(self.taken) + len(data) > self.room:
            self.refused = True
            raise OSError(self.failure, os.strerror(self.failure))
        self.taken += bytes(data)
        return len(data)


@st.composite
def command_lines(draw: st.DrawFn) -> list[str]:
    """A command, some of its options, and words for them, of which few make sense."""
    name = draw(st.sampled_from(list(COMMANDS)) | hostile)
    words, known = [name], COMMANDS.get(name)
    if known is None:
        return words + draw(st.lists(hostile, max_size=2))
    parameters = [one for one in known.params if one.name not in LEFT_ALONE]
    for one in draw(st.lists(st.sampled_from(parameters), max_size=3)):
        option = one.opts[-1]
        if option.startswith("-"):
            words.append(option)
        if not getattr(one, "is_flag", False):
            of_numbers = numbers if one.name in NUMBERS else hostile
            words.append(draw(norms if one.name == "norms" else of_numbers))
    return words + draw(st.just([]) | st.lists(hostile, max_size=1))


@cache
def place() -> Path:
    """A folder to work in, with a finished comparison and a record."""
    folder = Path(tempfile.mkdtemp(prefix="commands"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    (folder / "kept").mkdir()
    shutil.copytree(Path(__file__).parents[2] / "records" / RECORD, folder / "kept" / "record")
    status, *_ = said(folder, ["compare", *TINY, "--out", "kept"], "utf-8", None, 0)
    assert status == 0
    return folder


def said(
    folder: Path, words: list[str], encoding: str, room: int | None, failure: int
) -> tuple[int, str, str]:
    """The status of a command in this process and a folder, its output and its errors."""
    raws = Ending(room, failure), Ending(None, 0)
    kinds = "strict", "backslashreplace"
    streams = [
        io.TextIOWrapper(io.BufferedWriter(raw), encoding=encoding, errors=errors)
        for raw, errors in zip(raws, kinds, strict=True)
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("COLUMNS", "40")
        patch.setattr(figures, "curves", lambda *arguments, **options: None)
        patch.setattr(figures, "save", lambda *arguments, **options: [])
        patch.setattr(sys, "stdout", streams[0])
        patch.setattr(sys, "stderr", streams[1])
        with pytest.raises(SystemExit) as ended:
            app(words)
    output, errors = (raw.taken.decode(encoding) for raw in raws)
    assert ended.value.code or not raws[0].refused, "lost words end with a status of their own"
    for raw, stream in zip(raws, streams, strict=True):
        raw.room = None
        stream.close()
    assert isinstance(ended.value.code, int)
    return ended.value.code, output, errors


def tree(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def check_what_was_said(words: list[str], status: int, output: str, errors: str) -> None:
    assert status in (0, 1, 2, 141), words
    assert all(line.isprintable() for line in re.split("\n", output + errors)), words
    assert not errors or errors.endswith("\n"), words
    assert "Traceback" not in errors, words
    if status == 2:
        assert errors.startswith("isonorm: ") and errors.count("\n") == 1, words


consoles = st.tuples(
    st.sampled_from(["ascii", "latin-1", "cp1252", "utf-8"]),
    st.none() | st.integers(0, 3000),
    st.sampled_from([errno.EPIPE, errno.ENOSPC, errno.EIO]),
)


@given(words=command_lines(), console=consoles)
def test_any_words_before_any_console(words, console):
    """Attacks the command line. Oracle: a status that is promised, whole lines without control
    characters, one sentence for a refusal, and files that a refusal leaves as they were.
    """
    if words[0] == "compare":
        words = [words[0], *TINY, *words[1:], "--out", "new"]
    before = tree(place())
    status, output, errors = said(place(), words, *console)
    check_what_was_said(words, status, output, errors)
    kept = {name: content for name, content in tree(place()).items() if name in before}
    assert kept == before, words
    if status == 2:
        assert tree(place()) == before, words
    for path in place().iterdir():
        if path.name != "kept":
            shutil.rmtree(path) if path.is_dir() else path.unlink()


@given(data=st.data(), value=values, console=consoles)
def test_any_value_in_the_result_of_a_run(data, value, console):
    """Attacks ``check``, ``record``, ``report`` and ``--resume`` by one changed value of a run's
    ``result.json``. Oracle: as above, and a file that stays as it was.
    """
    kinds = ["check", "record", "report", "resume"]
    kind = data.draw(st.sampled_from(kinds))
    folders = [path for path in (place() / "kept").iterdir() if (path.name == "record") or
               kind in ("check", "record", "resume")]  # fmt: skip
    whole = data.draw(st.sampled_from(sorted(folders)))
    run = place() / "records" / RECORD
    shutil.copytree(whole, run)
    try:
        content = json.loads((run / "result.json").read_text())
        change(content, data, value)
        (run / "result.json").write_text(json.dumps(content))
        words = {
            "check": ["check", str(run)],
            "record": ["record", str(run), "--to", "filed", "--replace"],
            "report": ["report", "--records", "records", "--out", "page.html"],
            "resume": ["compare", "--resume", str(run), "--jobs", "1"],
        }[kind]
        before = tree(run)
        status, output, errors = said(place(), words, *console)
        check_what_was_said(words, status, output, errors)
        assert (kind == "resume" and status != 2) or tree(run) == before, words
    finally:
        shutil.rmtree(place() / "records")


def change(content: Any, data: st.DataObject, value: Any) -> None:
    """Put a value at a drawn place of what JSON holds."""
    while True:
        keys = list(content) if isinstance(content, dict) else range(len(content))
        key = data.draw(st.sampled_from(keys))
        inner = content[key]
        if not isinstance(inner, (dict, list)) or not inner or data.draw(st.booleans()):
            content[key] = value
            return
        content = inner
