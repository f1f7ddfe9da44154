"""Records and runs whose files say something else, in the commands that read them."""

from __future__ import annotations

import gzip
import json
import tempfile
from functools import cache
from pathlib import Path
from shutil import copyfile
from typing import Any

import hypothesis.strategies as st
from hypothesis import given
from typer.testing import CliRunner

from isonorm.lab.cli import app
from tests.fuzz.edits import BYTE_EDITS, JSON_EDITS, edit_json, edited

RECORDS = Path(__file__).resolve().parents[2] / "records"
#: A run of trainings, and one of measurements.
NAMES = ("dbn2018-tableB1", "iternorm2019-cost")
STUDY = "analysis/iternorm2019-fig2.json"
BENCHMARK = "warmstart.json"
NUMBERS = {"dbn2018-tableB1": "curves.csv.gz", "iternorm2019-cost": "measurements.csv"}


@cache
def command() -> CliRunner:
    return CliRunner()


def ends_well(*words: str) -> None:
    """Check that a command does its work, or ends with status 2 and one sentence."""
    result = command().invoke(app, list(words))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code in (0, 2), result.output
    if result.exit_code:
        lines = result.stderr.strip().splitlines()
        assert lines and len(" ".join(lines)) < 2500, result.stderr
        assert "Traceback" not in result.stderr


COMMANDS = st.sampled_from(["check", "page", "readme"])


def check_command(which: str, name: str, files: dict[str, bytes]) -> None:
    """Judge a run, or show it among the records, with these files in place of its own."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "records" / name
        folder.mkdir(parents=True)
        for path in (RECORDS / name).iterdir():
            if path.suffix in (".json", ".csv", ".gz"):
                copyfile(path, folder / path.name)
        for path, content in files.items():
            (Path(place) / "records" / path).parent.mkdir(exist_ok=True)
            (Path(place) / "records" / path).write_bytes(content)
        readme = Path(place) / "README.md"
        readme.write_text("<!-- results -->\n<!-- /results -->\n")
        records = str(Path(place) / "records")
        if which == "check":
            ends_well("check", str(folder))
        elif which == "page":
            ends_well("report", "--records", records, "--out", str(Path(place) / "page.html"))
        else:
            ends_well("report", "--records", records, "--readme", str(readme))


@cache
def content_of(path: str) -> bytes:
    return (RECORDS / path).read_bytes()


def json_of(path: str) -> Any:
    return json.loads(content_of(path))


@given(which=COMMANDS, name=st.sampled_from(NAMES), edits=JSON_EDITS)
def test_results(which, name, edits):
    """Attacks check and report by what result.json says: an answer, or status 2 and a sentence."""
    tree = edit_json(json_of(f"{name}/result.json"), edits)
    check_command(which, name, {f"{name}/result.json": json.dumps(tree).encode()})


@given(which=COMMANDS, name=st.sampled_from(NAMES), edits=BYTE_EDITS)
def test_numbers(which, name, edits):
    """Attacks check and report by the CSV files that a result rests on."""
    path = f"{name}/{NUMBERS[name]}"
    content = content_of(path)
    if path.endswith(".gz"):
        content = gzip.compress(edited(gzip.decompress(content), edits))
    else:
        content = edited(content, edits)
    check_command(which, name, {path: content})


@given(
    which=COMMANDS,
    path=st.sampled_from(
        [f"{NAMES[0]}/result.json", f"{NAMES[0]}/curves.csv.gz", STUDY, BENCHMARK]
    ),
    edits=BYTE_EDITS,
)
def test_bytes_of_records(which, path, edits):
    """Attacks check and report by the bytes of JSON and of packed files."""
    check_command(which, "dbn2018-tableB1", {path: edited(content_of(path), edits)})


@given(
    which=COMMANDS,
    path=st.sampled_from([STUDY, BENCHMARK, "monitor.json", "gpu-dbn16.json"]),
    edits=JSON_EDITS,
)
def test_studies(which, path, edits):
    """Attacks report by what the record of a study or a benchmark says."""
    tree = edit_json(json_of(path), edits)
    check_command(which, "dbn2018-tableB1", {path: json.dumps(tree).encode()})
