"""The studies' claims hold at sizes a test can afford; and the command that runs them."""

from __future__ import annotations

import json
import os

import pytest
from typer.testing import CliRunner

from isonorm.lab import analyze
from isonorm.lab.cli import app
from isonorm.lab.studies import STUDIES, Claim, Study, disturbance

#: Sizes that keep what each study must show.
SMALL = {
    "iternorm2019-fig1": dict(samples=200),
    "iternorm2019-section3.1": dict(),
    "iternorm2019-fig2": dict(),
    "iternorm2019-fig4": dict(
        dimensions=(2, 16, 64, 96), batch_size=256, population=2000, repeats=2, num_batches=4
    ),
    "iternorm2019-fig5": dict(
        batch_sizes=(2, 8, 64), dimension=128, dimensions=(2, 16, 64), population=1000, repeats=2,
        num_batches=8,
    ),
    "iternorm2019-supplement-fig2": dict(
        dimensions=(64, 96), batch_size=256, population=2000, repeats=2, num_batches=4
    ),
    # so few samples that batches of endless data would be a third more disturbed at 100
    "snd-batchnorm": dict(
        batch_sizes=(4, 100), dimension=4, population=200, num_samples=60, direct_batches=100
    ),
    "dbn2018-fig1": dict(dimensions=(16,), population=4000, num_batches=5),
    "dbn2018-fig3": dict(hidden=(32, 24), lrs=(0.5,), steps=10, every=10, seeds=1),
    "dbn2018-section3.5": dict(depth=6, width=8, examples=12, seeds=1),
    "equinorm2018-fig1": dict(kernels=3),
    "survey2020-criteria": dict(depth=9, width=24, steps=1),
    "survey2020-scales": dict(depth=3, width=6, examples=20),
    "survey2020-hessian": dict(
        norms=("iternorm",), hidden=(3,), images=40, samples=10, runs=1, steps=40
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", STUDIES)
def test_the_claims_hold_and_the_record_is_written(name, tmp_path):
    content, claims = analyze.carry_out(
        STUDIES[name], tmp_path / "records", tmp_path / "figures", 1, **SMALL[name]
    )
    assert claims and not [claim.sentence for claim in claims if not claim.holds]
    written = json.loads((tmp_path / "records" / f"{name}.json").read_text())
    assert written["study"] == name and written["claims"] == content["claims"]
    assert written["environment"]["packages"]["torch"] and written["processor_seconds"] > 0
    assert (tmp_path / "figures" / f"{name}.png").stat().st_size > 5000
    STUDIES[name].draw(written)  # a record is enough to draw from


def rows(**curves: list[float]) -> list[dict]:
    return [
        {"norm": name, "dimension": d, "batch_size": d,
         "snd": {"mean": value, "spread": 0.0}, "condition_number": {"mean": value, "spread": 0.0}}
        for name, values in curves.items()
        for d, value in zip((2, 64, 128), values, strict=True)
    ]  # fmt: skip


def test_claims_can_fail():
    """Orderings turned round are seen."""
    wrong = {"rows": [
        {**row, "norm": row["norm"].replace("iter", disturbance.ITERNORM)}
        for row in rows(batchnorm=[1, 1, 1], dbn=[2, 2, 0.5], iter=[3, 3, 3])
    ]}  # fmt: skip
    assert not any(claim.holds for claim in disturbance.claims_of_dimensions(wrong))


def command(*words: str):
    return CliRunner().invoke(app, ["analyze", *words])


def test_without_a_name_studies_are_listed():
    result = command()
    assert result.exit_code == 0 and all(name in result.output for name in STUDIES)


def test_a_study_by_name(tmp_path):
    result = command("equinorm2018-fig1", "--out", str(tmp_path / "here"))
    assert result.exit_code == 0, result.output
    assert "holds: positive and negative weights" in result.output
    found = sorted(os.listdir(tmp_path / "here"))
    assert found == ["equinorm2018-fig1.json", "equinorm2018-fig1.png"]


def test_a_terminal_shows_which_study_runs(tmp_path, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "200")
    ran = command("iternorm2019-fig1", "--out", str(tmp_path))
    before, _, _ = ran.stdout.partition(" s, ")
    assert "iternorm2019-fig1: What BatchNorm, DBN and IterNorm do" in before


def test_figures_are_drawn_anew_from_records(tmp_path):
    assert command("equinorm2018-fig1", "--out", str(tmp_path)).exit_code == 0
    record, figure = (tmp_path / f"equinorm2018-fig1.{kind}" for kind in ("json", "png"))
    before, drawn = record.read_bytes(), figure.read_bytes()
    figure.unlink()
    assert command("equinorm2018-fig1", "--redraw", "--out", str(tmp_path)).exit_code == 0
    assert record.read_bytes() == before and figure.read_bytes() == drawn
    missing = command("iternorm2019-fig4", "--redraw", "--out", str(tmp_path))
    assert missing.exit_code == 2 and "run the study without --redraw" in missing.stderr
    record.write_text("{")
    broken = command("equinorm2018-fig1", "--redraw", "--out", str(tmp_path))
    assert broken.exit_code == 2 and "this is not a record" in broken.stderr


def test_an_unknown_name_is_refused_in_one_sentence(tmp_path):
    result = command("fig99", "--out", str(tmp_path / "here"))
    assert result.exit_code == 2 and "there is no study called 'fig99'" in result.stderr
    assert not (tmp_path / "here").exists()


def test_a_claim_that_fails_is_the_exit_status(tmp_path, monkeypatch):
    study = STUDIES["equinorm2018-fig1"]
    failing = Study(study.name, study.title, study.run, lambda r: [Claim("no", False)], study.draw)
    monkeypatch.setitem(STUDIES, study.name, failing)
    monkeypatch.setitem(analyze.STUDIES, study.name, failing)
    result = command(study.name, "--out", str(tmp_path))
    assert result.exit_code == 1 and "FAILS: no" in result.output


@pytest.mark.parametrize("option", ["--out", "--figures"])
@pytest.mark.parametrize("folder", ["file", "file/below"])
def test_a_folder_that_cannot_be_is_refused_before_the_work(option, folder, tmp_path, monkeypatch):
    study = STUDIES["equinorm2018-fig1"]
    never = Study(study.name, study.title, lambda: pytest.fail("it ran"), study.claims, study.draw)
    monkeypatch.setitem(STUDIES, study.name, never)
    (tmp_path / "file").touch()
    wanted = {"--out": tmp_path / "out", option: tmp_path / folder}
    result = command(study.name, *(str(word) for pair in wanted.items() for word in pair))
    sentence = f"isonorm: cannot write to {tmp_path / folder}: "
    assert result.exit_code == 1 and result.stderr.startswith(sentence)
    assert result.stderr.count("\n") == 1 and os.listdir(tmp_path) == ["file"]


def test_an_interrupted_study_leaves_nothing(tmp_path, monkeypatch):
    def interrupted():
        raise KeyboardInterrupt

    study = STUDIES["equinorm2018-fig1"]
    stopped = Study(study.name, study.title, interrupted, study.claims, study.draw)
    monkeypatch.setitem(STUDIES, study.name, stopped)
    result = command(study.name, study.name, "--out", str(tmp_path / "out"))
    assert result.exit_code == 130 and result.stderr.startswith("isonorm: interrupted")
    assert not (tmp_path / "out").exists()
